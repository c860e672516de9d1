"""The hashes that bind observations together: what differs in any of them may not be pooled."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import rfc8785

from pytest_studyminimal import __version__
from pytest_studyminimal.protocol.frozen import Frozen


class Series(Frozen):
    """Everything that must be equal for observations to be comparable."""

    protocol: str
    answer_key: str
    runner: str
    runner_version: str
    transport: str
    transport_version: str
    agent_sha256: str | None = None
    connection: str
    provider: str
    model: str
    prices: str
    servers: dict[str, str]
    rehearsal: bool

    @property
    def id(self) -> str:
        """SHA-256 over all of it."""
        return digest_of(self.model_dump(mode="json"))

    def differences(self, other: Series) -> tuple[str, ...]:
        """Return the names of the parts that differ."""
        mine, theirs = self.model_dump(), other.model_dump()
        return tuple(name for name in mine if mine[name] != theirs[name])


def digest_of(value: Any) -> str:
    """Return SHA-256 over the canonical JSON of `value`."""
    return hashlib.sha256(rfc8785.dumps(value)).hexdigest()


def runner_digest() -> str:
    """Return SHA-256 over this package's source files, so that a changed runner is another series."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256(__version__.encode())
    for path in sorted(
        package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()
    ):
        name = path.relative_to(package).as_posix().encode()
        digest.update(b"%d:%s:" % (len(name), name))
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
