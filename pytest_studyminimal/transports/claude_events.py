"""The stream-json events of Claude Code, read into facts; nothing here judges.

Shapes measured with 2.1.296 on 2026-11-30. A message comes as one event for each of its blocks, all
with its id and the usage snapshot of its start: counted once per id, and only used to find the
largest single prompt. Unknown events are tolerated and counted by name; a known event with an
unknown shape is a problem, since an arm that cannot be read is not proven. All that is kept is bounded.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import AgentFacts, ServerStatus, ToolCall, Usage
from pytest_studyminimal.transports.claude_arguments import BUILTIN, NEVER
from pytest_studyminimal.transports.claude_usage import Bill, bill_of, message_usage
from pytest_studyminimal.transports.stream import EventError, count_of, event_of, word_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

_SYNTHETIC = "<synthetic>"
"""The CLI speaking in place of a model, as in "Not logged in"."""
_UNREADABLE = "(unreadable)"
_UNKNOWN_TOOL = "(unknown tool)"
_UNKNOWN_SERVER_TOOL = "(unknown server tool)"
_MOST_NAMES = 40
_MOST_PROBLEMS = 20
_MOST_BILLS = 50
_MOST_KEPT = 10_000
# What a model may only be told of by name: any other name is its own text.
_BUILTINS = frozenset({*BUILTIN.values(), *NEVER, "LS", "TodoWrite", "Skill", "PowerShell", "REPL"})


@dataclass
class ClaudeEvents:
    """What one stream says so far; feed it every line in order.

    `is_study_model` tells the study's own model name from another; `hide` is applied to every word
    of the stream before it may become public; `offered` are the names of the arm's tools.
    """

    is_study_model: Callable[[str], bool]
    hide: Callable[[str], str] = str
    offered: tuple[str, ...] = ()
    started: bool = False
    results: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    _lines: int = 0
    _problems: list[str] = field(default_factory=list)
    _init: dict[str, Any] = field(default_factory=dict)
    _inits: int = 0
    _after: dict[str, None] = field(default_factory=dict)
    _unknown: Counter[str] = field(default_factory=Counter)
    _retries: int = 0
    _denied: list[str] = field(default_factory=list)
    _models: dict[str, None] = field(default_factory=dict)
    _messages: dict[str, Usage | None] = field(default_factory=dict)
    _calls: dict[str, str] = field(default_factory=dict)
    _answers: dict[str, bool] = field(default_factory=dict)
    _bills: list[Bill] = field(default_factory=list)

    def take(self, line: bytes) -> None:
        """Read one line; an empty one is no event."""
        self._lines += 1
        if not line.strip():
            return
        try:
            event = event_of(line)
        except EventError as error:
            self._problem(str(error))
            return
        name = self._name(event)
        if self.results and name != "result":
            self._after = dict.fromkeys([*self._after, name][:_MOST_NAMES])
        self._read(name, event)

    def _read(self, name: str, event: dict[str, Any]) -> None:
        match name:
            case "assistant":
                self._assistant(event)
            case "user":
                self._user(event)
            case "result":
                self._result(event)
            case "system/init":
                self.started = True
                self._init = self._init or event
                self._inits += 1
            case "system/api_retry":
                self._retries += 1
            case "system/permission_denied":
                self._denied = [*self._denied, self._tool(event.get("tool_name"))][:_MOST_KEPT]
            case _:
                self._count(name)

    def _count(self, name: str) -> None:
        known = name in self._unknown or len(self._unknown) < _MOST_NAMES
        self._unknown[name if known else "(others)"] += 1

    def _problem(self, what: str) -> None:
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(f"line {self._lines} is {what}")

    def _word(self, value: object, limit: int = 128) -> str | None:
        return word_of(self.hide(value), limit) if isinstance(value, str) else None

    def _tool(self, value: object) -> str:
        """Return a tool's name as it may be shown: a name that nobody offered is the model's own text."""
        if isinstance(value, str) and (value in self.offered or value in _BUILTINS):
            return value
        is_server = isinstance(value, str) and value.startswith("mcp__")
        return _UNKNOWN_SERVER_TOOL if is_server else _UNKNOWN_TOOL

    def _name(self, event: dict[str, Any]) -> str:
        name = self._word(event.get("type"), 64) or "(no type)"
        subtype = self._word(event.get("subtype"), 64)
        return f"system/{subtype or '(no subtype)'}" if name == "system" else name

    def _blocks(self, event: dict[str, Any], what: str) -> list[dict[str, Any]]:
        message = event.get("message")
        content = message.get("content", []) if isinstance(message, dict) else None
        if isinstance(content, str):
            return []
        if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
            self._problem(f"{what} event without readable content")
            return []
        return content

    def _assistant(self, event: dict[str, Any]) -> None:
        for block in self._blocks(event, "an assistant"):
            # Also server_tool_use and mcp_tool_use, which no arm has.
            if str(block.get("type")).endswith("tool_use"):
                self._tool_use(block)
        message = event.get("message")
        if not isinstance(message, dict) or message.get("model") == _SYNTHETIC:
            return
        if len(self._models) < _MOST_NAMES:
            self._models[self._word(message.get("model"), 200) or "(no model)"] = None
        key, usage = message.get("id"), message_usage(message.get("usage"))
        if not isinstance(key, str):
            key, usage = f"line {self._lines}", None
        before = self._messages.get(key)
        if key not in self._messages and len(self._messages) >= _MOST_KEPT:
            return
        # An output count grows from event to event; a prompt does not.
        if usage is None or (before and before.prompt_tokens > usage.prompt_tokens):
            usage = before
        self._messages[key] = usage

    def _tool_use(self, block: dict[str, Any]) -> None:
        name, key = block.get("name"), block.get("id")
        if not isinstance(name, str) or not isinstance(key, str):
            self._problem("a tool call without name or id")
        elif len(self._calls) < _MOST_KEPT:
            plain = name if block.get("type") == "tool_use" else _UNKNOWN_TOOL
            self._calls.setdefault(key, self._tool(plain))

    def _user(self, event: dict[str, Any]) -> None:
        for block in self._blocks(event, "a user"):
            key = block.get("tool_use_id")
            is_answer = block.get("type") == "tool_result" and isinstance(key, str)
            if is_answer and len(self._answers) < _MOST_KEPT:
                self._answers[str(key)] = block.get("is_error", False) is not False

    def _result(self, event: dict[str, Any]) -> None:
        self.results += 1
        self.last = event
        self._bills.append(bill_of(event, self.is_study_model))
        if len(self._bills) > _MOST_BILLS:
            self._bills.remove(min(self._bills, key=_weight))

    @property
    def answer(self) -> str:
        """The text of a successful result; the text of an error is no answer."""
        good = self.last.get("subtype") == "success" and not self._is_error
        text = self.last.get("result") if good else None
        return text.encode("utf-8", "replace").decode() if isinstance(text, str) else ""

    @property
    def _is_error(self) -> bool:
        # Anything but a plain false is not taken for one.
        return self.last.get("is_error", False) is not False

    def bill(self) -> Bill | None:
        """Return the money of the result that says most; None where no result came."""
        return max(self._bills, key=_weight, default=None)

    def more_usages(self) -> tuple[Usage, ...]:
        """Return every other usage that is known: of all results, and the sum over messages."""
        usages = [usage for bill in self._bills for usage in (bill.usage, bill.least) if usage]
        return (*usages, self.partial_usage())

    def more_costs_usd(self) -> tuple[Decimal, ...]:
        """Return every other cost that was reported: of all results, and summed over models."""
        reported = [bill.reported_usd for bill in self._bills if bill.reported_usd is not None]
        return (*reported, *(bill.by_model_usd for bill in self._bills))

    def models(self) -> tuple[str, ...]:
        """Return every model that answered or was counted, in the order first seen."""
        counted = [self._word(name, 200) or "" for bill in self._bills for name in bill.models]
        return tuple(dict.fromkeys([*self._models, *counted]))[:_MOST_NAMES]

    def largest_prompt_tokens(self) -> int | None:
        """Return the tokens of the largest single prompt, None where a message did not tell its own."""
        known = [usage.prompt_tokens for usage in self._messages.values() if usage is not None]
        return max(known) if known and len(known) == len(self._messages) else None

    def partial_usage(self) -> Usage:
        """Return the sum of what messages told, each once; less than the whole."""
        total = Usage()
        for usage in self._messages.values():
            total = total.plus(usage or Usage())
        return total

    @property
    def messages(self) -> int:
        """How many messages of a model were seen."""
        return len(self._messages)

    def tool_calls(self, server_of: Callable[[str], str | None]) -> tuple[ToolCall, ...]:
        """Return every call requested, once per id, in order; without an answer it is an error."""
        return tuple(
            ToolCall(
                name=name,
                server=server_of(name),
                is_error=self._answers.get(key, True),
                refused=name not in self.offered,
            )
            for key, name in self._calls.items()
        )

    def facts(self) -> AgentFacts:
        """Return what is public of the stream itself."""
        init, last, bill = self._init, self.last, self.bill()
        return AgentFacts(
            stream_problems=tuple(self._stream_problems()),
            results=self.results,
            subtype=self._word(last.get("subtype"), 64),
            is_error=self._is_error if self.results else None,
            api_error_status=count_of(last.get("api_error_status")),
            terminal_reason=self._word(last.get("terminal_reason"), 64),
            version=self._word(init.get("claude_code_version"), 64),
            model=(self._word(init.get("model"), 200) or "(no model)") if init else None,
            tools=self._names(init.get("tools")),
            servers=self._servers(init.get("mcp_servers")) if init else (),
            denials=self._denials(),
            reported_cost_usd=bill.reported_usd if bill else None,
            cost_problems=tuple(self.hide(one) for one in self._cost_problems(bill)),
            num_turns=count_of(last.get("num_turns")),
            duration_ms=count_of(last.get("duration_ms")),
            duration_api_ms=count_of(last.get("duration_api_ms")),
            api_retries=self._retries,
            unknown_events=dict(sorted(self._unknown.items())),
        )

    def _cost_problems(self, bill: Bill | None) -> list[str]:
        if bill is None:
            return []
        largest = max((one.prompt_tokens for one in self._messages.values() if one), default=0)
        if bill.usage is not None and largest > bill.usage.prompt_tokens:
            return [*bill.problems, "modelUsage has fewer tokens than one of the messages"]
        return list(bill.problems)

    def _names(self, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            return (_UNREADABLE,)
        return tuple(self._word(name) or _UNREADABLE for name in value[:_MOST_KEPT])

    def _servers(self, value: object) -> tuple[ServerStatus, ...]:
        if not isinstance(value, list):
            return (ServerStatus(name=_UNREADABLE, status=_UNREADABLE),)
        return tuple(
            ServerStatus(
                name=self._word(server.get("name")) or _UNREADABLE,
                status=self._word(server.get("status"), 64) or "(no status)",
            )
            if isinstance(server, dict)
            else ServerStatus(name=_UNREADABLE, status=_UNREADABLE)
            for server in value[:_MOST_KEPT]
        )

    def _denials(self) -> tuple[str, ...]:
        told = self.last.get("permission_denials", [])
        rows = told[:_MOST_KEPT] if isinstance(told, list) else [told]
        listed = [
            self._tool(one.get("tool_name")) if isinstance(one, dict) else _UNREADABLE
            for one in rows
        ]
        # An event without its row in the result is a denial all the same.
        return (*listed, *(Counter(self._denied) - Counter(listed)).elements())

    def _stream_problems(self) -> list[str]:
        found = list(self._problems)
        if self.results != 1:
            found.append(f"{self.results or 'no'} result events, required exactly one")
        if self._after:
            names = ", ".join(self._after)
            found.append(f"the result is not the last event: {names[:200]} came after it")
        if self._inits != 1:
            found.append(f"{self._inits or 'no'} init events, required exactly one")
        return found


def _weight(bill: Bill) -> tuple[Decimal, bool]:
    return max(bill.reported_usd or money.ZERO, bill.by_model_usd), bill.usage is not None
