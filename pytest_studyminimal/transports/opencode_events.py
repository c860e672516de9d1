"""The JSON events of `opencode run`, read into facts; nothing here judges.

Shapes measured with 1.18.33 on 2026-11-30. Tokens and dollars stand in each `step_finish` and are summed;
input excludes the cache, output excludes reasoning. The cost is computed by the CLI from the prices that
it was given: where a step has none, the whole is unknown and the rest is kept as a part. No event tells
the version, the model, the tools that were offered or the servers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import AgentFacts, Usage
from pytest_studyminimal.transports.agent_errors import block_of_code, block_of_status, code_in
from pytest_studyminimal.transports.reading import Reading
from pytest_studyminimal.transports.stream import cost_of, count_of

if TYPE_CHECKING:
    from decimal import Decimal

    from pytest_studyminimal.protocol.records import Block

UNSTATED = ("offered-tools", "served-model", "servers")
_STOPS = frozenset({"stop", "length"})
_REJECTED = "The user rejected permission to use this specific tool call."
_INVALID = "invalid"
_BY_NAME: dict[str, Block] = {
    "ProviderAuthError": "authentication",
    "ProviderModelNotFoundError": "model-access",
    "ModelNotFoundError": "model-access",
}


@dataclass(frozen=True)
class _Step:
    reason: str
    usage: Usage | None
    cost_usd: Decimal | None


@dataclass
class OpenCodeEvents(Reading):
    """What one stream says so far; feed it every line in order."""

    transport = "opencode"
    _steps: dict[str, _Step] = field(default_factory=dict)
    _open: bool = False
    _error: dict[str, Any] | None = None
    _texts: dict[str, list[str]] = field(default_factory=dict)
    _message: str = ""

    def read(self, name: str, event: dict[str, Any]) -> None:
        """See `Reading`."""
        part = event.get("part")
        if name == "error":
            error = event.get("error")
            self._error = error if isinstance(error, dict) else {}
            self._open = False
            self.results += 1
        elif name not in {"step_start", "text", "reasoning", "tool_use", "step_finish"}:
            self.count(name)
        elif not isinstance(part, dict):
            self.problem(f"a {name} event without its part")
        else:
            self._part(name, part)

    def _part(self, name: str, part: dict[str, Any]) -> None:
        self.started = True
        match name:
            case "step_start":
                self._open = True
            case "text":
                self._text(part)
            case "tool_use":
                self._tool(part)
            case "step_finish":
                self._finish(part)

    def _text(self, part: dict[str, Any]) -> None:
        text = part.get("text")
        if isinstance(text, str):
            self._texts.setdefault(str(part.get("messageID")), []).append(text)
        else:
            self.problem("a text event without text")

    def _tool(self, part: dict[str, Any]) -> None:
        name, state = part.get("tool"), part.get("state")
        if not isinstance(name, str) or not isinstance(state, dict):
            self.problem("a tool call without name or state")
            return
        failed = state.get("status") != "completed" or name == _INVALID
        if state.get("error") == _REJECTED:
            self.block = self.block or "permission"
        key = part.get("callID") or part.get("id")
        self.call(str(key), name, is_error=failed)

    def _finish(self, part: dict[str, Any]) -> None:
        self._open = False
        reason = part.get("reason")
        usage = _usage_of(part.get("tokens"))
        if usage is None:
            self.problem("a step without readable tokens")
        # The same part told twice is one step.
        key = part.get("id")
        key = key if isinstance(key, str) else f"line {self._lines}"
        step = _Step(reason if isinstance(reason, str) else "", usage, cost_of(part.get("cost")))
        self._steps.pop(key, None)
        self._steps[key] = step
        self._message = str(part.get("messageID"))
        self.results += step.reason in _STOPS

    @property
    def _last(self) -> _Step | None:
        return next(reversed(self._steps.values()), None)

    @property
    def is_over(self) -> bool:
        """Whether the last step ended with a stop, or an error ended it."""
        stopped = self._last is not None and self._last.reason in _STOPS
        return not self._open and (stopped or self._error is not None)

    @property
    def steps(self) -> int:
        """How many steps ended; a broken provider makes the CLI loop for ever."""
        return len(self._steps)

    @property
    def turns(self) -> int:
        """How many steps ended."""
        return len(self._steps)

    @property
    def answer(self) -> str:
        """The texts of the message that the last step ended with."""
        return "\n".join(self._texts.get(self._message, ())) if self._is_good else ""

    @property
    def answer_is_cut(self) -> bool:
        """Whether the model ran into its limit."""
        return self._last is not None and self._last.reason == "length"

    @property
    def _is_good(self) -> bool:
        return self.is_over and self._error is None

    def usage(self) -> Usage | None:
        """Return the sum of all steps; None where one told nothing, or the stream broke off."""
        known = [step.usage for step in self._steps.values()]
        whole = self._is_good and known and all(one is not None and one != Usage() for one in known)
        return self.partial_usage() if whole else None

    def partial_usage(self) -> Usage:
        """Return the sum of the steps that told theirs."""
        total = Usage()
        for step in self._steps.values():
            total = total.plus(step.usage or Usage())
        return total

    def partial_costs_usd(self) -> tuple[Decimal, ...]:
        """Return the sum of the known costs where it is not the whole."""
        known = self._known_usd()
        return (known,) if known and self._cost_usd() is None else ()

    def _known_usd(self) -> Decimal:
        return money.total(step.cost_usd for step in self._steps.values() if step.cost_usd)

    def _cost_usd(self) -> Decimal | None:
        # Zero is what it writes where a model has no price.
        priced = all(step.cost_usd for step in self._steps.values())
        return self._known_usd() if self._steps and priced and self._is_good else None

    def facts(self) -> AgentFacts:
        """Return what is public of the stream itself."""
        cost, partial = self._cost_usd(), self.partial_costs_usd()
        missing = [*(() if self.usage() else ("usage",)), *(() if cost is not None else ("cost",))]
        failed = self._error is not None
        return AgentFacts(
            stream_problems=(*self.problems, *self._missing()),
            results=1 if self.is_over else 0,
            subtype=self._subtype(),
            is_error=failed if self.is_over else None,
            api_error_status=count_of(self._data().get("statusCode")),
            reported_cost_usd=cost,
            partial_cost_usd=partial[0] if partial else None,
            num_turns=self.turns,
            unknown_events=dict(sorted(self.unknown.items())),
            unstated=(*UNSTATED, *missing),
            block=self.block or self._block(),
        )

    def _subtype(self) -> str | None:
        if self._error is not None:
            return self.word(self._error.get("name"), 64) or "error"
        return "success" if self.is_over else None

    def _missing(self) -> list[str]:
        if self.is_over or self._error is not None:
            return []
        if self._last is None or self._open:
            return ["no step_finish event at the end, required one with a reason to stop"]
        reason = self.word(self._last.reason, 64) or "no reason"
        return [f"the last step ended with {reason}, required stop or length"]

    def _data(self) -> dict[str, Any]:
        data = (self._error or {}).get("data")
        return data if isinstance(data, dict) else {}

    def _block(self) -> Block | None:
        if self._error is None:
            return None
        name = self._error.get("name")
        if isinstance(name, str) and name in _BY_NAME:
            return _BY_NAME[name]
        status = block_of_status(count_of(self._data().get("statusCode")))
        return status or block_of_code(code_in(self._data().get("responseBody")))


def _usage_of(told: object) -> Usage | None:
    if not isinstance(told, dict):
        return None
    cache = told.get("cache", {})
    if not isinstance(cache, dict):
        return None
    found = [count_of(told.get(name)) for name in ("input", "output")]
    found.append(count_of(told.get("reasoning", 0)))
    found += [count_of(cache.get(name, 0)) for name in ("read", "write")]
    known = [count for count in found if count is not None]
    if len(known) != len(found):
        return None
    given, output, reasoning, read, written = known
    return Usage(
        input_tokens=given,
        output_tokens=output + reasoning,
        cache_read_tokens=read,
        cache_write_1h_tokens=written,
        reasoning_tokens=reasoning,
    )
