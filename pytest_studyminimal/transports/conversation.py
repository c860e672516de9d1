"""The tool loop of one attempt: every paid call reserved first, every ending named."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.errors import (
    AttemptBudgetError,
    BudgetRefusedError,
    RunStoppedError,
)
from pytest_studyminimal.protocol.records import ToolCall, ToolResult, Transcript, Usage
from pytest_studyminimal.protocol.text import one_line
from pytest_studyminimal.transports.endings import End, broken_rule, end_of
from pytest_studyminimal.transports.exchange import Answered, Line, Lost, Secret
from pytest_studyminimal.transports.requests import (
    assistant_message,
    question_message,
    request_body,
    result_block,
)
from pytest_studyminimal.transports.wire import (
    Reply,
    ToolUse,
    WireError,
    clean,
    error_type,
    parse,
    reply_of,
    usage_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from pytest_studyminimal.transports import Assignment, Meter, Toolbox

_LONGEST_KEPT_TEXT = 2_000


class Conversation:
    """What is known of one attempt, from its question to its transcript."""

    def __init__(
        self,
        assignment: Assignment,
        toolbox: Toolbox,
        meter: Meter,
        temperature: Decimal,
        secret: Secret,
    ) -> None:
        self._assignment = assignment
        self._toolbox = toolbox
        self._definitions = toolbox.definitions
        self._offered = tuple(definition.name for definition in self._definitions)
        self._meter = meter
        self._temperature = temperature
        self._secret = secret
        self._messages = [question_message(assignment.question)]
        self._ids: set[str] = set()
        self._started: float | None = None
        self._turns = 0
        self._requests = 0
        self._calls: list[ToolCall] = []
        self._models: list[str] = []
        self._usage = Usage()
        self._usage_complete = True
        self._largest_prompt = 0
        self._stop_reason: str | None = None
        self._answer = ""
        self._raw: list[dict[str, Any]] = []

    def run(self, line: Line) -> End:
        """Ask, run the tools that are wanted, ask again; KeyboardInterrupt passes through."""
        for turn in range(1, self._assignment.turns + 1):
            reply = self._ask(line)
            if isinstance(reply, End):
                return reply
            uses = reply.tool_uses
            self._calls += [self._requested(use) for use in uses]
            end = self._end_of(reply, turn) or self._run_tools(reply, uses)
            if end is not None:
                return end
        return End("finished", f"turn limit {self._assignment.turns} reached")

    def _left_s(self) -> float:
        spent = 0.0 if self._started is None else time.monotonic() - self._started
        return self._assignment.deadline_s - spent

    def _deadline(self) -> End:
        return End("deadline", f"the deadline of {self._assignment.deadline_s:g} s passed")

    def _ask(self, line: Line) -> Reply | End:
        if self._left_s() <= 0:
            return self._deadline()
        body = request_body(
            self._assignment, self._definitions, self._messages, temperature=self._temperature
        )
        try:
            self._meter.reserve(
                request_bytes=len(body), output_tokens=self._assignment.output_tokens
            )
        except (BudgetRefusedError, RunStoppedError) as refusal:
            return End("budget", str(refusal))
        except AttemptBudgetError as refusal:
            return End("attempt-budget", str(refusal))
        return self._paid_call(line, body)

    def _paid_call(self, line: Line, body: bytes) -> Reply | End:
        usage: Usage | None = None
        try:
            answered = self._post(line, body)
            if isinstance(answered, Lost):
                return self._deadline() if answered.expired else End("transport", answered.problem)
            document = self._opened(answered)
            if isinstance(document, End):
                return document
            usage = usage_of(document)
            return self._understood(document, usage)
        finally:
            # Whatever happened, Ctrl-C too: what may have been charged is charged.
            self._close_reservation(usage)

    def _post(self, line: Line, body: bytes) -> Answered | Lost:
        if self._started is None:
            self._started = time.monotonic()
        left_s = self._left_s()
        if left_s <= 0:
            # The wait for the ledger took what was left: nothing was sent.
            return Lost("the deadline passed", expired=True)
        self._requests += 1
        self._raw.append({"request": self._requests})
        return line.post(body, within_s=left_s)

    def _close_reservation(self, usage: Usage | None) -> None:
        if usage is None:
            self._usage_complete = False
            self._meter.retain()
            return
        self._usage = self._usage.plus(usage)
        self._largest_prompt = max(self._largest_prompt, usage.prompt_tokens)
        self._meter.settle(usage)

    def _opened(self, answered: Answered) -> dict[str, Any] | End:
        entry = self._raw[-1]
        entry["status"] = answered.status
        if answered.status == 200:
            try:
                document = parse(answered.body)
            except WireError as error:
                end = End("protocol", str(error))
            else:
                entry["reply"] = clean(document)
                return document
        else:
            kind = error_type(answered.body)
            end = End("transport", f"HTTP {answered.status}" + (f" ({kind})" if kind else ""))
        text = answered.body[:_LONGEST_KEPT_TEXT].decode("utf-8", "replace")
        entry["text"] = self._secret.hide(text)
        return end

    def _understood(self, document: dict[str, Any], usage: Usage | None) -> Reply | End:
        try:
            reply = reply_of(document)
        except WireError as error:
            return End("protocol", str(error))
        self._turns += 1
        self._stop_reason = reply.stop_reason
        self._answer = reply.text
        if reply.model not in self._models:
            self._models.append(reply.model)
        if usage is not None:
            return reply
        return End("protocol", "the response's usage is missing or invalid")

    def _end_of(self, reply: Reply, turn: int) -> End | None:
        broken = broken_rule(reply, self._ids)
        if broken is not None:
            return End("protocol", broken)
        self._ids.update(use.id for use in reply.tool_uses)
        return end_of(reply, self._assignment, turn)

    def _requested(self, use: ToolUse) -> ToolCall:
        # Not dispatched until it is: a call that is never reached is still a call requested.
        server = self._toolbox.server_of(use.name) if use.name in self._offered else None
        return ToolCall(name=one_line(use.name, 128), server=server, refused=True)

    def _run_tools(self, reply: Reply, uses: Sequence[ToolUse]) -> End | None:
        first = len(self._calls) - len(uses)
        results: list[dict[str, Any]] = []
        self._raw[-1]["tool_results"] = results
        blocks = []
        for place, use in enumerate(uses, first):
            if self._left_s() <= 0:
                return self._deadline()
            block = result_block(use, self._run_tool(place, use))
            blocks.append(block)
            results.append(clean(block))
        self._messages += [assistant_message(reply), {"role": "user", "content": blocks}]
        return None

    def _run_tool(self, place: int, use: ToolUse) -> ToolResult:
        offered = use.name in self._offered
        # An error until it has ended, so that a call cut by Ctrl-C is one.
        started = {"is_error": True, "refused": not offered}
        self._calls[place] = self._calls[place].model_copy(update=started)
        if not offered:
            return ToolResult(text="There is no tool of that name.", is_error=True)
        result = self._dispatch(use)
        ended = {"is_error": result.is_error, "original_bytes": result.original_bytes}
        self._calls[place] = self._calls[place].model_copy(update=ended)
        return result

    def _dispatch(self, use: ToolUse) -> ToolResult:
        arguments, timeout_s = clean(use.arguments), self._assignment.tool_s
        try:
            return self._toolbox.call(use.name, arguments, timeout_s=timeout_s)
        except Exception:  # noqa: BLE001
            # A toolbox never raises; should it, its words are not for the model.
            return ToolResult(text="The tool failed.", is_error=True)

    def transcript(self, end: End) -> Transcript:
        """Return what was seen until `end`, in valid UTF-8 and without the key."""
        wall_s = 0.0 if self._started is None else time.monotonic() - self._started
        return Transcript(
            transport="messages-api",
            ending=end.ending,
            problem=None if end.problem is None else one_line(self._secret.hide(end.problem)),
            models=tuple(self._secret.hide(model) for model in self._models),
            offered_tools=self._offered,
            turns=self._turns,
            requests=self._requests,
            tool_calls=tuple(self._calls),
            usage=self._usage,
            usage_complete=self._usage_complete,
            largest_prompt_tokens=self._largest_prompt,
            stop_reason=self._stop_reason and self._secret.hide(self._stop_reason),
            answer=self._answer,
            answer_complete=end.answer_complete,
            wall_s=wall_s,
            raw=tuple(self._raw),
        )
