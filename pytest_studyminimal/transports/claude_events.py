"""The stream-json events of Claude Code, read into facts; nothing here judges.

Shapes measured with 2.1.296 on 2026-11-30. A message comes as one event for each of its blocks, all
with its id and the usage snapshot of its start: counted once per id, and only used to find the
largest single prompt. Unknown events are tolerated and counted by name.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.records import AgentFacts, ServerStatus, ToolCall, Usage
from pytest_studyminimal.transports.claude_usage import Bill, bill_of, message_usage
from pytest_studyminimal.transports.stream import EventError, count_of, event_of, word_of

if TYPE_CHECKING:
    from collections.abc import Callable

_SYNTHETIC = "<synthetic>"
"""The CLI speaking in place of a model, as in "Not logged in"."""
_MOST_NAMES = 40
_MOST_PROBLEMS = 20


def _objects(value: object) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


@dataclass
class ClaudeEvents:
    """What one stream says so far; feed it every line in order.

    `is_study_model` tells the study's own model name from another; `hide` is applied to every word
    of the stream before it may become public.
    """

    is_study_model: Callable[[str], bool]
    hide: Callable[[str], str] = str
    started: bool = False
    results: list[dict[str, Any]] = field(default_factory=list)
    _lines: int = 0
    _problems: list[str] = field(default_factory=list)
    _inits: list[dict[str, Any]] = field(default_factory=list)
    _after: list[str] = field(default_factory=list)
    _unknown: Counter[str] = field(default_factory=Counter)
    _retries: int = 0
    _denied: list[str] = field(default_factory=list)
    _models: dict[str, None] = field(default_factory=dict)
    _messages: dict[str, Usage | None] = field(default_factory=dict)
    _calls: dict[str, str] = field(default_factory=dict)
    _answers: dict[str, bool] = field(default_factory=dict)

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
            self._after.append(name)
        match name:
            case "assistant":
                self._assistant(event)
            case "user":
                self._user(event)
            case "result":
                self.results.append(event)
            case "system/init":
                self.started = True
                self._inits.append(event)
            case "system/api_retry":
                self._retries += 1
            case "system/permission_denied":
                self._denied.append(self._word(event.get("tool_name")) or "(unnamed)")
            case _:
                self._count(name)

    def _problem(self, what: str) -> None:
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(f"line {self._lines} is {what}")

    def _word(self, value: object, limit: int = 128) -> str | None:
        return word_of(self.hide(value), limit) if isinstance(value, str) else None

    def _name(self, event: dict[str, Any]) -> str:
        name = self._word(event.get("type"), 64) or "(no type)"
        subtype = self._word(event.get("subtype"), 64)
        return f"system/{subtype or '(no subtype)'}" if name == "system" else name

    def _count(self, name: str) -> None:
        known = name in self._unknown or len(self._unknown) < _MOST_NAMES
        self._unknown[name if known else "(others)"] += 1

    def _assistant(self, event: dict[str, Any]) -> None:
        message = event.get("message")
        if not isinstance(message, dict):
            self._problem("an assistant event without a message")
            return
        for block in _objects(message.get("content")):
            if block.get("type") == "tool_use":
                self._tool_use(block)
        model = message.get("model")
        if model == _SYNTHETIC:
            return
        self._models[self._word(model, 200) or "(no model)"] = None
        key = message.get("id")
        usage = message_usage(message.get("usage"))
        if not isinstance(key, str):
            key, usage = f"line {self._lines}", None
        before = self._messages.get(key, usage)
        # An output count grows from event to event; a prompt does not.
        if usage is None or before is None or usage.prompt_tokens >= before.prompt_tokens:
            self._messages[key] = usage

    def _tool_use(self, block: dict[str, Any]) -> None:
        name, key = self._word(block.get("name")), block.get("id")
        if name is None or not isinstance(key, str):
            self._problem("a tool call without name or id")
        else:
            self._calls.setdefault(key, name)

    def _user(self, event: dict[str, Any]) -> None:
        message = event.get("message")
        content = message.get("content") if isinstance(message, dict) else None
        for block in _objects(content):
            key = block.get("tool_use_id")
            if block.get("type") == "tool_result" and isinstance(key, str):
                self._answers[key] = block.get("is_error") is True

    @property
    def last(self) -> dict[str, Any]:
        """The last result event, empty where none came."""
        return self.results[-1] if self.results else {}

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
        bills = [bill_of(result, self.is_study_model) for result in self.results]
        return max(
            bills, key=lambda bill: (bill.reported_usd or 0, bill.usage is not None), default=None
        )

    def models(self) -> tuple[str, ...]:
        """Return every model that answered or was counted, in the order first seen."""
        bills = [bill_of(result, self.is_study_model) for result in self.results]
        counted = [name for bill in bills for name in bill.models]
        named = [self._word(name, 200) or "" for name in counted]
        return tuple(dict.fromkeys([*self._models, *named]))

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

    def tool_calls(
        self, offered: tuple[str, ...], server_of: Callable[[str], str | None]
    ) -> tuple[ToolCall, ...]:
        """Return every call requested, once per id, in order; without an answer it is an error."""
        return tuple(
            ToolCall(
                name=name,
                server=server_of(name),
                is_error=self._answers.get(key, True),
                refused=name not in offered,
            )
            for key, name in self._calls.items()
        )

    def facts(self) -> AgentFacts:
        """Return what is public of the stream itself."""
        init = self._inits[0] if self._inits else {}
        last, bill = self.last, self.bill()
        return AgentFacts(
            stream_problems=tuple(self._stream_problems()),
            results=len(self.results),
            subtype=self._word(last.get("subtype"), 64),
            is_error=self._is_error if self.results else None,
            api_error_status=count_of(last.get("api_error_status")),
            terminal_reason=self._word(last.get("terminal_reason"), 64),
            version=self._word(init.get("claude_code_version"), 64),
            model=(self._word(init.get("model"), 200) or "(no model)") if init else None,
            tools=self._names(init.get("tools")),
            servers=tuple(
                ServerStatus(
                    name=self._word(server.get("name")) or "(unnamed)",
                    status=self._word(server.get("status"), 64) or "(no status)",
                )
                for server in _objects(init.get("mcp_servers"))
            ),
            denials=self._denials(),
            reported_cost_usd=bill.reported_usd if bill else None,
            cost_problems=tuple(self.hide(one) for one in bill.problems) if bill else (),
            num_turns=count_of(last.get("num_turns")),
            duration_ms=count_of(last.get("duration_ms")),
            duration_api_ms=count_of(last.get("duration_api_ms")),
            api_retries=self._retries,
            unknown_events=dict(sorted(self._unknown.items())),
        )

    def _names(self, value: object) -> tuple[str, ...]:
        names = value if isinstance(value, list) else []
        return tuple(self._word(name) or "(unnamed)" for name in names)

    def _denials(self) -> tuple[str, ...]:
        told = self.last.get("permission_denials")
        if not isinstance(told, list):
            return tuple(self._denied)
        listed = [
            self._word(one.get("tool_name") if isinstance(one, dict) else None) or "(unnamed)"
            for one in told
        ]
        # An event without its row in the result is a denial all the same.
        return (*listed, *(Counter(self._denied) - Counter(listed)).elements())

    def _stream_problems(self) -> list[str]:
        found = list(self._problems)
        if len(self.results) != 1:
            found.append(f"{len(self.results) or 'no'} result events, required exactly one")
        if self._after:
            names = ", ".join(dict.fromkeys(self._after))
            found.append(f"the result is not the last event: {names[:200]} came after it")
        if len(self._inits) != 1:
            found.append(f"{len(self._inits) or 'no'} init events, required exactly one")
        return found
