"""What a request tells of its conversation: the question, the directory, the calls and results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

PATHS = ("path", "file", "file_path", "filepath", "filename", "uri", "document", "doc", "doc_path")
"""Names of arguments that name a file."""

_REMINDER, _REMINDER_END = "<system-reminder>", "</system-reminder>"
_DIRECTORY = re.compile(r"^[\s*-]*Primary working directory: (?P<path>/.*?)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Step:
    """A call that was made and what it gave."""

    name: str
    arguments: dict[str, Any]
    text: str
    is_error: bool

    @property
    def path(self) -> str | None:
        """The path that was asked for."""
        named = [self.arguments[name] for name in PATHS if name in self.arguments]
        return next((path for path in named if isinstance(path, str)), None)

    @property
    def is_partial(self) -> bool:
        """Whether a client cut the result, and says so."""
        return self.text.startswith("<persisted-output>") or "\n[Showing results" in self.text

    def asks_for(self, path: str) -> bool:
        """Whether this call asked for `path`."""
        return self.path == path


def question_of(messages: list[dict[str, Any]]) -> str:
    """Return the text of the first message, without the reminders that a client put around it."""
    texts = texts_in(messages[0]["content"])
    return "\n".join([text for text in texts if not _is_reminder(text)] or texts)


def texts_in(content: str | list[dict[str, Any]]) -> list[str]:
    """Return the texts of a content, of which other kinds of blocks are left out."""
    if isinstance(content, str):
        return [content]
    return [block["text"] for block in content if block["type"] == "text"]


def _is_reminder(text: str) -> bool:
    told = text.strip()
    return told.startswith(_REMINDER) and told.endswith(_REMINDER_END)


def _without_reminders(text: str) -> str:
    # A client that cannot put them elsewhere appends them to results.
    while text.rstrip().endswith(_REMINDER_END) and _REMINDER in text:
        text = text[: text.rindex(_REMINDER)].rstrip()
    return text


def directory_of(request: dict[str, Any]) -> str | None:
    """Return the working directory that a client told the model, None where it told none."""
    told = texts_in(request.get("system", ""))
    for message in request["messages"]:
        if message["role"] == "system":
            told += texts_in(message["content"])
    told += [text for text in texts_in(request["messages"][0]["content"]) if _is_reminder(text)]
    found = next((match for text in told if (match := _DIRECTORY.search(text))), None)
    return (found["path"].rstrip("/") or None) if found else None


def within(directory: str) -> re.Pattern[str]:
    """Return what finds an absolute path in a text, and not the end of a longer one."""
    # In JSON a path at the start of a line follows the letter of an escape.
    return re.compile(rf"(?:(?<![\w.-])|(?<=\\[nrt])){re.escape(directory)}")


def steps_of(messages: list[dict[str, Any]], directory: str | None = None) -> list[Step]:
    """Return the calls with their results, in the order of the calls, paths as in `directory`."""
    blocks = [
        block
        for message in messages
        if isinstance(message["content"], list)
        for block in message["content"]
    ]
    results = {block["tool_use_id"]: block for block in blocks if block["type"] == "tool_result"}
    return [
        Step(
            name=block["name"],
            arguments=_relative(block["input"], directory),
            text=_without(directory, _told(results[block["id"]]["content"])),
            is_error=results[block["id"]].get("is_error", False),
        )
        for block in blocks
        if block["type"] == "tool_use"
    ]


def _relative(arguments: dict[str, Any], directory: str | None) -> dict[str, Any]:
    return {
        name: _without(directory, value) if name in PATHS and isinstance(value, str) else value
        for name, value in arguments.items()
    }


def _without(directory: str | None, text: str) -> str:
    return text if directory is None else within(f"{directory}/").sub("", text)


def _told(content: str | list[dict[str, Any]]) -> str:
    # A client may show structured content for text: the one member is what a text tool returned.
    text = _without_reminders("\n".join(texts_in(content)))
    if not text.startswith('{"result":'):
        return text
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return text
    told = document["result"]
    return told if set(document) == {"result"} and isinstance(told, str) else text
