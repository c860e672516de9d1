"""What was seen of an attempt, kept privately beside the ledger so that it can be judged again."""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_studyminimal.protocol.records import Transcript


def stream_of(directory: Path, run: str, attempt: str) -> Path:
    """Return where the stream of an attempt lies under a ledger's directory."""
    return directory / "streams" / run / (attempt.replace(":", ".") + ".jsonl")


def keep_line(directory: Path, run: str, attempt: str, line: bytes) -> None:
    """Append a line to the stream of an attempt that still runs, mode 0600.

    The whole stream takes its place when the attempt ends; a full disk must not end it earlier.
    """
    file = stream_of(directory, run, attempt)
    with contextlib.suppress(OSError):
        _make_folders(file)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        handle = os.open(file, flags, 0o600)
        try:
            os.write(handle, line + b"\n")
        finally:
            os.close(handle)


def _make_folders(file: Path) -> None:
    for folder in (file.parent.parent, file.parent):
        folder.mkdir(mode=0o700, exist_ok=True)


def keep_stream(directory: Path, run: str, attempt: str, transcript: Transcript) -> None:
    """Keep a transcript in files of mode 0600; a full disk must not cost the observation.

    Of an agent's process: its stdout byte by byte (`.jsonl`), how it ended (`.end.json`) and the end
    of its stderr (`.stderr`). Of an API: one line per request.
    """
    if transcript.agent is None and not transcript.raw:
        return
    file = stream_of(directory, run, attempt)
    with contextlib.suppress(OSError):
        _make_folders(file)
        if transcript.agent is None:
            _write(file, "".join(json.dumps(event) + "\n" for event in transcript.raw).encode())
            return
        _write(file, transcript.stream)
        _write(file.with_suffix(".end.json"), json.dumps(_end(transcript)).encode())
        if transcript.stderr:
            _write(file.with_suffix(".stderr"), transcript.stderr.encode("utf-8", "replace"))


def _end(transcript: Transcript) -> dict[str, Any]:
    assert transcript.agent is not None
    agent = transcript.agent
    return {
        "ending": transcript.ending,
        "exit_status": agent.exit_status,
        "stayed": agent.stayed,
        "cut": agent.cut,
        "wall_s": transcript.wall_s,
        "problem": transcript.problem,
    }


def _write(file: Path, data: bytes) -> None:
    # In one step: what was kept line by line stays until the whole is there.
    part = file.with_suffix(file.suffix + ".part")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(part, flags, 0o600), "wb") as stream:
        stream.write(data)
    part.replace(file)
