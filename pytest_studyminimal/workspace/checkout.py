"""A checkout that a server reads itself: where it lies, whether it is at its pin, and clean.

Clean means that the files' own bytes are those of the pin. Git's index, attributes and filters have
no say, so nothing that the repository configures can run or hide a change. Permission bits are not
compared: what a server reads does not depend on them.
"""

# ruff: noqa: PTH115, PTH208 - names are bytes here, which pathlib cannot hold in every locale

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.workspace.git import Git, private_git
from pytest_studyminimal.workspace.objects import Objects, object_id, stream_id
from pytest_studyminimal.workspace.paths import named, path_pattern
from pytest_studyminimal.workspace.pointers import pointer
from pytest_studyminimal.workspace.trees import Entry, decode, encode, entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import BufferedReader

_LARGEST_TEXT_BYTES = 8 * 2**20
_DEEPEST_SUBMODULE = 10
_CHUNK_BYTES = 2**20


@dataclass(frozen=True)
class GitFolder:
    """A repository: its git folder, the one it shares with other work trees, and its files."""

    folder: Path
    common: Path
    work_tree: Path | None

    @property
    def objects(self) -> Path:
        """The object store."""
        return self.common / "objects"

    def head(self) -> str | None:
        """Return the id HEAD leads to; None on a branch without a commit."""
        text = _first_line(self.folder / "HEAD")
        for _ in range(5):
            if text is None or not text.startswith("ref: "):
                return text
            text = self._reference(text.removeprefix("ref: ").strip())
        return None

    def _reference(self, name: str) -> str | None:
        if not name.startswith("refs/") or ".." in name:
            return None
        loose = _first_line(self.folder / name) or _first_line(self.common / name)
        return loose or self._packed(name)

    def _packed(self, name: str) -> str | None:
        packed = self.common / "packed-refs"
        if not packed.is_file():
            return None
        with packed.open(encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
            rows = (line.rstrip("\n").split(" ", 1) for line in lines)
            return next((row[0] for row in rows if row[-1] == name), None)


def _first_line(file: Path) -> str | None:
    if not file.is_file():
        return None
    with file.open("rb") as stream:
        return decode(stream.read(8192)).split("\n", 1)[0].rstrip("\r")


def locate(source: Path) -> GitFolder:
    """Return the repository whose top folder, or whose git folder, is `source`.

    Raises CorpusError where there is none; a folder inside a checkout is not one.
    """
    work_tree = None
    folder = source
    mark = source / ".git"
    if mark.is_dir():
        folder, work_tree = mark, source
    elif mark.is_file():
        text = _first_line(mark) or ""
        if not text.startswith("gitdir: "):
            raise CorpusError("found a .git file without gitdir, required a git checkout")
        folder, work_tree = source / text.removeprefix("gitdir: "), source
    shared = _first_line(folder / "commondir")
    common = folder / shared if shared else folder
    if not (folder / "HEAD").is_file() or not (common / "objects").is_dir():
        raise CorpusError("found no git repository, required the top of a checkout or a git folder")
    if not os.access(common / "objects", os.R_OK | os.X_OK):
        raise CorpusError("found an unreadable object store, required a readable one")
    return GitFolder(folder.resolve(), common.resolve(), work_tree and work_tree.resolve())


@dataclass
class _Findings:
    changed: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    line_ends: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)


def verify_checkout(source: Path, commit: str, allowed_changes: tuple[str, ...] = ()) -> list[str]:
    """Return warnings about a checkout whose HEAD is `commit` and whose files are clean.

    Line ends are a warning, as is Git LFS content that is what its pointer says. Raises CorpusError
    for another HEAD, a changed or missing file, and a file that is neither tracked nor ignored (by
    the repository's own rules, not a user's), unless its path is among `allowed_changes`.
    """
    findings = _Findings()
    _compare(source, commit, (), findings)
    allowed = [path_pattern(entry) for entry in allowed_changes]
    for what, paths in (("changed", findings.changed), ("untracked", findings.untracked)):
        refused = [path for path in paths if not any(pattern.match(path) for pattern in allowed)]
        if refused:
            raise CorpusError(f"found {what} files ({named(refused)}), required a clean checkout")
    warnings = []
    for found, what in (
        (findings.line_ends, "the checkout's bytes differ from the pin in line ends"),
        (findings.fetched, "the checkout has Git LFS content where the pin has pointers"),
    ):
        if found:
            warnings.append(f"{what}: {named(found)}")
    return warnings


def _compare(source: Path, commit: str, parents: tuple[str, ...], findings: _Findings) -> None:
    """Compare a checkout, then its submodules; `parents` are the paths of those it lies in."""
    where = f" of {one_line('/'.join(parents), 120)}" if parents else ""
    repository = locate(source)
    if repository.work_tree is None:
        raise CorpusError("found a git folder without files, required a checkout for a server")
    head = repository.head()
    if head != commit:
        found = head if head and re.fullmatch("[0-9a-f]{40,64}", head) else "no readable commit"
        raise CorpusError(f"found HEAD{where} at {found}, required the pin {commit}")
    with private_git(commit, repository.objects) as git, Objects(git) as objects:
        entries = entries_of(objects, commit)
        comparison = _Comparison(repository.work_tree, objects, parents, findings)
        for entry in entries:
            comparison.look_at(entry)
        # Git gives a folder that is a repository of its own a slash.
        tracked = {entry.path + "/" * entry.is_submodule for entry in entries}
        findings.untracked += [
            "/".join((*parents, path)) for path in _others(git, repository) if path not in tracked
        ]


def _others(git: Git, repository: GitFolder) -> Iterator[str]:
    """Yield every file that is not ignored; without an index git calls all of them untracked."""
    arguments = ["ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"]
    private_rules = repository.common / "info" / "exclude"
    if private_rules.is_file():
        arguments.append(f"--exclude-from={private_rules}")
    status, output = git.run(*arguments, work_tree=repository.work_tree)
    if status != 0:
        raise CorpusError("found files that git cannot list, required a readable checkout")
    return (decode(path) for path in output.split(b"\0") if path)


class _Comparison:
    """Compares one work tree with the leaves of a tree, each by its own bytes."""

    def __init__(
        self, work_tree: Path, objects: Objects, parents: tuple[str, ...], findings: _Findings
    ) -> None:
        self._root = os.fsencode(work_tree)
        self._objects = objects
        self._parents = parents
        self._findings = findings
        self._folders: dict[bytes, bool] = {b"": True}

    def look_at(self, entry: Entry) -> None:
        path = encode(entry.path)
        if entry.is_submodule and entry.is_usable and _mode(self._root + b"/" + path) == 0:
            return
        kind: list[str] | None = self._findings.changed
        if entry.is_usable and self._is_folder(path.rpartition(b"/")[0]):
            place = self._root + b"/" + path
            look = self._submodule if entry.is_submodule else self._file
            kind = look(entry, place)
        if kind is not None:
            kind.append("/".join((*self._parents, entry.path)))

    def _is_folder(self, path: bytes) -> bool:
        """Whether this is a folder all the way down, with no symbolic link on it."""
        if path not in self._folders:
            self._folders[path] = self._is_folder(path.rpartition(b"/")[0]) and stat.S_ISDIR(
                _mode(self._root + b"/" + path)
            )
        return self._folders[path]

    def _submodule(self, entry: Entry, place: bytes) -> list[str] | None:
        mode = _mode(place)
        if stat.S_ISDIR(mode) and not os.listdir(place):
            return None
        is_repository = stat.S_ISDIR(mode) and _mode(place + b"/.git") != 0
        if not is_repository or len(self._parents) >= _DEEPEST_SUBMODULE:
            return self._findings.changed
        parents = (*self._parents, entry.path)
        _compare(Path(os.fsdecode(place)), entry.id, parents, self._findings)
        return None

    def _file(self, entry: Entry, place: bytes) -> list[str] | None:
        mode = _mode(place)
        if entry.is_symlink and stat.S_ISLNK(mode):
            same = object_id("blob", os.readlink(place), entry.id) == entry.id
            return None if same else self._findings.changed
        # Where symbolic links are switched off, git writes a file that says where the link leads.
        if not stat.S_ISREG(mode):
            return self._findings.changed
        with _opened(place) as stream:
            size = os.fstat(stream.fileno()).st_size
            chunks = iter(lambda: stream.read(_CHUNK_BYTES), b"")
            if stream_id("blob", chunks, size, entry.id) == entry.id:
                return None
        return self._excused(entry, place, size)

    def _excused(self, entry: Entry, place: bytes, size: int) -> list[str]:
        blob_size = self._objects.sizes([entry.id], "blob")[0]
        if blob_size > _LARGEST_TEXT_BYTES:
            return self._findings.changed
        blob = self._objects.contents([entry.id], "blob", largest_bytes=_LARGEST_TEXT_BYTES)[0]
        target = pointer(blob)
        with _opened(place) as stream:
            if target is not None and size == target.size_bytes:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
                return self._findings.fetched if digest == target.sha256 else self._findings.changed
            text = stream.read(2 * _LARGEST_TEXT_BYTES + 1)
        # No conversion of line ends more than doubles a file.
        same = size <= 2 * blob_size and text.replace(b"\r\n", b"\n") == blob.replace(
            b"\r\n", b"\n"
        )
        return self._findings.line_ends if same else self._findings.changed


def _mode(place: bytes) -> int:
    try:
        return os.lstat(place).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _opened(place: bytes) -> BufferedReader:
    handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    return os.fdopen(handle, "rb")
