"""The JSON events of `codex exec`, read into facts; nothing here judges.

Shapes measured with 0.162.1 and 0.171.0 on 2026-11-30. Usage is a running total of the thread, cached
tokens are part of input, reasoning is part of output; no event tells the version, the model, the tools
that were offered, the servers, or a cost. An `error` event is a notice: only the end of a turn decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.records import AgentFacts, Usage
from pytest_studyminimal.transports.agent_errors import block_of_code, block_of_status, code_in
from pytest_studyminimal.transports.reading import Reading
from pytest_studyminimal.transports.stream import count_of

if TYPE_CHECKING:
    from pytest_studyminimal.protocol.records import Block

UNSTATED = ("cost", "offered-tools", "served-model", "servers")
SHELL, EDIT = "shell", "edit"
_STATUS = re.compile(r"unexpected status (\d{3}) ")
_QUOTA = "Quota exceeded. Check your plan and billing details."
_NO_KEY = "Missing environment variable: "
_NO_APPROVAL = "MCP tool call requires approval, but approval policy is never"
_REROUTED = "model rerouted: "
_NO_SANDBOX = re.compile(
    r"bwrap: (Creating new namespace failed|No permissions to create|setting up uid map)[^\n]*\n?"
)
_QUIET = frozenset({"reasoning", "todo_list"})
_CALLS = {"command_execution": SHELL, "file_change": EDIT, "web_search": "web_search"}


@dataclass
class CodexEvents(Reading):
    """What one stream says so far; feed it every line in order."""

    transport = "codex"
    _open: bool = False
    _turns: int = 0
    _failed: str | None = None
    _totals: list[Usage] = field(default_factory=list)
    _without_usage: bool = False
    _notices: int = 0
    _error_last: bool = False
    _messages: int = 0
    _rerouted: str | None = None

    def read(self, name: str, event: dict[str, Any]) -> None:
        """See `Reading`."""
        self._error_last = name == "error"
        match name:
            case "thread.started":
                self.started = True
            case "turn.started":
                self._open = True
            case "turn.completed":
                self._ends(None)
                self._usage(event.get("usage"))
            case "turn.failed":
                error = event.get("error")
                told = error.get("message") if isinstance(error, dict) else None
                self._ends(told if isinstance(told, str) else "")
                self._without_usage = True
            case "error":
                self._notices += 1
            case "item.started" | "item.updated" | "item.completed":
                self._item(event.get("item"), done=name == "item.completed")
            case _:
                self.count(name)

    def _ends(self, failed: str | None) -> None:
        self._open = False
        self._turns += 1
        self.results += 1
        self._failed = failed

    def _usage(self, told: object) -> None:
        usage = _usage_of(told)
        if usage is None or usage == Usage():
            # All zeros are what it writes where the provider sent no usage.
            self._without_usage = True
            return
        if self._totals and _less(usage, self._totals[-1]):
            self.problem("a total of tokens below the one before it")
        self._totals.append(usage)

    def _item(self, item: object, *, done: bool) -> None:
        if not isinstance(item, dict) or not isinstance(item.get("type"), str):
            self.problem("an item without a type")
            return
        kind = item["type"]
        if kind == "agent_message":
            self._message(item.get("text"))
        elif kind == "mcp_tool_call":
            self._mcp(item, done=done)
        elif kind in _CALLS:
            self.call(str(item.get("id")), _CALLS[kind], is_error=_is_failed(item, done=done))
            self._sandbox(item)
        elif kind == "collab_tool_call":
            self.call(str(item.get("id")), "agent", is_error=_is_failed(item, done=done))
        elif kind == "error":
            self._notice(item.get("message"))
        elif kind not in _QUIET:
            self.count(f"item/{self.word(kind, 64)}")

    def _notice(self, message: object) -> None:
        self._notices += 1
        # The CLI says so where a header of the response named another model than was asked for.
        if isinstance(message, str) and message.startswith(_REROUTED):
            self._rerouted = self.word(message.partition("\n")[0], 120)

    def _message(self, text: object) -> None:
        if isinstance(text, str):
            self._messages += 1
            self.text = text
        else:
            self.problem("a message without text")

    def _mcp(self, item: dict[str, Any], *, done: bool) -> None:
        server, tool = item.get("server"), item.get("tool")
        error = item.get("error")
        if isinstance(error, dict) and error.get("message") == _NO_APPROVAL:
            self.block = self.block or "permission"
        failed = _is_failed(item, done=done)
        self.call(str(item.get("id")), f"mcp__{server}__{tool}", is_error=failed, server=server)

    def _sandbox(self, item: dict[str, Any]) -> None:
        told = item.get("aggregated_output")
        failed = item.get("status") == "failed" and isinstance(told, str)
        if failed and _NO_SANDBOX.fullmatch(str(told)):
            self.block = self.block or "environment"

    @property
    def is_over(self) -> bool:
        """Whether the last turn has ended."""
        return bool(self._turns) and not self._open

    def usage(self) -> Usage | None:
        """Return the last total; None where a turn did not tell its own, or the stream broke off."""
        whole = self.is_over and not self._without_usage and self._totals
        return self._totals[-1] if whole else None

    def partial_usage(self) -> Usage:
        """Return the last total that was told."""
        return self._totals[-1] if self._totals else Usage()

    @property
    def turns(self) -> int:
        """How many turns ended."""
        return self._turns

    @property
    def answer(self) -> str:
        """The last message of a turn that completed."""
        return self.text if self.is_over and self._failed is None else ""

    def facts(self) -> AgentFacts:
        """Return what is public of the stream itself."""
        # A notice that nothing follows is the end of it.
        failed = self._failed is not None or self._error_last
        return AgentFacts(
            stream_problems=(*self.problems, *self._missing()),
            results=self.results,
            subtype=("turn.failed" if failed else "success") if self.results else None,
            is_error=failed if self.results else None,
            num_turns=self._turns if self.results else None,
            cost_problems=(self._rerouted,) if self._rerouted else (),
            api_retries=self._notices,
            unknown_events=dict(sorted(self.unknown.items())),
            unstated=(*UNSTATED, *(("usage",) if self.usage() is None else ())),
            block=self.block or self._block(),
        )

    def _missing(self) -> list[str]:
        if not self.results:
            return ["no turn.completed or turn.failed event, required one"]
        return ["the last turn has no end"] if self._open else []

    def _block(self) -> Block | None:
        message = self._failed
        if not message:
            return None
        if match := _STATUS.match(message):
            return block_of_status(int(match[1]))
        if message == _QUOTA:
            return "budget"
        return "authentication" if message.startswith(_NO_KEY) else block_of_code(code_in(message))


def _is_failed(item: dict[str, Any], *, done: bool) -> bool:
    return not done or item.get("status") == "failed"


def _usage_of(told: object) -> Usage | None:
    if not isinstance(told, dict):
        return None
    names = ("input_tokens", "output_tokens", "cached_input_tokens")
    more = ("cache_write_input_tokens", "reasoning_output_tokens")
    found = [count_of(told.get(name)) for name in names] + [
        count_of(told.get(name, 0)) for name in more
    ]
    known = [count for count in found if count is not None]
    if len(known) != len(found):
        return None
    whole, output, cached, written, reasoning = known
    if cached + written > whole or reasoning > output:
        return None
    return Usage(
        input_tokens=whole - cached - written,
        output_tokens=output,
        cache_read_tokens=cached,
        cache_write_1h_tokens=written,
        reasoning_tokens=reasoning,
    )


def _less(one: Usage, other: Usage) -> bool:
    return one.prompt_tokens < other.prompt_tokens or one.output_tokens < other.output_tokens
