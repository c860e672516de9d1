from __future__ import annotations

import pytest
from played import make_standin, make_study


@pytest.fixture
def standin(tmp_path):
    return make_standin(tmp_path)


@pytest.fixture
def study(tmp_path):
    return make_study(tmp_path)
