"""What an attempt leaves as it was: its export, and the checkouts that its servers read."""

# ruff: noqa: PTH118, PTH208 - names are bytes, which pathlib cannot hold in every locale

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.workspace.checkout import verify_checkout
from pytest_studyminimal.workspace.paths import path_pattern
from pytest_studyminimal.workspace.trees import decode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Copy(Protocol):
    def changes(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Watch:
    """A checkout at `source` that must stay at its pin; `index` are the paths a server may write.

    `tree` is the hash of everything else in it, ignored files too, as it was before the attempts.
    """

    source: Path
    commit: str
    index: tuple[str, ...]
    tree: str | None = None

    def changes(self) -> tuple[str, ...]:
        """Return what differs from the pin by now beside the index, as public lines."""
        try:
            verify_checkout(self.source, self.commit, self.index)
            changed = self.tree is not None and self.tree_sha256() != self.tree
        except CorpusError as error:
            return (f"checkout: {error}",)
        told = "checkout: found files, modes or links other than before the attempts"
        return (told,) if changed else ()

    def index_sha256(self) -> str:
        """Return one hash over the paths and contents of all index files, also where there are none.

        Raises CorpusError where one cannot be read.
        """
        return self._sha256(inside=True)

    def tree_sha256(self) -> str:
        """Return one hash over all that is no index: paths, modes, links and contents.

        Of git's own folder only the rules for ignored files count. Raises CorpusError.
        """
        return self._sha256(inside=False)

    def _sha256(self, *, inside: bool) -> str:
        digest = hashlib.sha256()
        patterns = [path_pattern(entry) for entry in self.index]
        try:
            for path, place in sorted(self._entries(b"")):
                is_index = any(one.match(decode(path)) for one in patterns)
                if is_index == inside:
                    digest.update(b"%d:%s:" % (len(path), path) + _content(place))
        except OSError as error:
            where = one_line(str(error.filename or self.source))
            why = (error.strerror or type(error).__name__).lower()
            raise CorpusError(f"found {why}, required a readable checkout (in {where})") from None
        return digest.hexdigest()

    def _entries(self, folder: bytes) -> Iterator[tuple[bytes, bytes]]:
        root = os.fsencode(self.source)
        for name in os.listdir(os.path.join(root, folder)):
            path = os.path.join(folder, name)
            place = os.path.join(root, path)
            if path == b".git":
                rules = os.path.join(place, b"info", b"exclude")
                if os.path.isfile(rules):  # noqa: PTH113
                    yield b".git/info/exclude", rules
                continue
            yield path, place
            if stat.S_ISDIR(os.lstat(place).st_mode):
                yield from self._entries(path)


def _content(place: bytes) -> bytes:
    mode = os.lstat(place).st_mode
    head = b"%o:" % mode
    if stat.S_ISLNK(mode):
        return head + hashlib.sha256(os.readlink(place)).digest()  # noqa: PTH115
    if not stat.S_ISREG(mode):
        return head
    with open(place, "rb") as stream:  # noqa: PTH123
        return head + hashlib.file_digest(stream, "sha256").digest()


@dataclass(frozen=True)
class Surroundings:
    """The export of an attempt and the checkout behind its servers, where one reads it."""

    export: _Copy
    watch: Watch | None = None

    def changes(self) -> tuple[str, ...]:
        """Return what differs from the corpus, one short line each."""
        return self.export.changes() + (self.watch.changes() if self.watch else ())

    def index_sha256(self) -> str | None:
        """Return the hash of the servers' index by now, None where no server has one."""
        return self.watch.index_sha256() if self.watch and self.watch.index else None
