"""A checkout that servers read: whatever becomes of it beside their index is seen."""

from __future__ import annotations

import dataclasses

import pytest
from repos import committed, git

from pytest_studyminimal.workspace.watch import Watch


@pytest.fixture
def watch(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q", ".")
    for name, text in (("a.md", "x\n"), ("docs/b.md", "y\n"), (".gitignore", "cache/\n")):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    one = Watch(folder, committed(folder), (".index",))
    return dataclasses.replace(one, tree=one.tree_sha256())


def test_an_index_may_be_written_and_is_hashed(watch):
    before = watch.index_sha256()
    (watch.source / ".index").mkdir()
    (watch.source / ".index" / "one.json").write_text("{}")

    assert watch.changes() == ()
    assert watch.index_sha256() != before


def ignored(folder):
    (folder / "cache").mkdir()
    (folder / "cache" / "x").write_text("1")


def own_rules(folder):
    (folder / "docs" / ".gitignore").write_text("*\n")
    (folder / "docs" / "more.md").write_text("z")


def private_rules(folder):
    (folder / ".git" / "info" / "exclude").write_text("*.tmp\n")


@pytest.mark.parametrize(
    "change",
    [
        ignored,
        own_rules,
        private_rules,
        lambda folder: (folder / "a.md").write_bytes(b"x\r\n"),
        lambda folder: (folder / "a.md").chmod(0o600),
        lambda folder: (folder / "empty").mkdir(),
        lambda folder: (folder / "a.md").unlink(),
        lambda folder: (folder / "link").symlink_to("a.md"),
    ],
)
def test_any_other_change_is_found(watch, change):
    assert watch.changes() == ()
    change(watch.source)

    (line,) = watch.changes()
    assert line.startswith("checkout: ")
    assert line.isprintable()
