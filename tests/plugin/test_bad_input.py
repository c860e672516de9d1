"""Bad input from the world around a study: one clear line, nothing lost, nothing spent."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess

import pytest
from providers import Response, message, text

import studies
from pytest_studyminimal.protocol import money


@pytest.fixture
def study(pytester, provider):
    return studies.make_study(pytester.path, base_url=provider.base_url)


def refused(result, pattern):
    assert result.ret == 4
    errors = [line for line in result.errlines if line.strip()]
    assert len(errors) == 1, errors
    result.stderr.fnmatch_lines([f"ERROR: {pattern}"])
    assert "Traceback" not in result.stdout.str() + result.stderr.str()


def test_a_corpus_without_a_place(study, run_pytest, provider):
    result = run_pytest("--study=pilot", study.arguments[1])
    refused(
        result,
        "corpus corpus: found no checkout, required --study-root corpus=PATH, STUDY_ROOT_CORPUS or *",
    )
    assert provider.received == []
    assert not study.ledger.exists()


def test_a_corpus_placed_by_variable_or_local_file(study, run_pytest, monkeypatch):
    (study.folder / "study.local.toml").write_text('[roots]\ncorpus = "../../checkout"\n')
    assert run_pytest("--study=pilot", study.arguments[1]).ret == 0
    (study.folder / "study.local.toml").unlink()
    monkeypatch.setenv("STUDY_ROOT_CORPUS", "checkout")
    assert run_pytest("--study=pilot", study.arguments[1]).ret == 0


def test_a_checkout_that_is_not_there(study, run_pytest):
    refused(
        run_pytest("--study=pilot", "--study-root=corpus=nowhere", study.arguments[1]),
        "corpus corpus: found no git repository, required *nowhere)",
    )


def test_a_pin_that_the_checkout_does_not_have(study, run_pytest):
    commit = studies.git(study.checkout, "rev-parse", "HEAD")
    study.edit(commit, "1" * 40)
    refused(
        run_pytest("--study=pilot", *study.arguments), "corpus corpus: found no*1111*required *"
    )


def test_a_dirty_checkout_that_a_server_reads(study, run_pytest, provider):
    study.edit("{export}", "{checkout}")
    assert run_pytest("--study=pilot", *study.arguments).ret == 0
    (study.checkout / "docs" / "budget.md").write_text("edited")
    requests = len(provider.received)
    refused(
        run_pytest("--study=pilot", *study.arguments),
        "corpus corpus: found *docs/budget.md*required *",
    )
    assert len(provider.received) == requests


def test_a_bundle_that_cannot_be_read(study, run_pytest):
    study.edit("[corpora.corpus]", '[corpora.corpus]\nbundle = "corpus.bundle"')
    refused(
        run_pytest("--study=pilot", study.arguments[1]),
        "corpus corpus: found no such file, required a git bundle*corpus.bundle)",
    )
    (study.folder / "corpus.bundle").write_bytes(b"# v2 git bundle\nnonsense")
    refused(run_pytest("--study=pilot", study.arguments[1]), "corpus corpus: found *required *")


def test_a_bundle_beside_the_study_file_needs_no_place(study, run_pytest):
    study.edit("[corpora.corpus]", '[corpora.corpus]\nbundle = "corpus.bundle"')
    studies.git(
        study.checkout, "bundle", "create", "-q", str(study.folder / "corpus.bundle"), "HEAD"
    )
    assert run_pytest("--study=pilot", study.arguments[1]).ret == 0


@pytest.mark.parametrize(
    ("argv", "pattern"),
    [
        ('["no-such-program"]', "servers.docs: *no-such-program*required *"),
        (
            '["{python}", "-c", "import sys; sys.exit(\'boom\')"]',
            "servers.docs: *exit status 1*boom*",
        ),
        ('["{python}", "-c", "print(\'Welcome\')"]', "servers.docs: *Welcome*"),
        ('["{python}", "docs_server.py", "/no/such/folder"]', "servers.docs: *"),
        ('["{engine}"]', "*{engine}*--study-root engine=PATH*"),
    ],
)
def test_a_server_that_does_not_come_up(study, run_pytest, provider, argv, pattern):
    study.edit('["{python}", "docs_server.py", "{export}"]', argv)
    refused(run_pytest("--study=pilot", *study.arguments), pattern)
    assert provider.received == []
    assert not study.ledger.exists()


def test_a_server_without_an_allowed_tool(study, run_pytest, provider):
    study.edit('"handoff.resolve"]', '"doc.write"]')
    refused(run_pytest("--study=pilot", *study.arguments), "servers.docs: *doc.write*")
    assert provider.received == []


def test_a_server_that_is_not_ready(study, run_pytest):
    study.edit(
        'tool = "doc.search", arguments = { query = "budget" }',
        'tool = "doc.get", arguments = { path = "x" }',
    )
    refused(run_pytest("--study=pilot", *study.arguments), "servers.docs: *doc.get*")


def test_a_source_of_the_answer_key_that_cannot_be_read(study, run_pytest):
    key = study.folder / "answers.toml"
    key.write_text(key.read_text().replace("docs/budget.md", "docs/private-place.md"))
    result = run_pytest("--study=pilot", *study.arguments)
    refused(result, "corpus corpus: found no readable file for source 1 of task alpha, required *")
    assert "private-place" not in result.stderr.str()


def test_a_broken_answer_key_is_refused_without_quoting_it(study, run_pytest):
    key = study.folder / "answers.toml"
    key.write_text(
        '[tasks.alpha]\npropositions = "SECRET-PROPOSITION"\nsources = ["docs/budget.md"]\n'
    )
    result = run_pytest("--study=pilot", *study.arguments)
    refused(result, "*answers.toml: tasks.alpha.propositions: *required *")
    assert "SECRET-PROPOSITION" not in result.stderr.str()


def test_the_ledger_of_another_study(study, run_pytest):
    run_pytest("--study=pilot", *study.arguments)
    study.edit('id = "tiny"', 'id = "other"')
    refused(
        run_pytest("--study=pilot", *study.arguments),
        "*ledger.sqlite3: found the ledger of study 'tiny', required the one of 'other' *",
    )


def test_a_file_that_is_no_ledger(study, run_pytest):
    study.ledger.parent.mkdir(mode=0o700)
    study.ledger.write_bytes(b"my shopping list\n" * 300)
    refused(run_pytest("--study=pilot", *study.arguments), "*ledger.sqlite3: found *required *")
    assert study.ledger.read_bytes().startswith(b"my shopping list")


def test_a_provider_that_nobody_serves(study, run_pytest, provider):
    study.edit(provider.base_url, "http://127.0.0.1:9")
    result = run_pytest("--study=pilot", *study.arguments)
    assert result.ret == 1
    first = study.last_run().lines[0].observation
    assert first.status == "failed"
    # Uncertain is charged: the ledger cannot know that nothing left.
    assert money.text(first.charged_usd) == study.records("reserve")[0].body["usd"]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "small"
    place.mkdir(mode=0o700)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=600k,mode=0700", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no small file system here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


FILL = """
import pytest
@pytest.fixture
def study_servers(study_servers):
    with open({place!r}, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
        try:
            while True:
                file.write(b"x")
        except OSError:
            pass
    return study_servers
"""


@needs_root
def test_on_a_full_disk_no_call_is_made(study, run_pytest, provider, small_disk):
    (study.folder / "conftest.py").write_text(FILL.format(place=str(small_disk / "filler")))
    place = small_disk / "ledger.sqlite3"
    result = run_pytest("--study=pilot", study.arguments[0], f"--study-ledger={place}")
    assert result.ret == 1
    assert provider.received == []
    result.stdout.fnmatch_lines(
        ["*ledger.sqlite3: found *full*required a ledger that can be written*"]
    )
    assert "Traceback" not in result.stdout.str()
    # With room again the next session starts, closes what was left, and forgets nothing.
    (small_disk / "filler").unlink()
    (study.folder / "conftest.py").unlink()
    result = run_pytest("--study=pilot", study.arguments[0], f"--study-ledger={place}")
    assert result.ret == 0


@needs_root
def test_a_disk_too_full_for_a_ledger(study, run_pytest, provider, small_disk):
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 4096)
    result = run_pytest(
        "--study=pilot", study.arguments[0], f"--study-ledger={small_disk / 'l.sqlite3'}"
    )
    refused(result, "*l.sqlite3: found *required *")
    assert provider.received == []


@needs_root
def test_a_read_only_disk(study, run_pytest, provider, small_disk):
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    result = run_pytest(
        "--study=pilot", study.arguments[0], f"--study-ledger={small_disk / 'l.sqlite3'}"
    )
    refused(result, "*l.sqlite3: found *read-only*required *")
    assert provider.received == []


@needs_root
def test_no_room_for_an_export_is_recorded_and_stops(
    study, run_pytest, provider, small_disk, monkeypatch
):
    (study.folder / "conftest.py").write_text(
        "import pathlib, tempfile, pytest\n"
        "@pytest.fixture(autouse=True)\n"
        "def _small(study_budget, monkeypatch):\n"
        f"    monkeypatch.setattr(tempfile, 'tempdir', {str(small_disk)!r})\n"
        f"    with open({str(small_disk / 'filler')!r}, 'wb', buffering=0) as file:\n"
        "        try:\n"
        "            while True: file.write(b'x' * 4096)\n"
        "        except OSError: pass\n"
    )
    result = run_pytest("--study=pilot", *study.arguments)
    assert result.ret == 1
    assert study.statuses() == ["invalid-setup", "blocked"]
    assert provider.received == []
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


def test_a_long_answer_is_whole_in_the_ledger_and_nowhere_else(study, run_pytest, provider):
    provider.serve([Response(message(text("x" * 3_000_000)))])
    result = run_pytest("--study=pilot", "-v", *study.arguments)
    assert result.ret == 0
    assert len(study.records("observation")[0].private["answer"]) == 3_000_000
    assert len(result.stdout.str()) < 20_000


def test_no_git_on_this_machine(study, run_pytest, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(
        run_pytest("--study=pilot", *study.arguments),
        "corpus corpus: found no program git*required *",
    )
    assert shutil.which("git") is None
