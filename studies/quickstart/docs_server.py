"""A small documentation server: MCP over stdio, standard library only, reads one folder.

    python docs_server.py FOLDER        serve until the end of stdin
    python docs_server.py --version     print the version

It reads the regular .md, .mdx, .rst and .txt files below FOLDER once, at the first call; symbolic
links, hidden folders, binary and very large files are left out. Same folder, same answers.
"""

from __future__ import annotations

import functools
import json
import math
import os
import posixpath
import re
import stat
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

NAME, VERSION = "docs-server", "1.0.0"
PROTOCOLS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
SUFFIXES = (".md", ".mdx", ".rst", ".txt")
LARGEST_FILE_BYTES = 2 * 2**20
LARGEST_FOLDER_BYTES = 64 * 2**20
MOST_LINES, MOST_CHARACTERS, SNIPPET = 400, 40_000, 160
HEADING_WEIGHT, K1, B = 3, 1.2, 0.75


class Refused(Exception):  # noqa: N818 - it is an answer, not an error of this program
    """What is wrong with a call, for the model."""


@dataclass(frozen=True)
class Section:
    path: str
    line: int
    heading: str
    words: Counter[str]
    body: list[str]

    @property
    def place(self) -> str:
        return f"{self.path}:{self.line}  {self.heading or '(no heading)'}"


def words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.casefold())


def read(file: Path) -> str | None:
    """The text of a regular file of bearable size, None for anything else."""
    try:
        # O_NOFOLLOW and fstat: what is checked is what is read, whatever the path becomes.
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        data = stream.read(LARGEST_FILE_BYTES + 1) if regular else b"\0"
    return (
        None if len(data) > LARGEST_FILE_BYTES or b"\0" in data else data.decode("utf-8", "replace")
    )


def sections(path: str, lines: list[str]) -> list[Section]:
    """The parts between `#` headings outside code fences, each with the headings above it."""
    marks, fence = [(0, 0, "")], ""
    for index, line in enumerate(lines):
        ticks = re.match(r" {0,3}(```|~~~)", line)
        heading = re.match(r"(#{1,6})\s+(.*?)\s*#*\s*$", line)
        if ticks and fence in {"", ticks[1]}:
            fence = "" if fence else ticks[1]
        elif heading and not fence:
            marks.append((index, len(heading[1]), heading[2]))
    found, trail = [], [(0, "")]
    for (start, level, text), following in zip(
        marks, [*marks[1:], (len(lines), 0, "")], strict=True
    ):
        body = lines[start : following[0]]
        trail = [*(above for above in trail if above[0] < level), (level, text)]
        title = " > ".join(name for _, name in trail if name)
        counts = Counter(words("\n".join(body)) + words(f"{path} {title}") * HEADING_WEIGHT)
        if any(line.strip() for line in body):
            found.append(Section(path, start + 1, title, counts, body))
    return found


class Library:
    """The documents below a folder and the sections in them."""

    def __init__(self, folder: Path) -> None:
        self.documents: dict[str, list[str]] = {}
        self.left_out: list[str] = []
        room = LARGEST_FOLDER_BYTES
        for path in sorted(paths(folder)):
            text = read(folder / path) if room > 0 else None
            if text is None:
                self.left_out.append(path)
                continue
            room -= len(text)
            # Only \n ends a line, as in git and in editors.
            lines = text.removesuffix("\n").split("\n") if text else []
            self.documents[path] = [line.removesuffix("\r") for line in lines]
        self.sections = [part for item in self.documents.items() for part in sections(*item)]
        self.mean = sum(part.words.total() for part in self.sections) / max(1, len(self.sections))
        self.spread = Counter(word for part in self.sections for word in part.words)

    def ranked(self, query: str) -> list[Section]:
        """Every section with a word of the query, best first (BM25), ties by path and line."""
        wanted = sorted(set(words(query)))
        scored = [(self.score(part, wanted), part) for part in self.sections]
        hits = sorted((-score, part.path, part.line, part) for score, part in scored if score > 0)
        return [hit[-1] for hit in hits]

    def score(self, part: Section, wanted: list[str]) -> float:
        length = K1 * (1 - B + B * part.words.total() / self.mean)
        score = 0.0
        for word in wanted:
            count, spread = part.words[word], self.spread[word]
            rarity = math.log(1 + (len(self.sections) - spread + 0.5) / (spread + 0.5))
            score += rarity * count * (K1 + 1) / (count + length)
        return round(score, 6)


def paths(folder: Path) -> list[str]:
    found = []
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in (Path(root, name) for name in files if name.lower().endswith(SUFFIXES)):
            path = file.relative_to(folder).as_posix()
            if path.isprintable() and not file.is_symlink():
                found.append(path)
    return found


@functools.cache
def library(folder: Path) -> Library:
    return Library(folder)


def search(books: Library, query: str, limit: int = 5) -> str:
    hits = books.ranked(query)
    lines = []
    for number, part in enumerate(hits[:limit], 1):
        text = part.body[1:] if part.body[0].startswith("#") else part.body
        body = [line.strip() for line in text if line.strip()] or [part.body[0].strip()]
        best = max(body, key=lambda line: len(set(words(query)) & set(words(line))))
        cut = "… [cut]" if len(best) > SNIPPET else ""
        lines.append(f"{number}. {part.place}\n   {best[:SNIPPET]}{cut}")
    if len(hits) > limit:
        lines.append(f"[cut: {limit} of {len(hits)} matching sections shown]")
    if books.left_out:
        lines.append(
            f"[not searched: {len(books.left_out)} binary, unreadable or very large files]"
        )
    return "\n".join(lines if hits else ["No section matches.", *lines])


def get(books: Library, path: str, start_line: int = 1, end_line: int | None = None) -> str:
    name = posixpath.normpath(path)
    if name in books.left_out:
        raise Refused("this file is binary, unreadable or very large, and was left out")
    if name not in books.documents:
        raise Refused("no such document; doc.search returns paths")
    lines = books.documents[name]
    last = min(end_line or len(lines), len(lines))
    if start_line > max(last, 1):
        raise Refused(
            f"no lines {start_line} to {end_line or 'the end'} in a document of {len(lines)}"
        )
    shown: list[str] = []
    room = MOST_CHARACTERS
    for number in range(start_line, min(last, start_line + MOST_LINES - 1) + 1):
        line = f"{number}\t{lines[number - 1]}"
        if len(line) > room:
            shown += [] if shown else [f"{line[:room]}… [cut: the line has {len(line)} characters]"]
            break
        shown.append(line)
        room -= len(line)
    end = start_line + len(shown) - 1
    if end < last:
        shown.append(f"[cut: lines {start_line}-{end} of {len(lines)}; next start_line {end + 1}]")
    return "\n".join(shown) or "[empty document]"


def resolve(books: Library, topic: str) -> str:
    hits = books.ranked(topic)
    if not hits:
        return "No document answers this topic."
    others = list(dict.fromkeys(part.path for part in hits if part.path != hits[0].path))
    more = f"\nAlso: {', '.join(others[:3])}" if others else ""
    return f"{hits[0].place}{more}" + (f" [cut: 3 of {len(others)}]" if len(others) > 3 else "")


CALLS: dict[str, Callable[..., str]] = {
    "doc.search": search,
    "doc.get": get,
    "handoff.resolve": resolve,
}
TEXT = {"type": "string", "minLength": 1}
LINE = {"type": "integer", "minimum": 1, "maximum": 10_000_000}
LIMIT = {"type": "integer", "minimum": 1, "maximum": 20, "default": 5}


def tool(name: str, description: str, properties: dict[str, Any], required: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": [required]}
    hints = {"readOnlyHint": True}
    return {"name": name, "description": description, "inputSchema": schema, "annotations": hints}


TOOLS = [
    tool(
        "doc.search",
        "Search the documentation. Returns sections as path:line, heading and a snippet.",
        {"query": TEXT, "limit": LIMIT},
        "query",
    ),
    tool(
        "doc.get",
        "Read a document with line numbers, or only the lines from start_line to end_line.",
        {"path": TEXT, "start_line": LINE, "end_line": LINE},
        "path",
    ),
    tool("handoff.resolve", "Name the document that answers a topic.", {"topic": TEXT}, "topic"),
]


def check(arguments: Any, schema: dict[str, Any]) -> None:
    required = schema["required"][0]
    if not isinstance(arguments, dict) or required not in arguments:
        raise Refused(f"the argument {required} is missing")
    for name, value in arguments.items():
        rule = schema["properties"].get(name)
        if rule is None:
            raise Refused(f"unknown argument; known are {', '.join(schema['properties'])}")
        if rule is TEXT and not (isinstance(value, str) and value.strip()):
            raise Refused(f"{name} must be text")
        # A bool is an int to isinstance.
        if rule is not TEXT and (type(value) is not int or not 1 <= value <= rule["maximum"]):
            raise Refused(f"{name} must be a whole number from 1 to {rule['maximum']}")


def call(folder: Path, name: Any, arguments: Any) -> str:
    found = next((tool for tool in TOOLS if tool["name"] == name), None)
    if found is None:
        raise Refused(f"unknown tool; known are {', '.join(CALLS)}")
    check(arguments, found["inputSchema"])
    return CALLS[found["name"]](library(folder), **arguments)


def result(folder: Path, method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        asked = params.get("protocolVersion")
        version = asked if asked in PROTOCOLS else PROTOCOLS[-1]
        info = {"name": NAME, "version": VERSION}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        try:
            text, failed = call(folder, params.get("name"), params.get("arguments", {})), False
        except Refused as refusal:
            text, failed = str(refusal), True
        return {"content": [{"type": "text", "text": text}], "isError": failed}
    return {} if method == "ping" else None


def answer(folder: Path, line: bytes) -> dict[str, Any] | None:
    """The response to one line, None for a notification or a response."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return failure(None, -32700, "Parse error")
    if not isinstance(message, dict) or not isinstance(message.get("method", ""), str):
        return failure(None, -32600, "Invalid request")
    number, params = message.get("id"), message.get("params", {})
    if "method" not in message or number is None:
        return None
    if not isinstance(params, dict):
        return failure(number, -32602, "Invalid params")
    found = result(folder, message["method"], params)
    if found is None:
        return failure(number, -32601, "Method not found")
    return {"jsonrpc": "2.0", "id": number, "result": found}


def failure(number: Any, code: int, text: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}


def main(arguments: list[str]) -> int:
    if arguments == ["--version"]:
        print(NAME, VERSION)
        return 0
    if len(arguments) != 1 or not Path(arguments[0]).is_dir():
        print("usage: docs_server.py FOLDER | --version", file=sys.stderr)
        return 2
    for line in sys.stdin.buffer:
        response = answer(Path(arguments[0]).resolve(), line) if line.strip() else None
        if response is not None:
            text = json.dumps(response, ensure_ascii=False)
            sys.stdout.buffer.write(text.encode("utf-8", "replace") + b"\n")
            sys.stdout.buffer.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
