"""Objects by their full id, every byte of them hashed against it."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Literal, Self

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.workspace.git import Child

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pytest_studyminimal.workspace.git import Git

Kind = Literal["commit", "tree", "blob"]

# A chunk of ids must fit into a pipe that nobody empties yet: 16 KiB on macOS.
_CHUNK = 200


def object_id(kind: Kind, data: bytes, like: str) -> str:
    """Return the id git gives these bytes, in the hash (SHA-1 or SHA-256) of the id `like`."""
    return stream_id(kind, [data], len(data), like)


def stream_id(kind: Kind, parts: Iterable[bytes], size_bytes: int, like: str) -> str:
    """Return the id of an object that is never whole in memory."""
    digest = hashlib.new("sha1" if len(like) == 40 else "sha256", usedforsecurity=False)
    digest.update(f"{kind} {size_bytes}\0".encode())
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


class Objects:
    """Reads objects by full id through one child for sizes and one for bytes; a context manager."""

    def __init__(self, git: Git) -> None:
        self._sizes = Child(git, ("cat-file", "--batch-check"))
        self._contents = Child(git, ("cat-file", "--batch"))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._sizes)
            stack.enter_context(self._contents)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def sizes(self, ids: Sequence[str], kind: Kind) -> list[int]:
        """Return the size in bytes of each object without reading it."""
        found = []
        for chunk in _chunks(ids):
            self._sizes.ask(chunk)
            found += [self._header(self._sizes, asked, kind) for asked in chunk]
        return found

    def contents(self, ids: Sequence[str], kind: Kind, *, largest_bytes: int) -> list[bytes]:
        """Return the verified bytes of each object.

        Raises CorpusError where one is missing, of another kind, larger, or not what its id says.
        """
        found = []
        for chunk in _chunks(ids):
            self._contents.ask(chunk)
            found += [self._content(asked, kind, largest_bytes) for asked in chunk]
        return found

    def _content(self, asked: str, kind: Kind, largest_bytes: int) -> bytes:
        size = self._header(self._contents, asked, kind)
        if size > largest_bytes:
            required = f"at most {largest_bytes:,}"
            raise CorpusError(f"found {kind} {asked} of {size:,} bytes, required {required}")
        data = self._contents.read(size + 1)[:-1]
        if len(data) != size or object_id(kind, data, asked) != asked:
            raise CorpusError(f"found other bytes under the id of {kind} {asked}, required its own")
        return data

    @staticmethod
    def _header(child: Child, asked: str, kind: Kind) -> int:
        answer = child.line().split()
        if len(answer) != 3 or answer[0] != asked.encode():
            what = "an unreadable" if not answer else "no"
            raise CorpusError(
                f"found {what} {kind} {asked}, required a complete and undamaged object store"
            )
        if answer[1] != kind.encode():
            other = answer[1].decode("ascii", "replace")
            raise CorpusError(f"found a {other} under the id {asked}, required a {kind}")
        return int(answer[2])


def _chunks(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK))
