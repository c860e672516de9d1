"""The manifest: one frozen, strict model of a study, and the digest that binds evidence to it."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

import rfc8785
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    JsonValue,
    PlainSerializer,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.frozen import Frozen
from pytest_studyminimal.protocol.text import one_line

ID_RULE = "lower-case words joined by single hyphens, such as docs-mcp"


def _amount(value: object) -> Decimal:
    # Defaults arrive as Decimal already; files can only give text.
    return value if isinstance(value, Decimal) else money.parse(value)


def _no_boolean(value: object) -> object:
    # A literal 1 takes True as well.
    if isinstance(value, bool):
        raise ValueError("1")  # noqa: TRY004 - pydantic reads ValueError
    return value


def _positive(amount: Decimal) -> Decimal:
    if amount <= 0:
        raise ValueError("an amount above 0; zero never means unlimited, it means no paid work")
    return amount


def _at_most_one(amount: Decimal) -> Decimal:
    if amount > 1:
        raise ValueError("a temperature from 0 to 1")
    return amount


def _at_most_one_score(amount: Decimal) -> Decimal:
    if amount > 1:
        raise ValueError("a score from 0 to 1")
    return amount


def _relative(path: str) -> str:
    parts = PurePosixPath(path)
    if not path or parts.is_absolute() or ".." in parts.parts or "\\" in path or "\0" in path:
        raise ValueError("a relative path inside the study folder, with forward slashes")
    return path


def _base_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable or not all("!" <= char <= "~" for char in url):
        raise ValueError("an http or https address with a host, in plain ASCII")
    if any(mark in url for mark in "@?#"):
        raise ValueError("an address without user, password, query or fragment")
    loopback = parts.hostname in {"localhost", "127.0.0.1", "::1"}
    if parts.scheme == "http" and not loopback:
        raise ValueError("https, since a key over plain http can be read; http only on loopback")
    return url.rstrip("/")


def _iso_date(text: str) -> str:
    try:
        day = dt.date.fromisoformat(text).isoformat()
    except ValueError:
        day = None
    if day != text:
        raise ValueError('a date such as "2026-10-10"')
    return text


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) != len(values):
        raise ValueError("each name once")
    return values


Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
Amount = Annotated[
    Decimal,
    BeforeValidator(_amount),
    PlainSerializer(money.text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "pattern": f"^{money.AMOUNT_PATTERN}$"}),
]
Usd = Annotated[Amount, AfterValidator(_positive)]
Commit = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")]
RelativePath = Annotated[str, AfterValidator(_relative)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
NonEmpty = Annotated[str, StringConstraints(min_length=1, max_length=20_000)]
Names = Annotated[tuple[NonEmpty, ...], AfterValidator(_unique)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


class Prompt(Frozen):
    """What surrounds the question. Absent: the prompt is the question's bytes and nothing else."""

    system: NonEmpty | None = None


class Limits(Frozen):
    """What one attempt may take; the defaults are the protocol's."""

    turns: Count = 8
    output_tokens: Count = 1024
    tools_per_turn: Count = 20
    deadline_s: Count = 300
    tool_s: Count = 30
    start_s: Count = 30
    tool_result_bytes: Count = 100_000
    stdout_bytes: Count = 4_194_304
    prompt_bytes: Count = 8192


class BudgetPlan(Frozen):
    """Caps in dollars: of the pilot, of the full run (both cumulative) and of one attempt.

    With `unlimited` the word may be given as the cap of a full run; nothing else ever means it.
    """

    pilot_usd: Usd
    full_usd: Usd
    attempt_usd: Usd
    unlimited: bool = False


_EVERYBODYS = frozenset({"PATH", "TMPDIR", "TZ", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL"})


Transport = Literal["messages-api", "claude-code"]

_NO_CLI_READS = frozenset({"ANTHROPIC_API_KEY"})
_VERSION = re.compile(r"[0-9]+(\.[0-9]+){1,3}([-+.][0-9A-Za-z.-]+)?", re.ASCII)


class Connection(Frozen):
    """How prompts reach a model: transport, provider, model and the *name* of the key's variable.

    `version` is that of the API, or the one build of an agent CLI that may run. An agent CLI gets
    the variables named in `env`, beside those of every child, and logs in by itself. `attempt_usd`
    takes the place of the budget's for attempts over this connection.
    """

    transport: Transport
    model: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,200}$")]
    provider: Literal["anthropic", "rehearsal"] = "anthropic"
    alias: bool = False
    version: Annotated[str, StringConstraints(pattern=r"^[!-~]{1,40}$")] = "2023-06-01"
    base_url: Annotated[str, AfterValidator(_base_url)] | None = None
    key: VariableName | None = None
    temperature: Annotated[Amount, AfterValidator(_at_most_one)] = money.ZERO
    env: Annotated[tuple[VariableName, ...], AfterValidator(_unique)] = ()
    attempt_usd: Usd | None = None

    @property
    def is_agent(self) -> bool:
        """Whether the route is an agent CLI, a program of its own, and not an API."""
        return self.transport != "messages-api"

    @model_validator(mode="after")
    def _agent_is_pinned(self) -> Self:
        if not self.is_agent:
            if self.env:
                raise ValueError("no env with an API, which is not a child process")
            return self
        api_only = {"base_url", "key", "temperature"} & self.model_fields_set
        if api_only:
            raise ValueError(
                f"no {' and no '.join(sorted(api_only))} with transport = {self.transport!r}: the CLI"
                " has its own login and its own sampling"
            )
        if "version" not in self.model_fields_set or not _VERSION.fullmatch(self.version):
            raise ValueError(
                f'the exact version of the CLI with transport = "{self.transport}", such as "2.1.296"'
            )
        if refused := sorted(_NO_CLI_READS & set(self.env)):
            raise ValueError(f"an env without {refused[0]}: the CLI uses its own login")
        return self

    @model_validator(mode="after")
    def _provider_is_reachable(self) -> Self:
        if self.is_agent:
            return self
        if self.key in _EVERYBODYS:
            raise ValueError("a key in a variable of its own; every child process gets that one")
        if self.provider == "rehearsal" and (self.base_url or self.key):
            raise ValueError('no base_url and no key with provider = "rehearsal", which is local')
        if self.provider == "anthropic" and not (self.base_url and self.key):
            raise ValueError(
                'base_url and key (the name of an environment variable) with provider = "anthropic"'
            )
        return self


class Tier(Frozen):
    """List prices in dollars per million tokens, for prompts of up to a number of tokens."""

    up_to_prompt_tokens: Count | None = None
    input: Usd
    output: Usd
    cache_read: Amount
    cache_write_5m: Amount
    cache_write_1h: Amount


class Prices(Frozen):
    """A dated price table with its source; the last tier has no limit."""

    source: NonEmpty
    date: Annotated[str, AfterValidator(_iso_date)]
    tiers: Annotated[tuple[Tier, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _tiers_ascend(self) -> Self:
        limits = [tier.up_to_prompt_tokens for tier in self.tiers]
        bounded = [limit for limit in limits[:-1] if limit is not None]
        if limits[-1] is not None or len(bounded) != len(limits) - 1:
            raise ValueError("up_to_prompt_tokens on every tier but the last")
        if bounded != sorted(set(bounded)):
            raise ValueError("tiers with rising up_to_prompt_tokens")
        return self


class CorpusPin(Frozen):
    """A git repository at a commit, given by root or by a bundle in the study folder."""

    commit: Commit
    bundle: RelativePath | None = None
    exclude: Names = ()
    source: NonEmpty | None = None


class Readiness(Frozen):
    """A call that a ready server answers without error."""

    tool: NonEmpty
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class Server(Frozen):
    """A stdio MCP server: argument array, environment, and the exact tools that may be offered.

    Placeholders in `argv`, `cwd`, `env`, `version` and `identity`: {python} {study} {export}
    {checkout} {config} {engine}. `cwd` defaults to the study folder, which is {study}. `index` are
    patterns of paths that the server itself may write in its checkout, such as its own index.
    """

    argv: Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
    allow: Annotated[Names, Field(min_length=1)]
    ready: Readiness
    env: dict[VariableName, str] = Field(default_factory=dict)
    pass_env: Annotated[tuple[VariableName, ...], AfterValidator(_unique)] = ()
    cwd: NonEmpty = "{study}"
    identity: Names = ()
    version: tuple[NonEmpty, ...] = ()
    index: Names = ()

    def uses(self, placeholder: str) -> bool:
        """Whether `{placeholder}` stands anywhere in this server's configuration."""
        texts = (*self.argv, *self.env.values(), self.cwd, *self.version, *self.identity)
        return any("{" + placeholder + "}" in text for text in texts)

    @model_validator(mode="after")
    def _placeholders_known(self) -> Self:
        known = {"python", "study", "export", "checkout", "config", "engine"}
        for text in (*self.argv, *self.env.values(), self.cwd, *self.version, *self.identity):
            for name in re.findall(r"\{([a-z_]+)\}", text):
                if name not in known:
                    among = f"{{{'}, {'.join(sorted(known))}}}"
                    raise ValueError(f"placeholders among {among}, not {{{one_line(name, 40)}}}")
        return self


class Scenario(Frozen):
    """One arm: repository tools and servers."""

    tools: Annotated[tuple[Literal["list", "read", "search"], ...], AfterValidator(_unique)] = ()
    servers: Annotated[tuple[Id, ...], AfterValidator(_unique)] = ()


class Task(Frozen):
    """One question about one corpus; its answer lives in the answer key, never here."""

    id: Id
    corpus: Id
    question: NonEmpty
    kind: NonEmpty = "question"
    title: NonEmpty | None = None


class Schedule(Frozen):
    """How often, in what rotation, and whether pairs may run in parallel."""

    repetitions: Annotated[int, Field(ge=1, le=1000)]
    alternation: Literal["rotate"] = "rotate"
    parallel: bool = False


class Pilot(Frozen):
    """The first `tasks` tasks, or the tasks named, each `repetitions` times."""

    tasks: Annotated[
        Annotated[int, Field(ge=1), Tag("[number]")]
        | Annotated[tuple[Id, ...], Field(min_length=1), AfterValidator(_unique), Tag("[names]")],
        Discriminator(lambda value: "[names]" if isinstance(value, (list, tuple)) else "[number]"),
    ] = 1
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 1


class VerdictLimits(Limits):
    """What one verdict may take: one turn without tools, over a packet of at most `prompt_bytes`."""

    output_tokens: Count = 4096
    prompt_bytes: Count = 400_000


class Adjudicator(Frozen):
    """Who compares answers with the key, and what one verdict may cost.

    A model of another price than the study's has a table of its own.
    """

    connection: Id
    attempt_usd: Usd
    prices: Prices | None = None
    limits: VerdictLimits = VerdictLimits()


Metric = Literal[
    "score", "prompt_tokens", "output_tokens", "turns", "tool_calls", "wall_s", "charged_usd"
]


class Gates(Frozen):
    """What a report must hold for `studyminimal report --gates` to pass; missing data fails a gate.

    `within_margin` are metrics in which no other arm may be worse than the first by more than the
    margin declared, at 95 %. `min_correctness` is the mean score (0 to 1) that every other arm needs,
    `max_usd` what the run and its verdicts may have been charged, `max_missing` how many attempts may
    have no outcome or figures.
    """

    within_margin: Annotated[tuple[Metric, ...], AfterValidator(_unique)] = ()
    min_correctness: Annotated[Amount, AfterValidator(_at_most_one_score)] | None = None
    max_usd: Usd | None = None
    max_missing: Annotated[int, Field(ge=0)] | None = None


class Study(Frozen):
    """A frozen protocol. Order matters in `tasks` and `scenarios`, so it is part of the digest."""

    schema_: Annotated[Literal[1], BeforeValidator(_no_boolean), Field(alias="schema")]
    id: Id
    kind: Literal["questions"] = "questions"
    title: NonEmpty
    question: NonEmpty
    prompt: Prompt = Prompt()
    limits: Limits = Limits()
    budget: BudgetPlan
    connections: Annotated[dict[Id, Connection], Field(min_length=1)]
    prices: Prices
    corpora: Annotated[dict[Id, CorpusPin], Field(min_length=1)]
    servers: dict[Id, Server] = Field(default_factory=dict)
    scenarios: Annotated[dict[Id, Scenario], Field(min_length=2)]
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)]
    schedule: Schedule
    pilot: Pilot = Pilot()
    adjudicator: Adjudicator | None = None
    margins: dict[Metric, Usd] = Field(default_factory=dict)
    gates: Gates | None = None

    @model_validator(mode="after")
    def _gates_have_margins(self) -> Self:
        for metric in self.gates.within_margin if self.gates else ():
            if metric not in self.margins:
                raise ValueError(
                    f"a margin of {metric} in [margins], which gates.within_margin names"
                )
        return self

    def task(self, task_id: str) -> Task:
        """Return the task of that id."""
        return next(task for task in self.tasks if task.id == task_id)

    @property
    def default_connection(self) -> str:
        """The first connection in the manifest."""
        return next(iter(self.connections))

    def attempt_usd(self, connection: Connection) -> Decimal:
        """Return what one attempt over a connection may cost, in dollars."""
        return connection.attempt_usd or self.budget.attempt_usd

    def corpora_of(self, tasks: tuple[str, ...]) -> tuple[str, ...]:
        """Return the corpora that these tasks use, each once, in task order."""
        return tuple(dict.fromkeys(self.task(task).corpus for task in tasks))

    def digest(self, key_sha256: str) -> str:
        """Return the protocol digest: SHA-256 over this manifest's canonical JSON and its key's digest."""
        plain = self.model_dump(mode="json", by_alias=True)
        # Canonical JSON sorts keys, but the order of arms decides the schedule.
        plain["scenarios"] = [{"id": name, **arm} for name, arm in plain["scenarios"].items()]
        for optional in ("margins", "gates"):
            if not plain[optional]:
                del plain[optional]
        return hashlib.sha256(rfc8785.dumps({"answers": key_sha256, "study": plain})).hexdigest()
