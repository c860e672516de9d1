"""A read-only copy of a corpus for one attempt, and what the attempt did to it."""

# ruff: noqa: PTH101, PTH102, PTH108 - names are bytes, which pathlib cannot hold

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.workspace.inspection import FILE_MODE, FOLDER_MODE, Inspection
from pytest_studyminimal.workspace.paths import collisions
from pytest_studyminimal.workspace.removal import remove_folder
from pytest_studyminimal.workspace.trees import decode, encode

if TYPE_CHECKING:
    from types import TracebackType

    from pytest_studyminimal.workspace.corpus import Corpus

_MOST_CHANGES = 20


def export(corpus: Corpus, parent: Path | None = None) -> Export:
    """Write a fresh copy of a corpus below `parent`, by default the temporary directory.

    The copy lies in a folder of its own that nobody else can enter; its files are 0444, its folders
    0555. Close it with `with` or `remove`. Raises CorpusError where the place is inside a git
    checkout, its file system cannot hold the names, or writing fails; nothing is left behind then.
    """
    place = (parent or Path(tempfile.gettempdir())).absolute()
    _refuse_checkout(corpus, place)
    try:
        box = Path(tempfile.mkdtemp(prefix="studyminimal-export-", dir=place))
    except OSError as error:
        raise _refusal(corpus, error, place) from None
    copy = Export(corpus, box)
    try:
        _refuse_collisions(corpus, box)
        _write(corpus, os.fsencode(copy.path))
    except OSError as error:
        copy.remove()
        raise _refusal(corpus, error, place) from None
    except BaseException:
        copy.remove()
        raise
    return copy


class Export:
    """A copy of `corpus` at `path`, made by `export`; a context manager that removes it."""

    def __init__(self, corpus: Corpus, box: Path) -> None:
        self.corpus = corpus
        self.path = box / "corpus"
        self._box = box

    def changes(self) -> tuple[str, ...]:
        """Return what differs from the corpus by now, as public lines: at most 20 and a count.

        Contents are compared by their hash, and names, kinds and permissions are looked at.
        """
        found = Inspection(self.corpus, os.fsencode(self.path)).findings()
        more = len(found) - _MOST_CHANGES
        return (*found[:_MOST_CHANGES], f"and {more:,} more") if more > 0 else tuple(found)

    def remove(self) -> None:
        """Remove everything, whatever became of it, without following a link; again is no error.

        Raises CorpusError with the path where something cannot be removed.
        """
        try:
            remove_folder(os.fsencode(self._box))
        except OSError as error:
            what = f"an export that cannot be removed ({_why(error)})"
            place = one_line(str(self._box))
            raise CorpusError(
                f"corpus {self.corpus.name}: found {what}, required a removable one (in {place})"
            ) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.remove()
        except CorpusError as failure:
            # What went wrong first is what has to be seen.
            if error is None:
                raise
            error.add_note(str(failure))


def _why(error: OSError) -> str:
    return (error.strerror or type(error).__name__).lower()


def _refusal(corpus: Corpus, error: OSError, place: Path) -> CorpusError:
    name = error.filename or place
    shown = one_line(decode(name) if isinstance(name, bytes) else str(name))
    return CorpusError(
        f"corpus {corpus.name}: found {_why(error)}, required room for its export (in {shown})"
    )


def _refuse_checkout(corpus: Corpus, place: Path) -> None:
    real = place.resolve()
    for folder in (real, *real.parents):
        if os.path.lexists(folder / ".git"):
            raise CorpusError(
                f"corpus {corpus.name}: found a git checkout at {one_line(str(folder))},"
                f" required an export outside any (in {one_line(str(place))})"
            )


def _refuse_collisions(corpus: Corpus, box: Path) -> None:
    """Refuse two names that this file system, tried out in `box`, takes for one."""
    for first, second in collisions(corpus.files):
        tried, other = (encode(path.rpartition("/")[2]) for path in (first, second))
        if tried == other:
            continue  # their folders are a pair of their own
        trial = os.fsencode(box) + b"/" + tried
        os.close(os.open(trial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        is_one = os.path.lexists(os.fsencode(box) + b"/" + other)
        os.unlink(trial)
        if is_one:
            names = f"{one_line(first)} and {one_line(second)}"
            raise CorpusError(
                f"corpus {corpus.name}: found {names}, required a file system that tells them apart"
                f" (in {one_line(str(box.parent))})"
            )


def _write(corpus: Corpus, root: bytes) -> None:
    folders = [root]
    os.mkdir(root, 0o700)
    known = {b""}
    for path, data in corpus.files.items():
        name = encode(path)
        for folder in _new_folders(name, known):
            os.mkdir(root + b"/" + folder, 0o700)
            folders.append(root + b"/" + folder)
        _write_file(root + b"/" + name, data)
    for folder in reversed(folders):
        os.chmod(folder, FOLDER_MODE)


def _new_folders(name: bytes, known: set[bytes]) -> list[bytes]:
    folder = name.rpartition(b"/")[0]
    found = []
    while folder not in known:
        known.add(folder)
        found.append(folder)
        folder = folder.rpartition(b"/")[0]
    return found[::-1]


def _write_file(place: bytes, data: bytes) -> None:
    handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fchmod(handle, FILE_MODE)
    finally:
        os.close(handle)
