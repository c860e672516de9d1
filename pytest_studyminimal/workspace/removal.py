"""Removing a folder of which nothing can be assumed."""

from __future__ import annotations

# ruff: noqa: PTH106 - the name is bytes, which pathlib cannot hold
import itertools
import os
import secrets
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def remove_folder(box: bytes) -> None:
    """Remove a folder whatever its permissions, depth and kinds of content; no folder is no error.

    Links are not followed. What lies deep is first moved up, so that two open folders are enough
    and no depth or length of path can stop it. Raises OSError where something cannot be removed.
    """
    try:
        top = _open_folder(box, None)
    except FileNotFoundError:
        return
    try:
        names = (f"{secrets.token_hex(8)}.{count}" for count in itertools.count())
        while entries := _list(top):
            for name, is_folder in entries:
                if is_folder:
                    _flatten(name, top, names)
                else:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(box)


def _flatten(name: str, top: int, names: Iterator[str]) -> None:
    inner = _open_folder(name, top)
    try:
        for child, is_folder in _list(inner):
            if is_folder:
                # A folder that moves must be writable itself: its `..` changes.
                os.chmod(child, 0o700, dir_fd=inner)
                os.rename(child, next(names), src_dir_fd=inner, dst_dir_fd=top)
            else:
                os.unlink(child, dir_fd=inner)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=top)


def _open_folder(name: bytes | str, above: int | None) -> int:
    if stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode):
        os.chmod(name, 0o700, dir_fd=above)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=above)


def _list(folder: int) -> list[tuple[str, bool]]:
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
