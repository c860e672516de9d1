"""What sessions in this process share.

pytester forgets every module that a session imports first. httpx maps the exceptions of the httpcore
that it saw, and imports it late; the plugin's modules hold one another: both must be here before.
"""

from __future__ import annotations

import httpcore  # noqa: F401

import pytest_studyminimal.plugin.attaching
import pytest_studyminimal.plugin.crashes
import pytest_studyminimal.plugin.ending
import pytest_studyminimal.plugin.gate
import pytest_studyminimal.plugin.session
import pytest_studyminimal.rehearsal.server
import pytest_studyminimal.workspace.sessions  # noqa: F401
