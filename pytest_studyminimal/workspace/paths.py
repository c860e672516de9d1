"""Which files of a repository an attempt may see."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pytest_studyminimal.workspace.trees import Entry

LARGEST_FILE_BYTES = 200_000
TOO_LARGE = "too large"

_GENERATED = frozenset({"node_modules", "dist", "build", "coverage"})
# Most lockfiles are kept out by the word lock in their names; these say what they are as well.
_LOCKFILES = frozenset(
    name.lower()
    for name in (
        *("package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml"),
        *("bun.lock", "bun.lockb", "deno.lock", "uv.lock", "poetry.lock", "pdm.lock"),
        *("Pipfile.lock", "conda-lock.yml", "Cargo.lock", "go.sum", "go.work.sum"),
        *("Gemfile.lock", "composer.lock", "mix.lock", "pubspec.lock", "flake.lock"),
        *("Podfile.lock", "Package.resolved", "Cartfile.resolved", "packages.lock.json"),
        *("gradle.lockfile", "stack.yaml.lock", "cabal.project.freeze", "buf.lock"),
    )
)
_PRIVATE = re.compile("secret|credential|lock", re.IGNORECASE)


class Filter:
    """The public-path filter: says why an entry is kept back, and counts what it said.

    Kept back are all but regular files; a component that starts with a dot, is `node_modules`,
    `dist`, `build` or `coverage`, or contains `secret`, `credential` or `lock` in any case (any
    component, not only the last: a folder `secrets/` hides what it holds); lockfiles; and what the
    study excludes. Size is for the caller, who counts it with `count`.
    """

    def __init__(self, excludes: Iterable[str]) -> None:
        self.counts: Counter[str] = Counter()
        self._patterns = {entry: path_pattern(entry) for entry in excludes}
        self._unmatched = set(self._patterns)

    @property
    def unmatched(self) -> tuple[str, ...]:
        """The study's excludes that have matched no path so far."""
        return tuple(entry for entry in self._patterns if entry in self._unmatched)

    def count(self, reason: str) -> None:
        """Count one path that is kept back for `reason`."""
        self.counts[reason] += 1

    def keeps(self, entry: Entry) -> bool:
        """Whether an attempt may see this entry, its size aside."""
        excluded = self._is_excluded(entry.path)
        reason = _reason(entry) or ("excluded by the study" if excluded else None)
        if reason is not None:
            self.count(reason)
        return reason is None

    def _is_excluded(self, path: str) -> bool:
        matching = [entry for entry, pattern in self._patterns.items() if pattern.match(path)]
        self._unmatched.difference_update(matching)
        return bool(matching)


def _reason(entry: Entry) -> str | None:
    names = entry.path.split("/")
    reasons = (
        ("symbolic link", entry.is_symlink),
        ("submodule", entry.is_submodule),
        ("unusable path", not entry.is_usable or not entry.is_file),
        ("hidden", any(name.startswith(".") for name in names)),
        ("generated", not _GENERATED.isdisjoint(names)),
        ("lockfile", names[-1].lower() in _LOCKFILES),
        ("private name", _PRIVATE.search(entry.path) is not None),
    )
    return next((reason for reason, applies in reasons if applies), None)


def path_pattern(entry: str) -> re.Pattern[str]:
    """Return what an exclude matches: a path, all below it, and with `*` any characters.

    A star crosses slashes: where an answer key might be meant, too much is hidden, not too little.
    """
    plain = entry.removeprefix("./").strip("/")
    parts = (re.escape(part) for part in plain.split("*"))
    return re.compile(".*".join(parts) + r"(?:/|\Z)", re.DOTALL)


def collisions(paths: Iterable[str]) -> list[tuple[str, str]]:
    """Return the pairs of paths, folders included, that differ only in case or composition."""
    pairs: dict[str, tuple[str, str]] = {}
    seen: dict[str, str] = {}
    for path in _with_folders(paths):
        other = seen.setdefault(_folded(path), path)
        if other != path:
            pairs.setdefault(_folded(path), (other, path))
    return list(pairs.values())


def _with_folders(paths: Iterable[str]) -> dict[str, None]:
    found: dict[str, None] = {}
    for path in paths:
        names = path.split("/")
        found.update(dict.fromkeys("/".join(names[:count]) for count in range(1, len(names) + 1)))
    return found


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())


def named(paths: Iterable[str], most: int = 3) -> str:
    """Return up to `most` paths on one line and how many more there are."""
    names = [one_line(path, 120) for path in paths]
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
