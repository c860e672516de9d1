"""The rehearsal's model: keywords, a search, a read and a cited answer, from the request alone.

It knows no tool in advance. From names and schemas it finds what searches, what lists and what
reads; from results it takes `path:line` hits; from what it read it quotes the lines that share most
words with the question. It answers at the latest in its sixth turn.
"""

from __future__ import annotations

from typing import Any

from pytest_studyminimal.rehearsal.conversation import (
    Step,
    directory_of,
    question_of,
    steps_of,
)
from pytest_studyminimal.rehearsal.finding import (
    Hit,
    best_lines,
    hits_in,
    keywords_of,
    numbered_lines,
    shared,
)
from pytest_studyminimal.rehearsal.judge import verdict_on
from pytest_studyminimal.rehearsal.tools import BUILT_IN, Tool, ToolShelf

_LAST_TURN = 6
_LAST_SEARCH = 3
_READS = 2
_QUOTES = 3

Block = dict[str, Any]


def respond(request: dict[str, Any]) -> list[Block]:
    """Return the content of the reply: one text, or a text and calls (`name` and `input`, no id)."""
    messages, directory = request["messages"], directory_of(request)
    steps = steps_of(messages, directory)
    turn = 1 + sum(message["role"] == "assistant" for message in messages)
    keywords = keywords_of(question_of(messages))
    shelf = ToolShelf(request.get("tools", []), directory)
    if not shelf.tools and (verdict := verdict_on(question_of(messages))) is not None:
        return _say(verdict)
    if not shelf.tools:
        return _say("I have no tools, so there is nothing that I could read or cite.")
    calls = _next_calls(shelf, steps, keywords, turn)
    if calls:
        return [*_say(_intention(calls)), *calls]
    return _say(_answer(shelf, steps, keywords))


def _say(words: str) -> list[Block]:
    return [{"type": "text", "text": words}]


def _intention(calls: list[Block]) -> str:
    return f"I will use {', '.join(dict.fromkeys(call['name'] for call in calls))}."


def _next_calls(shelf: ToolShelf, steps: list[Step], keywords: list[str], turn: int) -> list[Block]:
    if turn >= _LAST_TURN or any(_was_read(shelf, step) for step in steps):
        return []
    # In a cut result chance chose what is seen, so it counts only where there is nothing else.
    whole = [step for step in steps if not (step.name in BUILT_IN and step.is_partial)]
    calls = _reads(shelf, steps, _hits(shelf, whole, keywords))
    if not calls and turn <= _LAST_SEARCH:
        calls = _searches(shelf, steps, keywords)
    return calls or _reads(shelf, steps, _hits(shelf, steps, keywords))


def _was_read(shelf: ToolShelf, step: Step) -> bool:
    return not step.is_error and step.name in {tool.name for tool in shelf.readers}


def _hits(shelf: ToolShelf, steps: list[Step], keywords: list[str]) -> list[Hit]:
    searchers = {tool.name for tool in shelf.searchers}
    finders = searchers | {tool.name for tool in shelf.listers}
    found = [
        hit
        for step in steps
        if step.name in finders and not step.is_error
        for hit in _hits_of(step)
        # A listing names everything; a search may know better than to repeat the question's words.
        if step.name in searchers or shared(hit.path, keywords)
    ]
    best: dict[str, Hit] = {}
    for hit in sorted(found, key=lambda hit: hit.score(keywords), reverse=True):
        best.setdefault(hit.path, hit)
    return list(best.values())


def _hits_of(step: Step) -> list[Hit]:
    hits = hits_in(step.text, step.name)
    return sorted(hits, key=Hit.position) if step.name in BUILT_IN else hits


def _reads(shelf: ToolShelf, steps: list[Step], hits: list[Hit]) -> list[Block]:
    # The best hits that were not tried with every reader, each with the next reader for it.
    calls: list[Block] = []
    for hit in hits:
        for reader in shelf.readers_for(hit.found_by):
            if not any(step.name == reader.name and step.asks_for(hit.path) for step in steps):
                calls.append(_call(reader, reader.reading(hit.path, hit.line, shelf.directory)))
                break
        if len(calls) == _READS:
            break
    return calls


def _searches(shelf: ToolShelf, steps: list[Step], keywords: list[str]) -> list[Block]:
    for searcher in shelf.searchers:
        tried = [step.arguments for step in steps if step.name == searcher.name]
        queries = keywords if searcher.is_literal else [" ".join(keywords[:3]), *keywords]
        fresh = [query for query in dict.fromkeys(queries) if searcher.asking(query) not in tried]
        # Two at once at first; a searcher that found nothing twice gives way to the next one.
        if fresh and len(tried) < (2 if searcher is not shelf.searchers[-1] else 6):
            return [_call(searcher, searcher.asking(query)) for query in fresh[:2]]
    listed = {step.name for step in steps}
    return [
        _call(tool, tool.listing(keywords)) for tool in shelf.listers if tool.name not in listed
    ][:1]


def _call(tool: Tool, arguments: dict[str, Any]) -> Block:
    return {"type": "tool_use", "name": tool.name, "input": arguments}


def _answer(shelf: ToolShelf, steps: list[Step], keywords: list[str]) -> str:
    words = ", ".join(keywords[:3]) or "the question"
    quotes = [
        (path, number, line)
        for step in steps
        if _was_read(shelf, step) and (path := step.path)
        for number, line in best_lines(numbered_lines(step), keywords, _QUOTES)
    ]
    if quotes:
        cited = "\n".join(f"- {path}:{number}: {line}" for path, number, line in quotes)
        return f"What I read about {words}:\n{cited}"
    hits = _hits(shelf, steps, keywords)
    if hits:
        named = "\n".join(f"- {hit.place}" for hit in hits[:_QUOTES])
        return f"I could read nothing about {words}. These places were named, unread:\n{named}"
    return f"I found nothing about {words} with the tools that I have."
