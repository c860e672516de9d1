"""What a corpus is: the bytes of the blobs at its pin, filtered, and nothing that ran."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib

import pytest
from repos import (
    as_ordinary_user,
    blob,
    built,
    commit,
    committed,
    git,
    head,
    object_file,
    pin,
    read,
    repository,
    stored,
    tree,
    write,
)

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.workspace.corpus import read_corpus

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4242\n" % (b"a1" * 32)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "repo"


@pytest.fixture(autouse=True)
def _nothing_is_left_behind(tmp_path, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    yield
    assert list(temporary.iterdir()) == []


# The bytes are those of the blobs.


def test_attributes_do_not_change_a_byte(folder):
    built("attributes", folder)
    corpus = read(folder)
    assert dict(corpus.files) == {
        "README.md": b"hello\n",
        "VERSION.txt": b"rev $Format:%H$\n",
        "docs/plan.md": b"plan b\n",
    }
    for path, name in corpus.blob_ids.items():
        assert name == git(folder, "rev-parse", f"HEAD:{path}")


ATTRIBUTES = [
    *("ident", "eol=crlf", "eol=lf", "text", "text=auto", "working-tree-encoding=UTF-16", "crlf"),
    *("export-ignore", "export-subst", "diff=x", "binary", "-text", "filter=x", "merge=x"),
]


@pytest.mark.parametrize("place", ["tree", "info", "user"])
def test_no_attribute_of_any_place_changes_a_byte(folder, place):
    text = b"$Id$ $Format:%H$\r\nline\n"
    files = {f"{number}.md": text for number in range(len(ATTRIBUTES))}
    rules = "".join(f"{number}.md {text}\n" for number, text in enumerate(ATTRIBUTES))
    revision = repository(folder, files)
    if place == "tree":
        # Stored as an object, or else adding the files would obey it.
        rows = [(b"100644", name.encode(), blob(folder, text)) for name in sorted(files)]
        attributes = (b"100644", b".gitattributes", blob(folder, rules.encode()))
        revision = commit(folder, tree(folder, attributes, *rows))
    elif place == "info":
        (folder / ".git" / "info" / "attributes").write_text(rules)
    else:
        git(folder, "config", "core.attributesFile", str(folder / "rules"))
        (folder / "rules").write_text(rules)
    git(folder, "config", "filter.x.smudge", "false")
    git(folder, "config", "filter.x.required", "true")
    assert dict(read(folder, revision).files) == files


def test_line_ends_are_those_of_the_blob(folder):
    built("crlf", folder)
    assert dict(read(folder).files) == {
        "cr.md": b"a\rb\n",
        "crlf.md": b"one\r\ntwo\r\n",
        "lf.md": b"one\ntwo\n",
    }


def test_a_file_of_carriage_returns_alone_keeps_them(folder):
    assert read(folder, repository(folder, {"a.md": b"a\rb\r"})).files["a.md"] == b"a\rb\r"


def test_odd_names_are_kept_byte_for_byte_and_in_the_order_of_their_bytes(folder):
    built("quoted_paths", folder)
    assert list(read(folder).files) == [
        "docs/ lead.md",
        "docs/back\\slash.md",
        "docs/café.md",
        'docs/q"uote.md',
        "docs/tab\there.md",
        "docs/中文.md",
    ]


def test_names_that_are_hard_to_write_down_are_kept(folder):
    names = [
        *(
            b"new\nline.md",
            b"\xff\xfe.md",
            b"caf\xe9.md",
            b" ",
            b"trail ",
            b"-rf",
            b"a:b",
            b"*?[x]",
        ),
        *(
            b"\x01\x7f",
            b"\xe2\x80\xa8.md",
            b"%s",
            b"n" * 255,
            b"'",
            b"$(x)",
            b"HEAD",
            b"~",
            b"a\rb",
        ),
    ]
    revision = repository(folder, {b"d/" + name: name for name in names})
    corpus = read(folder, revision)
    found = [path.encode("utf-8", "surrogateescape") for path in corpus.files]
    assert found == sorted(b"d/" + name for name in names)
    assert all(
        path.encode("utf-8", "surrogateescape")[2:] == corpus.files[path] for path in corpus.files
    )


def test_composed_and_decomposed_names_are_two_files(folder):
    repository(folder, {"caf\u00e9.md": b"1", "cafe\u0301.md": b"2"})
    corpus = read(folder)
    assert sorted(corpus.files.values()) == [b"1", b"2"]
    assert "take for one" in corpus.warnings[0]


def test_names_that_differ_in_case_are_two_files_and_a_warning(folder):
    repository(folder, {"Docs/a.md": b"1", "docs/b.md": b"2", "R.md": b"3", "r.md": b"4"})
    corpus = read(folder)
    assert len(corpus.files) == 4
    assert corpus.warnings == (
        "corpus docs: found names that some file systems take for one: Docs and docs, R.md and r.md",
    )


def test_the_digest_follows_names_and_bytes(folder, tmp_path):
    first = read(folder, repository(folder, {"a.md": b"1"}))
    same = read(tmp_path / "b", repository(tmp_path / "b", {"a.md": b"1", ".x": b"hidden"}))
    other = read(tmp_path / "c", repository(tmp_path / "c", {"b.md": b"1"}))
    assert first.commit != same.commit
    assert first.digest == same.digest != other.digest


def test_a_corpus_cannot_be_changed(folder):
    corpus = read(folder, repository(folder, {"a.md": b"1"}))
    with pytest.raises(TypeError):
        corpus.files["a.md"] = b"2"


# The filter.


def test_sizes_are_bytes_and_the_limit_is_included(folder):
    built("sizes", folder)
    corpus = read(folder)
    assert {path: len(data) for path, data in corpus.files.items()} == {
        "empty.md": 0,
        "nonl.md": 10,
        "nul.bin": 4,
        "s199999.md": 199_999,
        "s200000.md": 200_000,
        "utf8.md": 200_000,
    }
    assert dict(corpus.excluded) == {"too large": 2}


KEPT_BACK = {
    "hidden": (".env", "a/.github/b.md", ".git-blame", "..a", "a/...", ".x/build/c"),
    "generated": ("node_modules/a.md", "dist/a.md", "x/build/a.md", "coverage/a", "y/dist"),
    "lockfile": (
        *("go.sum", "a/go.sum", "GO.SUM", "yarn.lock", "uv.lock", "bun.lockb", "a/Cargo.lock"),
        *("package-lock.json", "npm-shrinkwrap.json", "poetry.lock", "pnpm-lock.yaml"),
    ),
    "private name": (
        *("my-Secrets.md", "secrets/a.md", "CREDENTIAL", "aLoCk", "new.lock", "x/block/a.md"),
        *("docs/credentials.md", "clock.md", "locks/a"),
    ),
}
PUBLIC = ("a.md", "builder/a.md", "Dist/a.md", "a.git", "x.coverage", "distance.md", "e/go.sums")


def test_paths_that_are_not_public_are_kept_back_and_counted(folder):
    names = [*PUBLIC, *(path for paths in KEPT_BACK.values() for path in paths)]
    corpus = read(folder, repository(folder, dict.fromkeys(names, b"x")))
    assert sorted(corpus.files) == sorted(PUBLIC)
    assert corpus.excluded == {reason: len(paths) for reason, paths in KEPT_BACK.items()}


@pytest.mark.parametrize(
    ("exclude", "left"),
    [
        ("docs/key.md", ["a.md", "docs/key.md.txt", "docs/keys/b.md", "x/docs/key.md"]),
        ("docs", ["a.md", "x/docs/key.md"]),
        ("./docs/", ["a.md", "x/docs/key.md"]),
        ("docs/k*", ["a.md", "x/docs/key.md"]),
        ("*/key.md", ["a.md", "docs/key.md.txt", "docs/keys/b.md"]),
        ("*keys", ["a.md", "docs/key.md", "docs/key.md.txt", "x/docs/key.md"]),
        ("*", []),
    ],
)
def test_an_exclude_is_a_path_a_folder_or_a_pattern(folder, exclude, left):
    names = ["a.md", "docs/key.md", "docs/key.md.txt", "docs/keys/b.md", "x/docs/key.md"]
    repository(folder, dict.fromkeys(names, b"x"))
    corpus = read(folder, exclude=(exclude,))
    assert list(corpus.files) == left
    assert corpus.excluded["excluded by the study"] == 5 - len(left)


@pytest.mark.parametrize("exclude", ["A.md", "doc", "a?md", "[a].md", "a.md/b", "none.md"])
def test_an_exclude_that_matches_nothing_is_a_warning(folder, exclude):
    repository(folder, {"a.md": b"x", "docs/b.md": b"x"})
    corpus = read(folder, exclude=(exclude,))
    assert len(corpus.files) == 2
    assert corpus.warnings == (f"corpus docs: exclude {exclude} matches no path at the pin",)


def test_an_exclude_of_a_path_that_is_hidden_anyway_is_no_warning(folder):
    repository(folder, {"a.md": b"x", ".key": b"x"})
    assert read(folder, exclude=(".key",)).warnings == ()


def test_a_corpus_without_a_public_file_is_a_warning(folder):
    assert "no public file" in read(folder, repository(folder, {".a": b""})).warnings[0]


def test_symbolic_links_are_counted_and_never_followed(folder):
    built("symlinks", folder)
    corpus = read(folder)
    assert dict(corpus.files) == {"docs/a.md": b"a\n"}
    assert dict(corpus.excluded) == {"symbolic link": 4}


def test_submodules_are_counted_without_a_fetch_or_a_command(folder):
    built("submodule", folder)
    for needs_checkout in (False, True):
        corpus = read(folder, needs_checkout=needs_checkout)
        assert list(corpus.files) == ["a.md"]
        assert dict(corpus.excluded) == {"hidden": 1, "submodule": 1}
    assert not list(folder.rglob("PWNED"))


@pytest.mark.parametrize(
    "data",
    [
        POINTER,
        POINTER.rstrip(b"\n"),
        POINTER.replace(b"\n", b"\r\n"),
        POINTER.replace(b"git-lfs.github.com", b"hawser.github.com"),
        POINTER.replace(b"oid", b"ext-0-foo sha256:" + b"b2" * 32 + b"\noid"),
        b"\n" + POINTER + b"\n\n",
    ],
)
def test_lfs_pointers_are_kept_as_they_are_and_named(folder, data):
    corpus = read(folder, repository(folder, {"m.md": data}))
    assert corpus.files["m.md"] == data
    assert corpus.warnings == ("corpus docs: found Git LFS pointers in place of files: m.md",)


@pytest.mark.parametrize(
    "data",
    [
        b"Prose first:\n" + POINTER,
        POINTER + b"and a word of explanation after it\n",
        POINTER.split(b"\n")[0],
        POINTER.replace(b"sha256", b"sha999"),
        POINTER.replace(b"size 4242", b"size large"),
        POINTER + b"x" * 1024,
        POINTER.replace(b"git-lfs", b"other"),
    ],
)
def test_text_that_quotes_a_pointer_is_text(folder, data):
    assert read(folder, repository(folder, {"m.md": data})).warnings == ()


def test_the_pointer_of_the_example_is_named_and_the_prose_is_not(folder):
    built("lfs_pointer", folder)
    (warning,) = read(folder).warnings
    assert warning.endswith(": manual.md")


def test_many_pointers_are_counted_on_one_line(folder):
    names = [f"{number}.bin" for number in range(5)]
    (warning,) = read(folder, repository(folder, dict.fromkeys(names, POINTER))).warnings
    assert warning.endswith(": 0.bin, 1.bin, 2.bin and 2 more")


# Trees that git itself would not write.


@pytest.mark.parametrize(
    "name",
    [b"..", b".", b"", b"a/b", b"../x", b"/etc/passwd", b"docs/../../x", b"n" * 256, b"/"],
)
@pytest.mark.parametrize("mode", [b"100644", b"40000"])
def test_a_name_that_could_lead_out_is_kept_back(folder, name, mode):
    repository(folder, {"a.md": b"x"})
    data = blob(folder, b"x")
    target = data if mode == b"100644" else tree(folder, (b"100644", b"f", data))
    revision = commit(folder, tree(folder, (b"100644", b"a.md", data), (mode, name, target)))
    corpus = read(folder, revision)
    assert list(corpus.files) == ["a.md"]
    assert dict(corpus.excluded) == {"unusable path": 1}


def test_a_git_folder_inside_a_tree_is_hidden(folder):
    repository(folder, {"a.md": b"x"})
    inner = tree(folder, (b"100644", b"config", blob(folder, b"x")))
    corpus = read(folder, commit(folder, tree(folder, (b"40000", b".git", inner))))
    assert (dict(corpus.files), dict(corpus.excluded)) == ({}, {"hidden": 1})


def test_a_path_too_long_for_any_system_is_kept_back(folder):
    repository(folder, {"a.md": b"x"})
    top = tree(folder, (b"100644", b"f", blob(folder, b"x")))
    for _ in range(15):
        top = tree(folder, (b"40000", b"d" * 250, top))
    corpus = read(folder, commit(folder, top))
    assert (dict(corpus.files), dict(corpus.excluded)) == ({}, {"unusable path": 1})


def test_a_tree_bomb_is_refused(folder):
    repository(folder, {"a.md": b"x"})
    top = blob(folder, b"x")
    for mode in (b"100644", *[b"40000"] * 6):
        top = tree(folder, *((mode, b"%02d" % number, top) for number in range(10)))
    with pytest.raises(CorpusError, match="more than 500,000 paths"):
        read(folder, commit(folder, top))


@pytest.mark.parametrize(
    "content",
    [
        b"100644 a.md\0short",
        b"100644",
        b"rw a.md\0" + b"x" * 20,
        b" a\0" + b"x" * 20,
        b"9 a\0" + b"x" * 20,
    ],
)
def test_a_malformed_tree_is_one_line(folder, content):
    repository(folder, {"a.md": b"x"})
    revision = commit(folder, stored(folder, "tree", content))
    with pytest.raises(
        CorpusError, match=r"^corpus docs: found a malformed tree .* \(in .*repo\)$"
    ):
        read(folder, revision)


def test_a_name_that_is_twice_in_a_tree_is_refused(folder):
    repository(folder, {"a.md": b"x"})
    data = blob(folder, b"x")
    inner = tree(folder, (b"100644", b"f", data))
    revision = commit(folder, tree(folder, (b"100644", b"a", data), (b"40000", b"a", inner)))
    with pytest.raises(CorpusError, match="found a twice in tree"):
        read(folder, revision)


@pytest.mark.parametrize("text", [b"", b"tree zz\n", b"tree " + b"0" * 64 + b"\n", b"author x\n"])
def test_a_malformed_commit_is_one_line(folder, text):
    repository(folder, {"a.md": b"x"})
    with pytest.raises(CorpusError, match="found a malformed commit"):
        read(folder, stored(folder, "commit", text))


# The pin is the commit of that id, whatever else has its name.


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_both_hashes_of_git_are_read(folder, object_format):
    revision = repository(folder, {"d/a.md": b"x"}, object_format)
    for source in (folder, folder / ".git"):
        corpus = read_corpus("docs", pin(revision), source)
        assert corpus.blob_ids == {"d/a.md": git(folder, "rev-parse", "HEAD:d/a.md")}
    assert read(folder, revision, needs_checkout=True).files["d/a.md"] == b"x"


@pytest.mark.parametrize("kind", ["tag", "tree", "blob"])
def test_an_object_of_another_kind_is_refused(folder, kind):
    repository(folder, {"a.md": b"x"})
    git(folder, "tag", "-a", "v1", "-m", "one")
    name = git(folder, "rev-parse", {"tag": "v1", "tree": "HEAD^{tree}", "blob": "HEAD:a.md"}[kind])
    with pytest.raises(CorpusError, match=f"found a {kind} under the id {name}, required a commit"):
        read(folder, name)


@pytest.mark.parametrize("kind", ["tag", "branch"])
def test_a_ref_named_like_the_commit_does_not_shadow_it(folder, kind):
    first = repository(folder, {"a.md": b"first"})
    write(folder, {"a.md": b"second"})
    second = committed(folder)
    space = "tags" if kind == "tag" else "heads"
    (folder / ".git" / "refs" / space / first).write_text(second + "\n")
    assert read(folder, first).files["a.md"] == b"first"


def test_a_ref_named_like_a_commit_that_is_not_there_does_not_stand_in_for_it(folder):
    revision = repository(folder, {"a.md": b"x"})
    (folder / ".git" / "refs" / "heads" / ("a" * 40)).write_text(revision + "\n")
    with pytest.raises(CorpusError, match="found no commit " + "a" * 40):
        read(folder, "a" * 40)


def test_a_short_id_of_a_longer_hash_is_refused(folder):
    revision = repository(folder, {"a.md": b"x"}, "sha256")
    with pytest.raises(CorpusError, match="found no commit"):
        read(folder, revision[:40])


@pytest.mark.parametrize("kind", ["commit", "tree", "blob"])
def test_replacements_change_nothing(folder, kind, tmp_path):
    first = repository(folder, {"a.md": b"first"})
    write(folder, {"a.md": b"second"})
    second = committed(folder)
    path = {"commit": "", "tree": "^{tree}", "blob": ":a.md"}[kind]
    old, new = (git(folder, "rev-parse", revision + path) for revision in (first, second))
    git(folder, "replace", old, new)
    assert read(folder, first).files["a.md"] == b"first"


def test_grafts_and_shallow_files_change_nothing(folder, tmp_path):
    repository(folder, {"a.md": b"first"})
    write(folder, {"a.md": b"second"})
    second = committed(folder)
    (folder / ".git" / "info" / "grafts").write_text(f"{second}\n")
    assert read(folder, second).files["a.md"] == b"second"
    git(tmp_path, "clone", "-q", "--depth=1", folder.as_uri(), "shallow")
    assert read(tmp_path / "shallow", needs_checkout=True).files["a.md"] == b"second"


def test_a_false_commit_graph_is_not_believed(folder):
    first = repository(folder, {"a.md": b"first"})
    write(folder, {"a.md": b"second"})
    second = committed(folder)
    git(folder, "commit-graph", "write", "--reachable")
    graph = folder / ".git" / "objects" / "info" / "commit-graph"
    trees = [bytes.fromhex(git(folder, "rev-parse", name + "^{tree}")) for name in (first, second)]
    graph.chmod(0o644)
    graph.write_bytes(graph.read_bytes().replace(trees[0], trees[1]))
    assert read(folder, first).files["a.md"] == b"first"


# The repository may be kept in any way.


def test_every_way_of_keeping_a_repository_is_read(folder, tmp_path):
    revision = repository(folder, {"d/a.md": b"x", "b.md": b"y"})
    git(tmp_path, "clone", "-q", "--bare", str(folder), "bare.git")
    git(tmp_path, "clone", "-q", "--shared", str(folder), "shared")
    git(folder, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    git(
        tmp_path, "clone", "-q", f"--separate-git-dir={tmp_path / 'apart'}", str(folder), "separate"
    )
    git(tmp_path, "clone", "-q", str(folder), "packed")
    git(tmp_path / "packed", "gc", "-q")
    (tmp_path / "link").symlink_to(folder)
    for name in ("repo", "repo/.git", "bare.git", "shared", "linked", "separate", "packed", "link"):
        assert dict(read(tmp_path / name, revision).files) == {"b.md": b"y", "d/a.md": b"x"}
    for name in ("repo", "shared", "linked", "separate", "packed", "link"):
        assert read(tmp_path / name, revision, needs_checkout=True).warnings == ()
    for name in ("repo/.git", "bare.git"):
        with pytest.raises(
            CorpusError, match="found a git folder without files, required a checkout"
        ):
            read(tmp_path / name, revision, needs_checkout=True)


@pytest.mark.parametrize("what", ["missing", "plain", "inside", "file", "empty mark", "loop"])
def test_what_is_not_the_top_of_a_repository_is_refused(folder, tmp_path, what):
    revision = repository(folder, {"d/a.md": b"x"})
    other = tmp_path / "other"
    places = {"missing": tmp_path / "none", "inside": folder / "d", "file": folder / "d" / "a.md"}
    if what == "plain":
        other.mkdir()
    elif what == "empty mark":
        other.mkdir()
        (other / ".git").write_text("")
    elif what == "loop":
        other.mkdir()
        (other / ".git").symlink_to(".git")
    source = places.get(what, other)
    with pytest.raises(CorpusError, match=r"^corpus docs: found .*, required .* \(in .*\)$"):
        read_corpus("docs", pin(revision), source)


def test_a_commit_that_is_not_there_is_named(folder):
    repository(folder, {"a.md": b"x"})
    with pytest.raises(CorpusError) as caught:
        read(folder, "0" * 40)
    assert str(caught.value) == (
        f"corpus docs: found no commit {'0' * 40}, required a complete and undamaged object store"
        f" (in {folder})"
    )


@pytest.mark.parametrize("kind", ["blob", "tree", "commit"])
@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "other", "gone", "directory"])
def test_damaged_objects_are_found(folder, kind, damage):
    revision = repository(folder, {"d/a.md": b"first" * 50, "d/b.md": b"other"})
    path = {"commit": "", "tree": ":d", "blob": ":d/a.md"}[kind]
    file = object_file(folder, git(folder, "rev-parse", revision + path))
    data = file.read_bytes()
    file.chmod(0o644)
    file.unlink()
    if damage == "other":
        content = b"changed" * 50
        file.write_bytes(zlib.compress(b"%s %d\0%s" % (kind.encode(), len(content), content)))
    elif damage == "directory":
        file.mkdir()
    elif damage != "gone":
        file.write_bytes({"cut": data[:-8], "noise": b"noise" * 20, "empty": b""}[damage])
    with pytest.raises(CorpusError, match=r"^corpus docs: found (no|an unreadable|other bytes)"):
        read(folder, revision)


def test_an_object_that_can_never_be_read_ends_at_the_deadline(folder, monkeypatch):
    monkeypatch.setattr("pytest_studyminimal.workspace.git._DEADLINE_S", 0.3)
    revision = repository(folder, {"a.md": b"x"})
    file = object_file(folder, git(folder, "rev-parse", "HEAD:a.md"))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(CorpusError, match=r"found git still busy after 0\.3 s, required an answer"):
        read(folder, revision)


def test_a_damaged_pack_is_found(folder):
    revision = repository(folder, {"a.md": os.urandom(5000)})
    git(folder, "gc", "-q")
    (pack,) = (folder / ".git" / "objects" / "pack").glob("*.pack")
    pack.chmod(0o644)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 0xFF
    pack.write_bytes(data)
    with pytest.raises(CorpusError, match=r"found (no|an unreadable|other bytes)"):
        read(folder, revision)


def test_a_file_that_is_kept_back_may_be_missing(folder):
    revision = repository(folder, {"a.md": b"x", ".hidden": b"hidden"})
    object_file(folder, git(folder, "rev-parse", "HEAD:.hidden")).unlink()
    assert list(read(folder, revision).files) == ["a.md"]


# Nothing runs.


def everything_that_runs(folder, marker):
    """Configure every program that git is known to start."""
    script = folder.parent / "program"
    script.write_text(f'#!/bin/sh\necho "$0 $*" >> {marker}\ncat\n')
    script.chmod(0o755)
    for name in (
        *("core.fsmonitor", "core.pager", "core.sshCommand", "core.editor", "core.askPass"),
        *("core.gitProxy", "core.alternateRefsCommand", "diff.external", "diff.x.textconv"),
        *("diff.x.command", "filter.x.clean", "filter.x.smudge", "filter.x.process"),
        *("credential.helper", "gpg.program", "gpg.ssh.program", "uploadpack.packObjectsHook"),
        *("sequence.editor", "interactive.diffFilter", "merge.x.driver", "pager.cat-file"),
        *("pager.ls-files", "remote.origin.uploadpack", "remote.origin.vcs", "trailer.x.command"),
    ):
        git(folder, "config", name, str(script))
    for alias in ("cat-file", "ls-files", "ls-tree", "rev-parse", "status", "bundle"):
        git(folder, "config", f"alias.{alias}", f"!{script}")
    hooks = folder.parent / "hooks"
    hooks.mkdir()
    git(folder, "config", "core.hooksPath", str(hooks))
    for place in (hooks, folder / ".git" / "hooks"):
        for hook in (
            "fsmonitor-watchman",
            "post-checkout",
            "reference-transaction",
            "post-index-change",
        ):
            (place / hook).unlink(missing_ok=True)
            (place / hook).symlink_to(script)
    (folder / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {script}\n")
    git(folder, "config", "include.path", "more")
    git(folder, "config", f"includeIf.gitdir:{folder}/.path", "more")
    (folder / ".git" / "info" / "attributes").write_text("* filter=x diff=x merge=x\n")


@pytest.mark.parametrize("needs_checkout", [False, True])
def test_no_configured_program_runs(folder, tmp_path, needs_checkout):
    revision = repository(folder, {"a.md": b"x"})
    marker = tmp_path / "MARKER"
    everything_that_runs(folder, marker)
    assert read(folder, revision, needs_checkout=needs_checkout).files["a.md"] == b"x"
    assert not marker.exists()


@pytest.mark.parametrize("needs_checkout", [False, True])
def test_the_programs_of_the_example_do_not_run(tmp_path, needs_checkout):
    notes = built("config_runs_code", tmp_path / "repo")
    assert "plain git status ran: fsmonitor" in notes
    read(tmp_path / "repo", notes.split("\n")[1], needs_checkout=needs_checkout)
    assert not (tmp_path / "MARKER").exists()


@pytest.mark.parametrize(
    "line",
    [
        "[core]\n\tworktree = /nonexistent\n",
        "[core]\n\tbare = true\n",
        "[core]\n\trepositoryformatversion = 99\n",
        "[extensions]\n\tunknown = 1\n[core]\n\trepositoryformatversion = 1\n",
        "[include]\n\tpath = /nonexistent\n",
        "not a configuration",
        "[core]\n\tsparseCheckout = true\n\tignoreCase = true\n\tquotePath = true\n\tautocrlf = true\n",
    ],
)
def test_the_configuration_of_a_corpus_is_not_even_read(folder, line):
    revision = repository(folder, {"a.md": b"x"})
    with (folder / ".git" / "config").open("a") as config:
        config.write(line)
    assert read(folder, revision, needs_checkout=True).files["a.md"] == b"x"


def test_a_git_in_a_relative_part_of_the_path_is_not_ours(folder, tmp_path, monkeypatch):
    revision = repository(folder, {"a.md": b"x"})
    program = folder / "git"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'MARKER'}\n")
    program.chmod(0o755)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    assert read(folder, revision).files["a.md"] == b"x"
    assert not (tmp_path / "MARKER").exists()


def test_a_missing_git_is_one_line(folder, monkeypatch):
    revision = repository(folder, {"a.md": b"x"})
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(CorpusError, match="found no program git, required one on PATH"):
        read(folder, revision)


def test_inherited_variables_of_git_change_nothing(tmp_path, monkeypatch):
    folder = tmp_path / "both"
    built("environment", folder)
    real, other = folder / "real", folder / "other"
    revision = head(real)
    before = {file: file.read_bytes() for file in other.rglob("*") if file.is_file()}
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path / 'MARKER'}\n")
    trap.chmod(0o755)
    dot_git = str(other / ".git")
    for name, value in {
        "GIT_DIR": dot_git,
        "GIT_COMMON_DIR": dot_git,
        "GIT_WORK_TREE": str(other),
        "GIT_INDEX_FILE": f"{dot_git}/index",
        "GIT_OBJECT_DIRECTORY": f"{dot_git}/objects",
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{dot_git}/objects",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.fsmonitor",
        "GIT_CONFIG_VALUE_0": str(trap),
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor'='{trap}'",
        "GIT_CONFIG": f"{dot_git}/config",
        "GIT_EXEC_PATH": str(tmp_path),
        "GIT_EXTERNAL_DIFF": str(trap),
        "GIT_SSH_COMMAND": str(trap),
        "GIT_PAGER": str(trap),
        "GIT_NAMESPACE": "x",
        "GIT_CEILING_DIRECTORIES": str(tmp_path),
        "GIT_SHALLOW_FILE": str(trap),
        "GIT_REPLACE_REF_BASE": "refs/heads/",
        "GIT_GRAFT_FILE": str(trap),
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_LITERAL_PATHSPECS": "1",
        "GIT_TRACE": str(tmp_path / "TRACE"),
        "GIT_TRACE2_EVENT": str(tmp_path / "TRACE"),
        "GIT_QUARANTINE_PATH": dot_git,
        "GIT_PREFIX": "x/",
    }.items():
        monkeypatch.setenv(name, value)
    for needs_checkout in (False, True):
        corpus = read(real, revision, needs_checkout=needs_checkout)
        assert dict(corpus.files) == {"who.md": b"real\n"}
    assert {file: file.read_bytes() for file in other.rglob("*") if file.is_file()} == before
    assert not (tmp_path / "MARKER").exists()
    assert not (tmp_path / "TRACE").exists()


def test_a_partial_clone_is_refused_and_nothing_is_fetched(folder, tmp_path):
    revision = repository(folder, {"a.md": b"x"})
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--no-checkout", "--filter=blob:none", folder.as_uri(), "partial")
    partial = tmp_path / "partial"
    marker = tmp_path / "MARKER"
    git(partial, "config", "remote.origin.url", f"ext::sh -c touch% {marker}")
    git(partial, "config", "protocol.ext.allow", "always")
    objects = sorted((partial / ".git" / "objects").rglob("*"))
    with pytest.raises(CorpusError, match=r"found no blob .*, required a complete"):
        read(partial, revision)
    assert sorted((partial / ".git" / "objects").rglob("*")) == objects
    assert not marker.exists()


def test_a_partial_clone_that_has_every_file_is_read(folder, tmp_path):
    revision = repository(folder, {"a.md": b"x", ".hidden": b"y" * 5000})
    git(folder, "config", "uploadpack.allowFilter", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:limit=1k", "-n", folder.as_uri(), "partial")
    assert list(read(tmp_path / "partial", revision).files) == ["a.md"]


def test_reading_writes_nothing_to_the_repository(folder):
    revision = repository(folder, {"a.md": b"x"})

    def seen():
        return {
            (file, file.lstat().st_mtime_ns, file.lstat().st_ctime_ns) for file in folder.rglob("*")
        }

    before = seen()
    read(folder, revision, needs_checkout=True)
    assert seen() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_root_reads_the_checkout_of_another_user(folder):
    revision = repository(folder, {"a.md": b"x"})
    for file in (folder, *folder.rglob("*")):
        os.chown(file, 65534, 65534, follow_symlinks=False)
    assert read(folder, revision, needs_checkout=True).files["a.md"] == b"x"


def test_an_ordinary_user_reads_a_checkout():
    printed = as_ordinary_user("""
        revision = repository(W / "repo", {"a.md": b"x"})
        print(dict(read(W / "repo", revision, needs_checkout=True).files))
        os.chmod(W / "repo" / ".git" / "objects", 0)
        try:
            read(W / "repo", revision)
        except CorpusError as error:
            print("unreadable object store" in str(error))
        os.chmod(W / "repo" / ".git" / "objects", 0o755)
        os.chmod(W / "repo" / "a.md", 0)
        try:
            read(W / "repo", revision, needs_checkout=True)
        except CorpusError as error:
            print("permission denied" in str(error))
    """)
    assert printed.split("\n") == ["{'a.md': b'x'}", "True", "True"]


# Bundles.


def bundled(folder, tmp_path, *arguments):
    bundle = tmp_path / "study" / "corpus.bundle"
    bundle.parent.mkdir(exist_ok=True)
    git(folder, "bundle", "create", "-q", str(bundle), *(arguments or ("HEAD",)))
    return bundle


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_a_bundle_is_read_and_its_folder_is_left_alone(folder, tmp_path, object_format):
    revision = repository(folder, {"d/a.md": b"x"}, object_format)
    bundle = bundled(folder, tmp_path)
    bundle.chmod(0o444)
    corpus = read_corpus("docs", pin(revision, bundle="corpus.bundle"), bundle)
    assert dict(corpus.files) == {"d/a.md": b"x"}
    assert list(bundle.parent.iterdir()) == [bundle]


def test_a_checkout_may_stand_in_for_the_bundle(folder):
    revision = repository(folder, {"a.md": b"x"})
    given = pin(revision, bundle="corpus.bundle")
    assert read_corpus("docs", given, folder, needs_checkout=True).files["a.md"] == b"x"


@pytest.mark.parametrize(
    "damage", ["cut", "noise", "empty", "missing", "prerequisite", "filtered", "pipe"]
)
def test_a_bundle_that_is_not_complete_is_one_line(folder, tmp_path, damage):
    repository(folder, {"a.md": os.urandom(9000)})
    write(folder, {"b.md": b"y"})
    revision = committed(folder)
    arguments = {"prerequisite": ("main", "^main~1"), "filtered": ("--filter=blob:none", "main")}
    bundle = bundled(folder, tmp_path, *arguments.get(damage, ()))
    data = bundle.read_bytes()
    if damage in {"missing", "pipe"}:
        bundle.unlink()
    if damage == "pipe":
        os.mkfifo(bundle)
    if damage in {"cut", "noise", "empty"}:
        bundle.write_bytes({"cut": data[:-3000], "noise": os.urandom(500), "empty": b""}[damage])
    with pytest.raises(
        CorpusError, match=r"^corpus docs: found [^\n]*, required [^\n]*\(in [^\n]*bundle\)$"
    ):
        read_corpus("docs", pin(revision, bundle="corpus.bundle"), bundle)


def test_a_bundle_without_the_pin_is_refused(folder, tmp_path):
    repository(folder, {"a.md": b"x"})
    bundle = bundled(folder, tmp_path)
    write(folder, {"a.md": b"y"})
    with pytest.raises(CorpusError, match="found no commit"):
        read_corpus("docs", pin(committed(folder), bundle="corpus.bundle"), bundle)


def test_a_bundle_is_no_checkout_for_a_server(folder, tmp_path):
    revision = repository(folder, {"a.md": b"x"})
    bundle = bundled(folder, tmp_path)
    with pytest.raises(CorpusError, match="found a bundle, required a checkout"):
        read_corpus("docs", pin(revision, bundle="corpus.bundle"), bundle, needs_checkout=True)


# Checkouts that a server reads itself.


def test_a_dirty_checkout_is_fine_where_only_blobs_are_read(folder):
    revision = repository(folder, {"a.md": b"x"})
    write(folder, {"a.md": b"changed", "new.md": b"new"})
    assert dict(read(folder, revision).files) == {"a.md": b"x"}


def test_line_ends_of_the_checkout_are_a_warning(folder):
    built("crlf", folder)
    (warning,) = read(folder, needs_checkout=True).warnings
    assert warning == "corpus docs: the checkout's bytes differ from the pin in line ends: lf.md"


def replaced(file, make):
    file.unlink()
    make(file)


def behind_a_link(folder):
    (folder / "docs").rename(folder / ".git" / "docs")
    (folder / "docs").symlink_to(".git/docs")
    (folder / ".git" / "info" / "exclude").write_text("docs\n")


def edited(folder, *before, after=()):
    if before:
        git(folder, *before)
    (folder / "docs" / "a.md").write_bytes(b"y\nx\n")
    if after:
        git(folder, *after)


def ignored(folder):
    (folder / ".git" / "info" / "exclude").write_text("docs/\n")
    edited(folder)


HIDING = ("update-index", "--assume-unchanged", "docs/a.md")
SKIPPING = ("update-index", "--skip-worktree", "docs/a.md")
CHANGES = {
    "edited": edited,
    "white space": lambda folder: (folder / "docs/a.md").write_bytes(b"x\n y\n"),
    "lone carriage returns": lambda folder: (folder / "docs/a.md").write_bytes(b"x\ry\r"),
    "deleted": lambda folder: (folder / "docs/a.md").unlink(),
    "a link": lambda folder: replaced(folder / "docs/a.md", lambda f: f.symlink_to("../b.md")),
    "a pipe": lambda folder: replaced(folder / "docs/a.md", os.mkfifo),
    "behind a link": behind_a_link,
    "assumed unchanged": lambda folder: edited(folder, *HIDING),
    "skipped": lambda folder: edited(folder, *SKIPPING),
    "ignored": ignored,
    "staged": lambda folder: edited(folder, after=("add", "-A")),
    "another target": lambda folder: replaced(folder / "link", lambda f: f.symlink_to("docs/a.md")),
}


@pytest.mark.parametrize("how", CHANGES)
def test_a_changed_file_is_refused_by_name_however_it_is_hidden(folder, how):
    revision = repository(folder, {"docs/a.md": b"x\ny\n", "b.md": b"x\ny\n"})
    (folder / "link").symlink_to("b.md")
    revision = committed(folder)
    assert read(folder, revision, needs_checkout=True).warnings == ()
    CHANGES[how](folder)
    name = "link" if how == "another target" else "docs/a.md"
    with pytest.raises(
        CorpusError, match=rf"found changed files \({name}\), required a clean checkout"
    ):
        read(folder, revision, needs_checkout=True)
    assert read(folder, revision).files["docs/a.md"] == b"x\ny\n"


def test_files_that_are_not_public_must_be_clean_as_well(folder):
    revision = repository(folder, {".env": b"x", "a.md": b"x"})
    write(folder, {".env": b"y"})
    with pytest.raises(CorpusError, match=r"changed files \(\.env\)"):
        read(folder, revision, needs_checkout=True)


def test_untracked_files_are_refused_up_to_three_by_name(folder):
    revision = repository(folder, {"a.md": b"x"})
    write(folder, {f"new/{number}\t.md": b"y" for number in range(5)})
    with pytest.raises(CorpusError) as caught:
        read(folder, revision, needs_checkout=True)
    names = r"new/0\x09.md, new/1\x09.md, new/2\x09.md and 2 more"
    assert f"found untracked files ({names}), required a clean checkout" in str(caught.value)


def test_ignored_files_are_the_servers_own_business(folder):
    revision = repository(
        folder, {"a.md": b"x", ".gitignore": b"*.idx\n", "d/.gitignore": b"out/\n"}
    )
    (folder / ".git" / "info" / "exclude").write_text("private\n")
    write(folder, {"x.idx": b"", "d/out/y": b"", "private": b""})
    assert read(folder, revision, needs_checkout=True).warnings == ()
    write(folder, {"out/y": b""})
    with pytest.raises(CorpusError, match=r"untracked files \(out/y\)"):
        read(folder, revision, needs_checkout=True)


def test_the_ignore_rules_of_a_users_configuration_do_not_count(folder, tmp_path):
    revision = repository(folder, {"a.md": b"x"})
    (tmp_path / "rules").write_text("*\n")
    git(folder, "config", "core.excludesFile", str(tmp_path / "rules"))
    write(folder, {"new.md": b""})
    with pytest.raises(CorpusError, match=r"untracked files \(new\.md\)"):
        read(folder, revision, needs_checkout=True)


def test_a_repository_inside_the_checkout_is_untracked(folder):
    revision = repository(folder, {"a.md": b"x"})
    repository(folder / "inner", {"b.md": b"x"})
    with pytest.raises(CorpusError, match=r"untracked files \(inner/\)"):
        read(folder, revision, needs_checkout=True)


@pytest.mark.parametrize("allowed", ["index", "index/x.json", "*.json", "a.md"])
def test_what_a_server_writes_may_be_allowed(folder, allowed):
    revision = repository(folder, {"a.md": b"x", "index/x.json": b"{}"})
    write(folder, {"a.md" if allowed == "a.md" else "index/x.json": b"changed"})
    assert read(folder, revision, needs_checkout=True, allowed_changes=(allowed,)).warnings == ()
    with pytest.raises(CorpusError, match="changed files"):
        read(folder, revision, needs_checkout=True, allowed_changes=("other",))


@pytest.mark.parametrize("how", ["detached", "branch", "packed", "symbolic"])
def test_head_may_be_at_the_pin_in_any_way(folder, how):
    revision = repository(folder, {"a.md": b"x"})
    if how == "detached":
        git(folder, "checkout", "-q", "--detach")
    elif how == "packed":
        git(folder, "pack-refs", "--all")
    elif how == "symbolic":
        git(folder, "symbolic-ref", "refs/heads/other", "refs/heads/main")
        git(folder, "symbolic-ref", "HEAD", "refs/heads/other")
    assert read(folder, revision, needs_checkout=True).files["a.md"] == b"x"


def test_another_head_is_refused_though_the_files_are_the_same(folder):
    first = repository(folder, {"a.md": b"x"})
    git(folder, "commit", "-q", "--allow-empty", "-m", "two")
    with pytest.raises(
        CorpusError, match=f"found HEAD at {head(folder)}, required the pin {first}"
    ):
        read(folder, first, needs_checkout=True)


@pytest.mark.parametrize(
    "text", ["", "ref: refs/heads/none\n", "ref: ../../x\n", "ref: HEAD\n", "zz\n"]
)
def test_a_head_without_a_commit_is_refused(folder, text):
    revision = repository(folder, {"a.md": b"x"})
    (folder / ".git" / "HEAD").write_text(text)
    with pytest.raises(CorpusError, match="found HEAD at no readable commit"):
        read(folder, revision, needs_checkout=True)


def test_permission_bits_and_the_index_do_not_make_a_checkout_dirty(folder):
    revision = repository(folder, {"a.md": b"x"})
    (folder / "a.md").chmod(0o755)
    (folder / ".git" / "index").unlink()
    assert read(folder, revision, needs_checkout=True).warnings == ()


def test_fetched_lfs_content_is_a_warning_where_it_is_what_the_pointer_says(folder):
    content = b"the manual\n" * 400
    digest = hashlib.sha256(content).hexdigest().encode()
    text = POINTER.replace(b"a1" * 32, digest).replace(b"4242", b"%d" % len(content))
    revision = repository(folder, {"m.md": text})
    write(folder, {"m.md": content})
    warnings = read(folder, revision, needs_checkout=True).warnings
    assert warnings[1].endswith("has Git LFS content where the pin has pointers: m.md")
    write(folder, {"m.md": content[:-2] + b"X\n"})
    with pytest.raises(CorpusError, match=r"changed files \(m\.md\)"):
        read(folder, revision, needs_checkout=True)


def with_submodule(folder, tmp_path):
    """Make a repository with a submodule that has a submodule."""
    for name, inner in (("inner", None), ("lib", "inner")):
        repository(tmp_path / name, {"b.md": b"y"})
        if inner:
            git(tmp_path / name, "submodule", "--quiet", "add", str(tmp_path / inner), "deep")
            committed(tmp_path / name)
    repository(folder, {"a.md": b"x"})
    git(folder, "submodule", "--quiet", "add", str(tmp_path / "lib"), "vendor/lib")
    git(folder, "submodule", "--quiet", "update", "--init", "--recursive")
    return committed(folder)


def test_submodules_are_compared_with_their_own_pins(folder, tmp_path):
    revision = with_submodule(folder, tmp_path)
    corpus = read(folder, revision, needs_checkout=True)
    assert list(corpus.files) == ["a.md"]
    deep = folder / "vendor" / "lib" / "deep"
    write(deep, {"b.md": b"changed"})
    with pytest.raises(CorpusError, match=r"changed files \(vendor/lib/deep/b\.md\)"):
        read(folder, revision, needs_checkout=True)
    write(deep, {"b.md": b"y", "new.md": b""})
    with pytest.raises(CorpusError, match=r"untracked files \(vendor/lib/deep/new\.md\)"):
        read(folder, revision, needs_checkout=True)
    (deep / "new.md").unlink()
    (folder / "vendor" / "lib" / ".git").rename(folder / ".git" / "kept")
    with pytest.raises(CorpusError, match=r"changed files \(vendor/lib\)"):
        read(folder, revision, needs_checkout=True)
    (folder / ".git" / "kept").rename(folder / "vendor" / "lib" / ".git")
    git(deep, "commit", "-q", "--allow-empty", "-m", "two")
    with pytest.raises(CorpusError, match="found HEAD of vendor/lib/deep at"):
        read(folder, revision, needs_checkout=True)


def test_a_large_tracked_file_is_compared_without_being_held(folder):
    revision = repository(folder, {"a.md": b"x", "big.bin": bytes(9_000_000)})
    assert read(folder, revision, needs_checkout=True).warnings == ()
    write(folder, {"big.bin": bytes(8_999_999) + b"1"})
    with pytest.raises(CorpusError, match=r"changed files \(big\.bin\)"):
        read(folder, revision, needs_checkout=True)
