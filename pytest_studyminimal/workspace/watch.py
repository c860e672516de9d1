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
    """A checkout at `source` that must stay at its pin; `index` are the paths a server may write."""

    source: Path
    commit: str
    index: tuple[str, ...]

    def changes(self) -> tuple[str, ...]:
        """Return what differs from the pin by now beside the index, as public lines."""
        try:
            verify_checkout(self.source, self.commit, self.index)
        except CorpusError as error:
            return (f"checkout: {error}",)
        return ()

    def index_sha256(self) -> str:
        """Return one hash over the paths and contents of all index files, also where there are none.

        Raises CorpusError where one cannot be read.
        """
        try:
            return self._index_sha256()
        except OSError as error:
            place = one_line(str(error.filename or self.source))
            why = (error.strerror or type(error).__name__).lower()
            raise CorpusError(f"found {why}, required a readable index (in {place})") from None

    def _index_sha256(self) -> str:
        digest = hashlib.sha256()
        for path, place in sorted(self._files(b"")):
            with open(place, "rb") as stream:  # noqa: PTH123
                content = hashlib.file_digest(stream, "sha256")
            digest.update(b"%d:%s:" % (len(path), path) + content.digest())
        return digest.hexdigest()

    def _files(self, folder: bytes) -> Iterator[tuple[bytes, bytes]]:
        patterns = [path_pattern(entry) for entry in self.index]
        root = os.fsencode(self.source)
        for name in os.listdir(os.path.join(root, folder)) if patterns else ():
            path = os.path.join(folder, name)
            place = os.path.join(root, path)
            mode = os.lstat(place).st_mode
            if stat.S_ISDIR(mode):
                if path != b".git":
                    yield from self._files(path)
            elif stat.S_ISREG(mode) and any(one.match(decode(path)) for one in patterns):
                yield path, place


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
