"""Which of the offered tools search, list or read, judged by their names and schemas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

_SEARCH = ("search", "find", "lookup", "query", "grep", "resolve")
_READ = ("read", "get", "fetch", "open", "view", "cat", "show")
_LIST = ("list", "ls", "tree", "files", "index")
_CHANGE = (
    *("write", "create", "delete", "remove", "move", "rename", "edit", "update", "set", "put"),
    *(
        "add",
        "append",
        "insert",
        "reset",
        "commit",
        "checkout",
        "promote",
        "run",
        "exec",
        "execute",
    ),
)
_PATHS = ("path", "file", "file_path", "filepath", "filename", "uri", "document", "doc", "doc_path")
_QUERIES = ("query", "q", "term", "search", "pattern", "text", "keywords", "keyword")
_LINES_BEFORE = 10
_LINES_AFTER = 40


@dataclass(frozen=True)
class Tool:
    """An offered tool as the API's request describes it."""

    name: str
    description: str
    schema: dict[str, Any]

    @property
    def properties(self) -> dict[str, Any]:
        """The schema's properties by name, those that are schemas."""
        found = self.schema.get("properties")
        found = found if isinstance(found, dict) else {}
        return {name: value for name, value in found.items() if isinstance(value, dict)}

    @property
    def required(self) -> list[str]:
        """The names of the required properties."""
        found = self.schema.get("required")
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def rank(self, words: tuple[str, ...]) -> tuple[int, int] | None:
        """Return how clearly this tool is one of `words`, by name or by description; None if not.

        A tool whose name tells that it changes something is none of them.
        """
        named = _words(self.name)
        if named & set(_CHANGE):
            return None
        for place, of_tool in enumerate((named, _words(self.description))):
            told = [index for index, word in enumerate(words) if word in of_tool]
            if told:
                return place, told[0]
        return None

    @property
    def is_literal(self) -> bool:
        """Whether a search takes its query letter by letter, so one word at a time is best."""
        told = self.description.lower()
        return self.is_of_repository or any(
            word in told for word in ("literal", "substring", "exact")
        )

    @property
    def is_of_repository(self) -> bool:
        """Whether this is one of the house's own tools."""
        return self.name.startswith("repo_")

    @property
    def query_property(self) -> str | None:
        """The string that is asked for: the one required property, or one of a query's names."""
        known = self.required or [name for name in _QUERIES if name in self.properties]
        alone = len(self.required) <= 1 and known and known[0] not in _PATHS
        return known[0] if alone and self._is_string(known[0]) else None

    @property
    def path_property(self) -> str | None:
        """The string property that names a file, where nothing else is required."""
        for name in _PATHS:
            if self._is_string(name) and set(self.required) <= {name}:
                return name
        return None

    def _is_string(self, name: str) -> bool:
        kind = self.properties.get(name, {}).get("type")
        return kind == "string" or (isinstance(kind, list) and "string" in kind)

    def asking(self, query: str) -> dict[str, Any]:
        """Return the arguments of a search."""
        assert self.query_property is not None
        return {self.query_property: query}

    def reading(self, path: str, line: int | None) -> dict[str, Any]:
        """Return the arguments of a read, around `line` where the tool takes lines."""
        assert self.path_property is not None
        arguments: dict[str, Any] = {self.path_property: path}
        if line is not None and {"start_line", "end_line"} <= set(self.properties):
            arguments["start_line"] = max(1, line - _LINES_BEFORE)
            arguments["end_line"] = line + _LINES_AFTER
        return arguments


class ToolShelf:
    """The tools of a request, sorted by what they are good for."""

    def __init__(self, offered: list[dict[str, Any]]) -> None:
        self.tools = [
            Tool(tool["name"], tool.get("description", ""), tool["input_schema"])
            for tool in offered
        ]

    @cached_property
    def searchers(self) -> list[Tool]:
        """What searches, a server's search before the repository's."""
        able = [tool for tool in self._ranked(_SEARCH) if tool.query_property is not None]
        return sorted(able, key=lambda tool: tool.is_of_repository)

    @cached_property
    def readers(self) -> list[Tool]:
        """What reads a file."""
        return [tool for tool in self._ranked(_READ) if tool.path_property is not None]

    @cached_property
    def listers(self) -> list[Tool]:
        """What lists files and needs no arguments."""
        return [tool for tool in self._ranked(_LIST) if not tool.required]

    def _ranked(self, words: tuple[str, ...]) -> list[Tool]:
        ranked = [(rank, tool) for tool in self.tools if (rank := tool.rank(words)) is not None]
        return [tool for _, tool in sorted(ranked, key=lambda pair: pair[0])]

    def readers_for(self, finder: str) -> list[Tool]:
        """Return the readers, those of the finder's family first: doc_get after doc_search."""
        family = re.split(r"[^a-z0-9]", finder.lower())[0]
        return sorted(self.readers, key=lambda tool: not tool.name.lower().startswith(family))


def _words(text: str) -> set[str]:
    # Descriptions bend their verbs: reads, searches, listing.
    words = set(re.split(r"[^a-z]+", text.lower()))
    return words | {word.removesuffix(end) for word in words for end in ("s", "es", "ing")}


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
        named = [self.arguments[name] for name in _PATHS if name in self.arguments]
        return next((path for path in named if isinstance(path, str)), None)

    def asks_for(self, path: str) -> bool:
        """Whether this call asked for `path`."""
        return self.path == path


def steps_of(messages: list[dict[str, Any]]) -> list[Step]:
    """Return the calls of a conversation with their results, in order."""
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
            arguments=block["input"],
            text=_text(results[block["id"]]["content"]),
            is_error=results[block["id"]].get("is_error", False),
        )
        for block in blocks
        if block["type"] == "tool_use"
    ]


def _text(content: str | list[dict[str, Any]]) -> str:
    return content if isinstance(content, str) else "\n".join(block["text"] for block in content)
