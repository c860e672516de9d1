"""What became of an export: compared with its corpus by program, nothing in it trusted."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal

from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.workspace.objects import stream_id
from pytest_studyminimal.workspace.trees import decode, encode

if TYPE_CHECKING:
    from pytest_studyminimal.workspace.corpus import Corpus

FILE_MODE = 0o444
FOLDER_MODE = 0o555
_CHUNK_BYTES = 2**20


class Inspection:
    """Looks once at an export that may have become anything.

    It opens only what should be and is a regular file, follows no link, and does not enter folders
    that were added, so that neither a pipe nor a deep tree can hold it up.
    """

    def __init__(self, corpus: Corpus, root: bytes) -> None:
        self._files = {encode(path): path for path in corpus.files}
        self._corpus = corpus
        self._root = root
        self._children: dict[bytes, set[bytes]] = {b"": set()}
        for path in self._files:
            self._expect(path)
        self._found: list[str] = []

    def _expect(self, path: bytes) -> None:
        while path:
            folder = path.rpartition(b"/")[0]
            is_known = folder in self._children
            self._children.setdefault(folder, set()).add(path)
            if is_known:
                return
            path = folder

    def findings(self) -> list[str]:
        """Return what differs, one public line each."""
        pending = [b""]
        while pending:
            folder = pending.pop()
            if self._is_folder(folder):
                pending += self._look_into(folder)
        return self._found

    def _say(self, what: str, path: bytes) -> None:
        self._found.append(f"{what}: {one_line(decode(path), 120) or '.'}")

    def _is_folder(self, path: bytes) -> bool:
        return self._is_kind(path, "folder", FOLDER_MODE)

    def _is_kind(self, path: bytes, kind: Literal["file", "folder"], mode: int) -> bool:
        """Whether it is there; says what is there instead, and whether its mode changed."""
        try:
            found = os.lstat(self._place(path)).st_mode
        except OSError as error:
            self._say("removed" if isinstance(error, FileNotFoundError) else "unreadable", path)
            return False
        if _kind(found) != kind:
            self._say(f"{kind} became a {_kind(found)}", path)
            return False
        if stat.S_IMODE(found) != mode:
            self._say(f"mode changed to {stat.S_IMODE(found):04o}", path)
        return True

    def _place(self, path: bytes) -> bytes:
        return self._root + b"/" + path if path else self._root

    def _look_into(self, folder: bytes) -> list[bytes]:
        """Return the folders expected in a folder, having looked at all else."""
        expected = self._children[folder]
        try:
            with os.scandir(self._place(folder)) as entries:
                names = {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
        except OSError:
            self._say("unreadable", folder)
            return []
        for name in sorted(names):
            path = folder + b"/" + name if folder else name
            if path not in expected:
                self._say("folder added" if names[name] else "added", path)
        for path in sorted(expected & self._files.keys()):
            self._look_at(path)
        return sorted(expected & self._children.keys(), reverse=True)

    def _look_at(self, path: bytes) -> None:
        if not self._is_kind(path, "file", FILE_MODE):
            return
        text = self._files[path]
        try:
            if not _has(
                self._place(path), self._corpus.blob_ids[text], len(self._corpus.files[text])
            ):
                self._say("changed", path)
        except OSError:
            self._say("unreadable", path)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "symbolic link"}
    return kinds.get(stat.S_IFMT(mode), "special file")


def _has(place: bytes, blob: str, size: int) -> bool:
    handle = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as stream:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            return False
        chunks = iter(lambda: stream.read(_CHUNK_BYTES), b"")
        return stream_id("blob", chunks, size, blob) == blob
