"""Which of the offered tools search, list or read, judged by their names and schemas."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pytest_studyminimal.rehearsal.conversation import PATHS

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
_QUERIES = ("query", "q", "term", "search", "pattern", "text", "keywords", "keyword")
BUILT_IN = ("Grep", "Glob", "Read")
"""A client's own tools, whose results come in no certain order."""

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

    @property
    def server(self) -> str:
        """The server that a client's prefix names, "" for the client's own tools."""
        return split_name(self.name)[0]

    @property
    def own_name(self) -> str:
        """The name without a client's prefix."""
        return split_name(self.name)[1]

    def rank(self, words: tuple[str, ...]) -> tuple[int, int] | None:
        """Return how clearly this tool is one of `words`, by name or by description; None if not.

        A tool whose name tells that it changes something is none of them.
        """
        named = _words(self.own_name)
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
    def is_glob(self) -> bool:
        """Whether this lists the files that match a pattern."""
        return "glob" in _words(self.own_name) and self.required == ["pattern"]

    @property
    def is_of_repository(self) -> bool:
        """Whether this is one of the house's own tools, or of those built into a client."""
        return self.name.startswith("repo_") or self.name in BUILT_IN

    @property
    def query_property(self) -> str | None:
        """The string that is asked for: the one required property, or one of a query's names."""
        known = self.required or [name for name in _QUERIES if name in self.properties]
        alone = len(self.required) <= 1 and known and known[0] not in PATHS
        return known[0] if alone and self._is_string(known[0]) else None

    @property
    def path_property(self) -> str | None:
        """The string property that names a file, where nothing else is required."""
        for name in PATHS:
            if self._is_string(name) and set(self.required) <= {name}:
                return name
        return None

    def _is_string(self, name: str) -> bool:
        kind = self.properties.get(name, {}).get("type")
        return kind == "string" or (isinstance(kind, list) and "string" in kind)

    def asking(self, query: str) -> dict[str, Any]:
        """Return the arguments of a search: where a tool can print numbered lines, they are wanted."""
        assert self.query_property is not None
        modes = self.properties.get("output_mode", {}).get("enum")
        arguments: dict[str, Any] = {self.query_property: query}
        if isinstance(modes, list) and "content" in modes:
            arguments["output_mode"] = "content"
        if self.properties.get("-n", {}).get("type") == "boolean":
            arguments["-n"] = True
        return arguments

    def listing(self, keywords: list[str]) -> dict[str, Any]:
        """Return the arguments that list everything, or the files whose names hold a keyword."""
        if not self.is_glob:
            return {}
        words = dict.fromkeys([*keywords[:3], *(word.lower() for word in keywords[:3])])
        return {"pattern": f"**/*{{{','.join(words)}}}*" if words else "**/*"}

    def reading(self, path: str, line: int | None, directory: str | None = None) -> dict[str, Any]:
        """Return the arguments of a read, around `line` where the tool takes lines.

        A tool that wants an absolute path gets it below `directory`.
        """
        assert self.path_property is not None
        if directory is not None and "absolute" in self._told(self.path_property):
            path = posixpath.join(directory, path)
        arguments: dict[str, Any] = {self.path_property: path}
        if line is not None:
            arguments |= self._around(line)
        return arguments

    def _around(self, line: int) -> dict[str, Any]:
        first, last = max(1, line - _LINES_BEFORE), line + _LINES_AFTER
        if {"start_line", "end_line"} <= set(self.properties):
            return {"start_line": first, "end_line": last}
        # An offset may as well count bytes or pages.
        if {"offset", "limit"} <= set(self.properties) and "line" in self._told("offset"):
            return {"offset": first, "limit": last - first + 1}
        return {}

    def _told(self, name: str) -> str:
        return str(self.properties.get(name, {}).get("description", "")).lower()


class ToolShelf:
    """The tools of a request, sorted by what they are good for."""

    def __init__(self, offered: list[dict[str, Any]], directory: str | None = None) -> None:
        self.directory = directory
        self.tools = [
            Tool(tool["name"], tool.get("description", ""), tool["input_schema"])
            for tool in offered
        ]

    @cached_property
    def searchers(self) -> list[Tool]:
        """What searches, a server's search before the repository's."""
        ranked = [tool for tool in self._ranked(_SEARCH) if not tool.is_glob]
        able = [tool for tool in ranked if tool.query_property is not None]
        return sorted(able, key=lambda tool: tool.is_of_repository)

    @cached_property
    def readers(self) -> list[Tool]:
        """What reads a file."""
        return [tool for tool in self._ranked(_READ) if tool.path_property is not None]

    @cached_property
    def listers(self) -> list[Tool]:
        """What lists files and needs no arguments, or a pattern that matches all."""
        free = [tool for tool in self._ranked(_LIST) if not tool.required]
        return [*free, *(tool for tool in self.tools if tool.is_glob)]

    def _ranked(self, words: tuple[str, ...]) -> list[Tool]:
        ranked = [(rank, tool) for tool in self.tools if (rank := tool.rank(words)) is not None]
        return [tool for _, tool in sorted(ranked, key=lambda pair: pair[0])]

    def readers_for(self, finder: str) -> list[Tool]:
        """Return the readers, the finder's server's and family's first: doc_get after doc_search."""
        server, own_name = split_name(finder)
        family = re.split(r"[^a-z0-9]", own_name.lower())[0]

        def is_far(tool: Tool) -> tuple[bool, bool]:
            return tool.server != server, not tool.own_name.lower().startswith(family)

        return sorted(self.readers, key=is_far)


def split_name(name: str) -> tuple[str, str]:
    """Return the server and the tool's own name in a client's `mcp__server__tool`; "" for none."""
    server, separator, own_name = name.removeprefix("mcp__").partition("__")
    return (server, own_name) if separator and name.startswith("mcp__") else ("", name)


def _words(text: str) -> set[str]:
    # Descriptions bend their verbs: reads, searches, listing.
    words = set(re.split(r"[^a-z]+", text.lower()))
    return words | {word.removesuffix(end) for word in words for end in ("s", "es", "ing")}
