"""A pinned corpus: verified from the commit's id down to each byte, filtered, read once."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.errors import CorpusError
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.workspace.checkout import locate, verify_checkout
from pytest_studyminimal.workspace.git import Git, private_git, unbundle
from pytest_studyminimal.workspace.objects import Objects
from pytest_studyminimal.workspace.paths import (
    LARGEST_FILE_BYTES,
    TOO_LARGE,
    Filter,
    collisions,
    named,
)
from pytest_studyminimal.workspace.pointers import pointer
from pytest_studyminimal.workspace.trees import Entry, encode, entries_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pytest_studyminimal.protocol.study import CorpusPin

_LARGEST_CORPUS_BYTES = 2**30


@dataclass(frozen=True, eq=False)
class Corpus:
    """The public files of a repository at a pin, exactly as its blobs have them.

    `files` maps path to bytes in the order of the paths' bytes. A path is UTF-8 with surrogate
    escapes, so that `path.encode("utf-8", "surrogateescape")` is the name git has. `blob_ids` maps
    the same paths to git's ids. `excluded` counts paths by the reason for which they are kept back.
    `warnings` are public lines that name the corpus.
    """

    name: str
    commit: str
    files: Mapping[str, bytes]
    blob_ids: Mapping[str, str]
    excluded: Mapping[str, int]
    warnings: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """SHA-256 over every path and blob id: equal digests mean equal files."""
        rows = (encode(path) + b"\0" + blob.encode() for path, blob in self.blob_ids.items())
        return hashlib.sha256(b"\0".join(rows)).hexdigest()


NOTHING = Corpus(name="nothing", commit="", files={}, blob_ids={}, excluded={})
"""A corpus without a file: what an agent without tools works in, and a plan before any corpus."""


def read_corpus(
    name: str,
    pin: CorpusPin,
    source: Path,
    *,
    needs_checkout: bool = False,
    allowed_changes: tuple[str, ...] = (),
) -> Corpus:
    """Read the files of `source` (a checkout, a git folder, or the pin's bundle) at the pin.

    With `needs_checkout` HEAD must be the pin and the work tree clean, for a server that reads it;
    `allowed_changes`, written like the pin's excludes, are the paths that such a server may write.
    Raises CorpusError with one line: what was found, what was required, and where.
    """
    try:
        with _opened(pin, source, needs_checkout=needs_checkout) as git, Objects(git) as objects:
            entries = entries_of(objects, pin.commit)
            rules = Filter(pin.exclude)
            chosen = _sized([entry for entry in entries if rules.keeps(entry)], objects, rules)
            files = _read(chosen, objects)
        warnings = [*_warnings(pin, rules, files)]
        if needs_checkout:
            warnings += verify_checkout(source, pin.commit, allowed_changes)
    except CorpusError as error:
        raise CorpusError(f"corpus {name}: {error} (in {one_line(str(source))})") from None
    except OSError as error:
        why = (error.strerror or type(error).__name__).lower()
        place = one_line(str(error.filename or source))
        line = f"corpus {name}: found {why}, required readable files (in {place})"
        raise CorpusError(line) from None
    return Corpus(
        name=name,
        commit=pin.commit,
        files=MappingProxyType(files),
        blob_ids=MappingProxyType({entry.path: entry.id for entry in chosen}),
        excluded=MappingProxyType(dict(sorted(rules.counts.items()))),
        warnings=tuple(f"corpus {name}: {warning}" for warning in warnings),
    )


@contextlib.contextmanager
def _opened(pin: CorpusPin, source: Path, *, needs_checkout: bool) -> Iterator[Git]:
    if pin.bundle is not None and not source.is_dir():
        if needs_checkout:
            raise CorpusError("found a bundle, required a checkout, since a server reads one")
        with private_git(pin.commit) as git:
            unbundle(git, source)
            yield git
    else:
        with private_git(pin.commit, locate(source).objects) as git:
            yield git


def _sized(entries: list[Entry], objects: Objects, rules: Filter) -> list[Entry]:
    sizes = objects.sizes([entry.id for entry in entries], "blob")
    chosen, total = [], 0
    for entry, size in zip(entries, sizes, strict=True):
        if size > LARGEST_FILE_BYTES:
            rules.count(TOO_LARGE)
            continue
        chosen.append(entry)
        total += size
    if total > _LARGEST_CORPUS_BYTES:
        required = f"at most {_LARGEST_CORPUS_BYTES:,}"
        raise CorpusError(f"found {total:,} bytes of files, required {required}")
    return chosen


def _read(entries: list[Entry], objects: Objects) -> dict[str, bytes]:
    ids = list(dict.fromkeys(entry.id for entry in entries))
    contents = objects.contents(ids, "blob", largest_bytes=LARGEST_FILE_BYTES)
    blobs = dict(zip(ids, contents, strict=True))
    return {entry.path: blobs[entry.id] for entry in entries}


def _warnings(pin: CorpusPin, rules: Filter, files: Mapping[str, bytes]) -> Iterator[str]:
    for entry in rules.unmatched:
        yield f"exclude {one_line(entry, 100)} matches no path at the pin"
    pointers = [path for path, data in files.items() if pointer(data) is not None]
    if pointers:
        yield f"found Git LFS pointers in place of files: {named(pointers)}"
    colliding = [f"{first} and {second}" for first, second in collisions(files)]
    if colliding:
        yield f"found names that some file systems take for one: {named(colliding)}"
    if not files:
        yield f"found no public file at {pin.commit}"
