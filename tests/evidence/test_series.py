"""A series: whatever differs between two runs keeps their observations apart."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ledgers import environ

import pytest_studyminimal
from pytest_studyminimal.evidence.series import Series, digest_of, runner_digest

PARTS = {
    "protocol": "a" * 64,
    "answer_key": "b" * 64,
    "runner": "c" * 64,
    "runner_version": "0.1",
    "transport": "messages-api",
    "transport_version": "2023-06-01",
    "connection": "api",
    "provider": "anthropic",
    "model": "claude-haiku-5-5",
    "prices": "d" * 64,
    "servers": {"docs": "e" * 64},
    "rehearsal": False,
}
CODE = "from pytest_studyminimal.evidence.series import runner_digest; print(runner_digest())"


def test_the_same_parts_are_the_same_series_in_whatever_order():
    one, other = Series(**PARTS), Series(**dict(reversed(PARTS.items())))

    assert one.id == other.id
    assert len(one.id) == 64
    assert one.differences(other) == ()


@pytest.mark.parametrize("part", PARTS)
def test_every_part_makes_another_series_and_is_named(part):
    changed = {"servers": {"docs": "f" * 64}, "rehearsal": True}.get(part, "other")
    one, other = Series(**PARTS), Series(**PARTS | {part: changed})

    assert one.id != other.id
    assert one.differences(other) == (part,)


def test_a_server_more_or_less_is_another_series():
    assert Series(**PARTS | {"servers": {}}).differences(Series(**PARTS)) == ("servers",)


def test_parts_that_are_missing_or_unknown_are_refused():
    with pytest.raises(ValueError, match="rehearsal"):
        Series(**{name: value for name, value in PARTS.items() if name != "rehearsal"})
    with pytest.raises(ValueError, match="colour"):
        Series(**PARTS, colour="red")


def test_a_digest_is_the_sha256_of_canonical_json():
    assert digest_of({"b": 1, "a": [True, None]}) == digest_of({"a": [True, None], "b": 1.0})
    assert digest_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def of_copy(folder):
    ran = subprocess.run(
        [sys.executable, "-c", CODE],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=environ() | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    return ran.stdout.strip()


def test_a_changed_or_moved_source_file_is_another_runner(tmp_path):
    package = Path(pytest_studyminimal.__file__).parent
    copy = tmp_path / "pytest_studyminimal"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    same = of_copy(tmp_path)
    rules = copy / "protocol" / "rules.py"
    with rules.open("a") as source:
        source.write("\n")
    edited = of_copy(tmp_path)
    rules.write_bytes((package / "protocol" / "rules.py").read_bytes())
    (copy / "protocol" / "more.py").write_text("")
    longer = of_copy(tmp_path)

    assert same == runner_digest()
    assert len({same, edited, longer}) == 3
