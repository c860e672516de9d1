"""`[gates]` and `[margins]` of a study file: what is accepted, refused, and bound by the digest."""

from __future__ import annotations

import pytest
from manifests import TOML, refusal, write

from pytest_studyminimal.protocol.manifest import load

KEY = "a" * 64
GATES = """
[margins]
prompt_tokens = "500"
score = "0.1"

[gates]
within_margin = ["score"]
min_correctness = "0.75"
max_usd = "2.50"
max_missing = 0
"""


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "study"


def loaded(folder, text):
    write(folder, text)
    return load(folder).study


def test_they_are_part_of_the_protocol_and_a_study_without_them_keeps_its_digest(folder):
    bare = loaded(folder, TOML).digest(KEY)
    gated = loaded(folder, TOML + GATES).digest(KEY)

    assert gated != bare
    assert loaded(folder, TOML + "\n[margins]\n").digest(KEY) == bare
    assert loaded(folder, TOML + GATES.replace("0.75", "0.76")).digest(KEY) not in (bare, gated)
    assert loaded(folder, TOML + GATES.replace('"500"', '"501"')).digest(KEY) not in (bare, gated)


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('score = "0.1"', "score = 0.1", "margins.score"),
        ('score = "0.1"', 'score = "-0.1"', "margins.score"),
        ('score = "0.1"', 'joy = "0.1"', "margins.joy"),
        ('score = "0.1"\n', "", "a margin of score in [margins]"),
        ('["score"]', '["joy"]', "gates.within_margin"),
        ('["score"]', '["score", "score"]', "gates.within_margin"),
        ('min_correctness = "0.75"', 'min_correctness = "1.01"', "gates.min_correctness"),
        ('min_correctness = "0.75"', 'min_correctness = "nan"', "gates.min_correctness"),
        ('max_usd = "2.50"', "max_usd = 2.5", "gates.max_usd"),
        ('max_usd = "2.50"', 'max_usd = "unlimited"', "gates.max_usd"),
        ("max_missing = 0", "max_missing = -1", "gates.max_missing"),
        ("max_missing = 0", "max_missing = true", "gates.max_missing"),
        ("max_missing = 0", 'max_missing = "0"', "gates.max_missing"),
        ("max_missing = 0", "max_misssing = 0", "gates.max_misssing"),
    ],
)
def test_what_is_wrong_is_one_line_that_says_where(folder, old, new, found):
    assert old in GATES
    assert found in refusal(folder, TOML + GATES.replace(old, new))
