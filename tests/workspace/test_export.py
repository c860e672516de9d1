"""What an export is: a private read-only copy, checked after the attempt and always removed."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
from repos import as_ordinary_user, built, corpus_of, git, read, repository

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.workspace.export import export
from pytest_studyminimal.workspace.paths import collisions

FILES = {"a.md": b"one\n", "docs/b.md": b"two\n", "docs/deep/c.md": b"", "d.sh": b"#!/bin/sh\n"}


@pytest.fixture
def corpus(tmp_path):
    return corpus_of(tmp_path / "repo", FILES)


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    assert list(place.iterdir()) == []


def content(path):
    return {
        os.fsencode(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file()
    }


def mode(path):
    return stat.S_IMODE(path.lstat().st_mode)


def test_an_export_has_every_file_read_only_and_is_removed(corpus, temporary):
    with export(corpus) as copy:
        assert copy.path.is_relative_to(temporary)
        assert content(copy.path) == {name.encode(): data for name, data in FILES.items()}
        folders = (copy.path, *(file for file in copy.path.rglob("*") if file.is_dir()))
        assert {mode(file) for file in copy.path.rglob("*") if file.is_file()} == {0o444}
        assert {mode(folder) for folder in folders} == {0o555}
        assert mode(copy.path.parent) == 0o700
        assert copy.changes() == ()
    assert not copy.path.exists()


@pytest.mark.parametrize("name", ["attributes", "quoted_paths", "symlinks", "crlf", "sizes"])
def test_an_export_is_the_blobs_byte_for_byte(name, tmp_path):
    folder = tmp_path / "built"
    built(name, folder)
    corpus = read(folder)
    with export(corpus) as copy:
        found = content(copy.path)
        assert found == {os.fsencode(path): data for path, data in corpus.files.items()}
        for path, blob in corpus.blob_ids.items():
            file = str(copy.path / path)
            assert git(folder, "hash-object", "--no-filters", "--", file) == blob
        assert copy.changes() == ()


def test_names_are_written_with_their_own_bytes(tmp_path):
    names = [b"\xff.md", b"new\nline/caf\xe9.md", b"-rf", b" ", b"n" * 255, b"back\\slash"]
    with export(corpus_of(tmp_path / "repo", dict.fromkeys(names, b"x"))) as copy:
        assert set(content(copy.path)) == set(names)
        assert copy.changes() == ()


def test_names_are_the_same_bytes_in_a_locale_without_utf_8():
    printed = as_ordinary_user(
        r"""
        revision = repository(W / "repo", {b"caf\xc3\xa9.md": b"x"})
        with export(read(W / "repo", revision, needs_checkout=True)) as copy:
            print(sys.getfilesystemencoding(), os.listdir(os.fsencode(copy.path)), copy.changes())
        """,
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
    )
    assert printed.endswith(r"[b'caf\xc3\xa9.md'] ()")
    assert not printed.startswith("utf-8")


def test_two_exports_share_nothing(corpus):
    with export(corpus) as first, export(corpus) as second:
        assert first.path != second.path
        file = first.path / "a.md"
        assert file.lstat().st_nlink == 1
        file.chmod(0o644)
        file.write_bytes(b"changed")
        assert second.changes() == ()
        assert first.changes() != ()


def test_an_export_can_be_put_elsewhere(corpus, tmp_path):
    parent = tmp_path / "elsewhere"
    parent.mkdir()
    with export(corpus, parent) as copy:
        assert copy.path.is_relative_to(parent)
    assert list(parent.iterdir()) == []


@pytest.mark.parametrize("where", ["top", "inside", "git folder", "link", "worktree"])
def test_an_export_inside_a_checkout_is_refused(corpus, tmp_path, where):
    repo = tmp_path / "repo"
    (repo / "sub").mkdir()
    (tmp_path / "link").symlink_to(repo / "sub")
    git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    places = {"top": repo, "inside": repo / "sub", "git folder": repo / ".git" / "objects"}
    place = places.get(where, tmp_path / ("link" if where == "link" else "linked"))
    with pytest.raises(CorpusError, match=r"^corpus docs: found a git checkout at .*, required an"):
        export(corpus, place)
    assert not list(place.glob("studyminimal-*"))


def test_a_place_that_is_not_there_is_one_line(corpus, tmp_path):
    with pytest.raises(CorpusError, match=r"found no such file or directory, required room"):
        export(corpus, tmp_path / "none")


def test_a_full_disk_is_one_line_and_leaves_nothing():
    printed = as_ordinary_user("""
        revision = repository(W / "repo", {"a.md": b"x" * 500, "b/c.md": b"y" * 5000})
        corpus = read(W / "repo", revision)
        (W / "room").mkdir()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            export(corpus, W / "room")
        except CorpusError as error:
            print(error)
        print(os.listdir(W / "room"))
    """)
    line, left = printed.split("\n")
    assert line.startswith("corpus docs: found file too large, required room for its export (in ")
    assert left == "[]"


def test_names_that_differ_in_case_are_found_on_every_system():
    names = ("Docs/a.md", "docs/b.md", "x/R.md", "x/r.md", "caf\u00e9", "cafe\u0301", "stra\u00dfe")
    assert collisions(names) == [
        ("Docs", "docs"),
        ("x/R.md", "x/r.md"),
        ("caf\u00e9", "cafe\u0301"),
    ]
    assert collisions(("a/x", "b/x", "a.md", "ab")) == []


def test_names_that_differ_in_case_are_exported_or_refused_with_both(tmp_path, temporary):
    corpus = corpus_of(tmp_path / "repo", {"R.md": b"1", "r.md": b"2"})
    (temporary / "probe").touch()
    holds_both = not (temporary / "PROBE").exists()
    (temporary / "probe").unlink()
    if holds_both:
        with export(corpus) as copy:
            assert content(copy.path) == {b"R.md": b"1", b"r.md": b"2"}
    else:
        with pytest.raises(CorpusError, match=r"found R\.md and r\.md, required a file system"):
            export(corpus)


# What the attempt did.


def changes_after(corpus, act):
    with export(corpus) as copy:
        act(copy.path)
        return copy.changes()


def overwrite(path, data):
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)


def replace_by(path, make):
    parent = path.parent
    parent.chmod(0o755)
    path.unlink()
    make(path)
    parent.chmod(0o555)


def add(path, make):
    path.parent.chmod(0o755)
    make(path)
    path.parent.chmod(0o555)


def remove_folder(path):
    for file in (path, path / "deep"):
        file.chmod(0o755)
    subprocess.run(["rm", "-r", "--", str(path / "deep"), str(path / "b.md")], check=True)
    path.parent.chmod(0o755)
    path.rmdir()
    path.parent.chmod(0o555)


@pytest.mark.parametrize(
    ("act", "found"),
    [
        (lambda p: overwrite(p / "a.md", b"two\n"), ("changed: a.md",)),
        (lambda p: overwrite(p / "a.md", b"longer than it was\n"), ("changed: a.md",)),
        (lambda p: overwrite(p / "docs/deep/c.md", b"\0"), ("changed: docs/deep/c.md",)),
        (lambda p: add(p / "docs/x.md", Path.touch), ("added: docs/x.md",)),
        (lambda p: add(p / "\t\x1b[1m", Path.touch), (r"added: \x09\x1b[1m",)),
        (lambda p: add(p / "new", Path.mkdir), ("folder added: new",)),
        (lambda p: add(p / "up", lambda f: f.symlink_to("/")), ("added: up",)),
        (lambda p: replace_by(p / "a.md", lambda f: None), ("removed: a.md",)),
        (
            lambda p: replace_by(p / "a.md", lambda f: f.symlink_to("/etc/hostname")),
            ("file became a symbolic link: a.md",),
        ),
        (lambda p: replace_by(p / "a.md", os.mkfifo), ("file became a special file: a.md",)),
        (lambda p: replace_by(p / "a.md", Path.mkdir), ("file became a folder: a.md",)),
        (lambda p: (p / "a.md").chmod(0o644), ("mode changed to 0644: a.md",)),
        (lambda p: (p / "docs").chmod(0o755), ("mode changed to 0755: docs",)),
        (lambda p: p.chmod(0o700), ("mode changed to 0700: .",)),
        (lambda p: remove_folder(p / "docs"), ("removed: docs",)),
    ],
)
def test_every_kind_of_change_is_seen(corpus, act, found):
    assert changes_after(corpus, act) == found


def test_a_file_written_back_as_it_was_is_no_change(corpus):
    assert changes_after(corpus, lambda path: overwrite(path / "a.md", b"one\n")) == ()


def test_a_folder_replaced_by_a_link_to_its_own_copy_is_seen(corpus):
    def act(path):
        path.chmod(0o755)
        (path / "docs").chmod(0o755)
        (path / "docs").rename(path / "old")
        (path / "old").chmod(0o555)
        (path / "docs").symlink_to("old")
        path.chmod(0o555)

    assert changes_after(corpus, act) == (
        "folder added: old",
        "folder became a symbolic link: docs",
    )


def test_the_whole_export_may_be_gone_or_moved(corpus, tmp_path):
    with export(corpus) as copy:
        copy.path.chmod(0o755)
        copy.path.rename(copy.path.parent / "moved")
        assert copy.changes() == ("removed: .",)


def test_many_changes_are_counted(corpus):
    def act(path):
        path.chmod(0o755)
        for number in range(30):
            (path / f"{number:02}").touch()
        path.chmod(0o555)

    found = changes_after(corpus, act)
    assert len(found) == 21
    assert found[0] == "added: 00"
    assert found[-1] == "and 10 more"


def test_a_hidden_repository_of_the_attempt_is_seen(corpus):
    assert changes_after(corpus, lambda path: add(path / ".git", Path.mkdir)) == (
        "folder added: .git",
    )


def test_what_cannot_be_read_is_said():
    printed = as_ordinary_user("""
        revision = repository(W / "repo", {"a.md": b"x", "docs/b.md": b"y"})
        with export(read(W / "repo", revision)) as copy:
            os.chmod(copy.path / "a.md", 0)
            os.chmod(copy.path / "docs", 0)
            print(copy.changes())
            os.chmod(copy.path, 0)
            print(copy.changes())
            os.chmod(copy.path.parent, 0)
            print(copy.changes())
        print([name for name in os.listdir(W) if name != "repo"])
    """)
    first, second, third, left = printed.split("\n")
    assert first == (
        "('mode changed to 0000: a.md', 'unreadable: a.md',"
        " 'mode changed to 0000: docs', 'unreadable: docs')"
    )
    assert second == "('mode changed to 0000: .', 'unreadable: .')"
    assert third == "('unreadable: .',)"
    assert left == "[]"


# Removal.


def test_removing_twice_is_no_error(corpus):
    copy = export(corpus)
    copy.remove()
    copy.remove()
    with export(corpus) as other:
        other.remove()


def test_an_export_is_removed_when_the_attempt_blows_up(corpus):
    def blow_up():
        with export(corpus):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        blow_up()


def test_removal_follows_no_link(corpus, tmp_path):
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("x")
    keep.chmod(0o750)
    with export(corpus) as copy:
        for folder in (copy.path, copy.path / "docs"):
            folder.chmod(0o755)
        (copy.path / "docs" / "link").symlink_to(keep)
        (copy.path / "hard").hardlink_to(keep / "file")
        (copy.path.parent / "beside").symlink_to(keep)
    assert (keep / "file").read_text() == "x"
    assert mode(keep) == 0o750


def test_an_export_replaced_by_a_link_is_not_followed(corpus, tmp_path, temporary):
    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "file").write_text("x")
    copy = export(corpus)
    copy.path.chmod(0o755)
    copy.path.parent.rename(tmp_path / "moved")
    copy.path.parent.symlink_to(keep)
    with pytest.raises(CorpusError, match=r"found an export that cannot be removed .* \(in .*\)$"):
        copy.remove()
    copy.path.parent.unlink()
    assert (keep / "file").read_text() == "x"


HOSTILE = """
    revision = repository(W / "repo", {"a.md": b"x", "docs/b.md": b"y"})
    with export(read(W / "repo", revision)) as copy:
        os.chmod(copy.path, 0o755)
        os.chdir(copy.path)
        os.mkfifo("pipe")
        here = os.open(".", os.O_RDONLY)
        for _ in range(1300):
            os.mkdir("d" * 20, dir_fd=here)
            below = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
            os.mkdir("empty", dir_fd=below)
            os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=below))
            os.fchmod(here, 0o555)
            os.close(here)
            here = below
        os.fchmod(here, 0)
        os.close(here)
        os.chdir("/")
        print(copy.changes())
    print([name for name in os.listdir(W) if name != "repo"])
"""


def test_a_hostile_tree_is_described_and_removed_by_an_ordinary_user():
    found, left = as_ordinary_user(HOSTILE).split("\n")
    assert found == "('folder added: dddddddddddddddddddd', 'added: pipe')"
    assert left == "[]"


def test_what_cannot_be_removed_is_one_line_beside_the_first_error():
    printed = as_ordinary_user("""
        revision = repository(W / "repo", {"a.md": b"x"})
        (W / "room").mkdir()
        try:
            with export(read(W / "repo", revision), W / "room") as copy:
                os.chmod(W / "room", 0o555)
                raise RuntimeError("the attempt")
        except RuntimeError as error:
            print(error, error.__notes__)
        os.chmod(W / "room", 0o755)
        copy.remove()
        print(os.listdir(W / "room"))
    """)
    first, left = printed.split("\n")
    assert first.startswith("the attempt ['corpus docs: found an export that cannot be removed (")
    assert left == "[]"


def test_the_umask_does_not_matter(corpus):
    old = os.umask(0o077)
    try:
        with export(corpus) as copy:
            assert mode(copy.path / "docs" / "b.md") == 0o444
            assert mode(copy.path / "docs") == 0o555
    finally:
        os.umask(old)


def test_an_empty_corpus_is_an_empty_folder(tmp_path):
    repository(tmp_path / "repo", {".hidden": b""})
    with export(read(tmp_path / "repo")) as copy:
        assert list(copy.path.iterdir()) == []
        assert copy.changes() == ()
