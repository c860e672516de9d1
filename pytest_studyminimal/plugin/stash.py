"""Where the one session object is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_studyminimal.plugin.session import StudySession

SESSION: pytest.StashKey[StudySession] = pytest.StashKey()
