"""The tree of a commit, read entry by entry from objects that were each verified by their id."""

from __future__ import annotations

import re
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_studyminimal.workspace.objects import Objects

_LARGEST_COMMIT_BYTES = 2**20
_LARGEST_TREE_BYTES = 16 * 2**20
_MOST_ENTRIES = 500_000
# Room for the folder an export lies in, under the 4,096 bytes that Linux takes for a path.
_LONGEST_PATH_BYTES = 3_000
_LONGEST_NAME_BYTES = 255
_MODE = re.compile(rb"[0-7]{1,7}")


@dataclass(frozen=True)
class Entry:
    """One leaf of a tree: a file, a symbolic link, a submodule, or a folder that no path can reach.

    `path` has the names' own bytes, as UTF-8 with surrogate escapes; `mode` is as the tree has it.
    `is_usable` is false where the path could leave a folder or fits into no file system.
    """

    path: str
    mode: int
    id: str
    is_usable: bool

    @property
    def is_file(self) -> bool:
        """A regular file, executable or not."""
        return stat.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        """A symbolic link; its blob is where it leads."""
        return stat.S_ISLNK(self.mode)

    @property
    def is_submodule(self) -> bool:
        """A commit of another repository."""
        return stat.S_IFMT(self.mode) == 0o160000


def encode(path: str) -> bytes:
    """Return the bytes of a path, whatever the locale says."""
    return path.encode("utf-8", "surrogateescape")


def decode(path: bytes) -> str:
    """Return a path as text from which `encode` makes the same bytes again."""
    return path.decode("utf-8", "surrogateescape")


def entries_of(objects: Objects, commit: str) -> list[Entry]:
    """Return every leaf of the tree of a commit, in the order of its path's bytes.

    Raises CorpusError where `commit` is not the full id of a commit, or a tree is malformed.
    """
    data = objects.contents([commit], "commit", largest_bytes=_LARGEST_COMMIT_BYTES)[0]
    first = re.match(rb"tree ([0-9a-f]+)\n", data)
    if first is None or len(first[1]) != len(commit):
        raise CorpusError(f"found a malformed commit {commit}, required one with a tree")
    leaves: list[tuple[bytes, Entry]] = []
    level = [(b"", first[1].decode("ascii"))]
    while level:
        folders: list[tuple[bytes, str]] = []
        for path, mode, target, is_usable in _rows(objects, level):
            if stat.S_ISDIR(mode) and is_usable:
                folders.append((path + b"/", target))
            else:
                leaves.append((path, Entry(decode(path), mode, target, is_usable)))
            if len(leaves) + len(folders) > _MOST_ENTRIES:
                raise CorpusError(f"found more than {_MOST_ENTRIES:,} paths, required fewer")
        level = folders
    return [entry for _, entry in sorted(leaves, key=lambda leaf: leaf[0])]


def _rows(
    objects: Objects, level: list[tuple[bytes, str]]
) -> Iterator[tuple[bytes, int, str, bool]]:
    ids = list(dict.fromkeys(tree for _, tree in level))
    contents = objects.contents(ids, "tree", largest_bytes=_LARGEST_TREE_BYTES)
    trees = dict(zip(ids, contents, strict=True))
    for prefix, tree in level:
        for mode, name, target in _parse(trees[tree], tree):
            path = prefix + name
            is_name = name not in {b"", b".", b".."} and b"/" not in name
            fits = len(name) <= _LONGEST_NAME_BYTES and len(path) <= _LONGEST_PATH_BYTES
            yield path, mode, target, is_name and fits


def _parse(content: bytes, tree: str) -> list[tuple[int, bytes, str]]:
    found: dict[bytes, tuple[int, bytes, str]] = {}
    width = len(tree) // 2
    position = 0
    while position < len(content):
        middle, end = content.find(b" ", position), content.find(b"\0", position)
        digits, name = content[position:middle], content[middle + 1 : end]
        target = content[end + 1 : end + 1 + width]
        if not position < middle < end or len(target) != width or not _MODE.fullmatch(digits):
            raise CorpusError(f"found a malformed tree {tree}, required readable entries")
        if name in found:
            twice = one_line(decode(name), 100)
            raise CorpusError(f"found {twice} twice in tree {tree}, required each name once")
        found[name] = (int(digits, 8), name, target.hex())
        position = end + 1 + width
    return list(found.values())
