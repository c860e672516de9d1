"""Git LFS pointers, told from text that merely quotes one."""

from __future__ import annotations

import re
from dataclasses import dataclass

_LARGEST_BYTES = 1024
_VERSIONS = frozenset(
    {
        b"version https://git-lfs.github.com/spec/v1",
        b"version https://hawser.github.com/spec/v1",
        b"version http://git-media.io/v/2",
    }
)
_KEY_VALUE = re.compile(rb"[a-z0-9.-]+ \S+")


@dataclass(frozen=True)
class Pointer:
    """What stands behind a pointer: the SHA-256 and the size in bytes of the real file."""

    sha256: str
    size_bytes: int


def pointer(data: bytes) -> Pointer | None:
    """Return what these bytes point to; None where they are content.

    As git-lfs reads them: under 1,024 bytes, a version line first, then only `key value` lines,
    among them `oid sha256:…` and `size …`; surrounding white space and CRLF do not matter.
    """
    if len(data) >= _LARGEST_BYTES:
        return None
    lines = [line.rstrip(b"\r") for line in data.strip().split(b"\n")]
    if lines[0] not in _VERSIONS or not all(_KEY_VALUE.fullmatch(line) for line in lines):
        return None
    values = dict(line.split(b" ", 1) for line in lines)
    oid = re.fullmatch(rb"sha256:([0-9a-f]{64})", values.get(b"oid", b""))
    size = re.fullmatch(rb"[0-9]{1,18}", values.get(b"size", b""))
    return Pointer(oid[1].decode(), int(size[0])) if oid and size else None
