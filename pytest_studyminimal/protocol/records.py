"""The values that walk through an attempt: planned, seen, judged."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, PlainSerializer

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.frozen import Frozen

# Without an exponent: 0.0000004 is not to be read as 4E-7 in the ledger.
Dollars = Annotated[Decimal, PlainSerializer(money.text, return_type=str, when_used="json")]

Status = Literal[
    "completed",
    "failed",
    "timed-out",
    "budget-exceeded",
    "invalid-setup",
    "invalid-cost",
    "blocked",
]


class Attempt(Frozen):
    """One task × scenario × repetition at its `place` (0-based) in the frozen order.

    An adjudication has no scenario: its task is the packet that it judges, and so is its id.
    """

    place: int
    task: str
    scenario: str
    repetition: int
    connection: str

    @property
    def id(self) -> str:
        """The stable id `task:scenario:repetition` or `p01`, the same in every process."""
        if not self.scenario:
            return self.task
        return f"{self.task}:{self.scenario}:{self.repetition}"

    @property
    def pair(self) -> str:
        """What the arms of this attempt are paired by: `task:repetition`."""
        return f"{self.task}:{self.repetition}"


class Usage(Frozen):
    """Tokens of one or more paid calls as the provider counted them; input excludes the cache.

    Reasoning is part of output, and 0 where it is not told apart.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_5m_tokens: int = 0
    cache_write_1h_tokens: int = 0
    reasoning_tokens: int = 0

    @property
    def cache_write_tokens(self) -> int:
        """Both kinds of cache writes."""
        return self.cache_write_5m_tokens + self.cache_write_1h_tokens

    @property
    def prompt_tokens(self) -> int:
        """All that the model read: input, cache reads and cache writes. It decides the price tier."""
        return self.input_tokens + self.cache_read_tokens + self.cache_write_tokens

    def plus(self, other: Usage) -> Usage:
        """Return the sum of both."""
        mine, theirs = self.model_dump(), other.model_dump()
        return Usage(**{name: mine[name] + theirs[name] for name in mine})


class ToolDefinition(Frozen):
    """A tool as a model sees it; `name` is the wire name, `[A-Za-z0-9_-]{1,64}`."""

    name: str
    description: str
    input_schema: dict[str, JsonValue]


class ToolResult(Frozen):
    """What a tool answered. `original_bytes` is set where the text was cut to fit."""

    text: str
    is_error: bool = False
    original_bytes: int | None = None


class ToolCall(Frozen):
    """One call that the model requested. `server` is None for repository and unknown tools."""

    name: str
    server: str | None = None
    is_error: bool = False
    original_bytes: int | None = None
    refused: bool = False
    """The tool was not offered: it was never dispatched."""


Ending = Literal[
    "finished",  # the provider's last word was received and understood
    "deadline",  # our deadline ended it
    "interrupted",  # Ctrl-C, SIGTERM or the end of the session
    "budget",  # a paid call was refused under the cap of the account
    "attempt-budget",  # a paid call was refused under the attempt's own reservation
    "transport",  # HTTP error, lost or unreadable response
    "protocol",  # a response that breaks the provider's own rules
]


class ServerStatus(Frozen):
    """An MCP server as an agent CLI reported it; `connected` is the one good status."""

    name: str
    status: str


Block = Literal["budget", "environment", "permission", "authentication", "model-access"]
"""What keeps an agent from its work without being its fault."""


class AgentFacts(Frozen):
    """What an agent CLI's process and stream showed beside messages; all of it is public.

    `exit_status` is negative for a signal and None where the process had to be ended. `stayed` says
    that it did not exit after its result, `cut` that its output passed the cap. `results` counts
    result events. `reported_cost_usd` is the largest valid one, in dollars. `partial_usage` is set
    where no result told the whole. `startup_s` is the time from start to the init event. `unstated` are
    the things that a stream does not tell: an unknown is a value of its own. `partial_cost_usd` is known
    to be less than the whole. `block` is what native fields say kept the agent from its work.
    """

    exit_status: int | None = None
    stayed: bool = False
    cut: bool = False
    stream_problems: tuple[str, ...] = ()
    results: int = 0
    subtype: str | None = None
    is_error: bool | None = None
    api_error_status: int | None = None
    terminal_reason: str | None = None
    version: str | None = None
    model: str | None = None
    tools: tuple[str, ...] = ()
    servers: tuple[ServerStatus, ...] = ()
    denials: tuple[str, ...] = ()
    reported_cost_usd: Dollars | None = None
    cost_problems: tuple[str, ...] = ()
    num_turns: int | None = None
    duration_ms: int | None = None
    duration_api_ms: int | None = None
    startup_s: float | None = None
    api_retries: int = 0
    unknown_events: dict[str, int] = Field(default_factory=dict)
    unstated: tuple[str, ...] = ()
    partial_cost_usd: Dollars | None = None
    block: Block | None = None


class Transcript(Frozen):
    """What a transport saw, normalised and unjudged.

    `usage` sums the paid calls whose usage was valid; `usage_complete` is false where any was lost.
    `models` are the served models in the order first seen. `stop_reason` is the last one received.
    `problem` is one public line about an ending other than "finished". `answer` and `raw` are private.
    `largest_prompt_tokens` is None where single prompts are not known. `agent` is None for an API.
    `more_usages` and `more_costs_usd` are further costs that are known beside the attempt's own: of
    other results, of messages, of models. `stream` is what an agent's process wrote on stdout, byte by
    byte, `stderr` the end of the other.
    """

    transport: str
    ending: Ending
    problem: str | None = None
    models: tuple[str, ...] = ()
    offered_tools: tuple[str, ...] = ()
    turns: int = 0
    requests: int = 0
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    usage_complete: bool = True
    largest_prompt_tokens: int | None = 0
    stop_reason: str | None = None
    answer: str = ""
    answer_complete: bool = False
    wall_s: float = 0.0
    raw: tuple[dict[str, Any], ...] = ()
    agent: AgentFacts | None = None
    more_usages: tuple[Usage, ...] = ()
    more_costs_usd: tuple[Dollars, ...] = ()
    stream: bytes = b""
    stderr: str = ""


class Judgement(Frozen):
    """What the rule book says of a transcript: one status, one public reason, every problem found.

    `stops` says that nothing may follow in this run.
    """

    status: Status
    reason: str | None = None
    problems: tuple[str, ...] = ()
    stops: bool = False


class Observation(Frozen):
    """A judged attempt as the ledger holds it; amounts are dollars, `None` is unknown, never zero."""

    attempt: Attempt
    status: Status
    reason: str | None = None
    problems: tuple[str, ...] = ()
    transport: str
    model: str
    models_seen: tuple[str, ...] = ()
    turns: int | None = None
    requests: int | None = None
    tool_calls: int | None = None
    tool_calls_by_name: dict[str, int] = Field(default_factory=dict)
    tool_errors_by_name: dict[str, int] = Field(default_factory=dict)
    tool_results_cut: int = 0
    cut_results_original_bytes: tuple[int, ...] = ()
    server_noise_lines: dict[str, int] = Field(default_factory=dict)
    offered_tools: tuple[str, ...] = ()
    usage: Usage | None = None
    usage_complete: bool = False
    charged_usd: Dollars
    computed_cost_usd: Dollars | None = None
    reported_cost_usd: Dollars | None = None
    cost_basis: str | None = None
    stop_reason: str | None = None
    answer_complete: bool = False
    answer_sha256: str | None = None
    wall_s: float | None = None
    rehearsal: bool
    cumulative_cap_exceeded: bool = False
    expected_version: str | None = None
    attempt_budget_usd: Dollars | None = None
    index_sha256: str | None = None
    adjudication: Literal["pending"] = "pending"
    agent: AgentFacts | None = None
