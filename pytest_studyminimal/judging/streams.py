"""A stored stream judged again: the same reader, rule book and prices, without a process or a dollar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money, prices
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.rules import Facts, judge
from pytest_studyminimal.run import charge, facts_of, known_costs
from pytest_studyminimal.transports.claude_arguments import claude_arm
from pytest_studyminimal.transports.claude_code import events_for, transcript
from pytest_studyminimal.transports.process import Ended
from pytest_studyminimal.transports.readers import reader_of
from pytest_studyminimal.transports.stream import Lines

if TYPE_CHECKING:
    from decimal import Decimal

    from pytest_studyminimal.protocol.arms import Arm
    from pytest_studyminimal.protocol.records import Judgement, Transcript
    from pytest_studyminimal.protocol.study import Connection, Study


@dataclass(frozen=True)
class Verdict:
    """What the rule book says of a stream today; amounts are dollars, None is unknown.

    Without a study there are no prices and no reservation: then computed cost and charge are None.
    """

    transcript: Transcript
    judgement: Judgement
    computed: prices.Computed | None
    charged_usd: Decimal | None

    def described(self) -> dict[str, Any]:
        """Return the verdict as plain JSON, without an answer."""
        seen, agent = self.transcript, self.transcript.agent
        assert agent is not None
        reported = agent.reported_cost_usd
        by_name: dict[str, int] = {}
        for call in seen.tool_calls:
            by_name[call.name] = by_name.get(call.name, 0) + 1
        return {
            "status": self.judgement.status,
            "reason": self.judgement.reason,
            "problems": list(self.judgement.problems),
            "charged_usd": None if self.charged_usd is None else money.text(self.charged_usd),
            "reported_cost_usd": None if reported is None else money.text(reported),
            "computed_cost_usd": self.computed and money.text(self.computed.usd),
            "cost_basis": self.computed and self.computed.basis,
            "usage": {
                **seen.usage.model_dump(),
                "prompt_tokens": seen.usage.prompt_tokens,
                "cache_write_tokens": seen.usage.cache_write_tokens,
                "total_tokens": seen.usage.prompt_tokens + seen.usage.output_tokens,
            },
            "usage_complete": seen.usage_complete,
            "models": list(seen.models),
            "tool_calls": len(seen.tool_calls),
            "tool_calls_by_name": by_name,
            "permission_denials": list(agent.denials),
            "num_turns": agent.num_turns,
            "turns": seen.turns,
            "partial_cost_usd": agent.partial_cost_usd and money.text(agent.partial_cost_usd),
            "answer_complete": seen.answer_complete,
            **agent.model_dump(
                mode="json",
                include={
                    *("exit_status", "stayed", "cut", "stream_problems", "results", "subtype"),
                    *("is_error", "api_error_status", "terminal_reason", "version", "tools"),
                    *("servers", "cost_problems", "duration_ms", "duration_api_ms"),
                    *("api_retries", "unknown_events", "unstated", "block"),
                },
            ),
        }


def arm_of_connection(study: Study, connection: Connection, scenario: str) -> Arm:
    """Return what the agent of a connection must be offered. UsageRefusedError for an API's."""
    if connection.transport != "claude-code":
        raise UsageRefusedError(
            f"found transport {connection.transport}, required an agent CLI's: its stream is judged"
        )
    return claude_arm(study, scenario)


def ended_of(stdout: bytes, end: dict[str, Any], most_bytes: int) -> tuple[Ended, list[bytes]]:
    """Return how a stored process ended, and its lines; `end` is what was kept of its end."""
    # What was kept beyond the cap was kept for its cost.
    lines = Lines(2 * most_bytes if end.get("cut") else most_bytes)
    read = [*lines.feed(stdout), *lines.end()]
    ended = Ended(
        ending=end.get("ending", "finished"),
        exit_status=end.get("exit_status", 0),
        stayed=end.get("stayed", False),
        cut=end.get("cut", False) or lines.cut,
        stdout=bytes(lines.kept),
        stderr="",
        wall_s=end.get("wall_s", 0.0),
    )
    return ended, read


def judge_alone(transport: str, stdout: bytes, *, end: dict[str, Any], most_bytes: int) -> Verdict:
    """Return today's verdict on a stream of Codex or OpenCode without a study: no plan, no prices.

    What such a stream does not state is accepted, and named in the verdict.
    """
    ended, lines = ended_of(stdout, end, most_bytes)
    reader = reader_of(transport)
    for line in lines:
        reader.take(line)
    seen = reader.transcript(ended, None)
    assert seen.agent is not None
    facts = Facts(
        model="",
        alias=False,
        deadline_s=0,
        offered_tools=seen.offered_tools,
        builtin_tools=seen.offered_tools,
        accepted_unknown=frozenset(seen.agent.unstated),
        priced=False,
    )
    return Verdict(transcript=seen, judgement=judge(seen, facts), computed=None, charged_usd=None)


def rejudge(
    study: Study,
    connection: Connection,
    scenario: str,
    stdout: bytes,
    *,
    end: dict[str, Any],
    attempt_usd: Decimal,
    export_changes: tuple[str, ...] = (),
) -> Verdict:
    """Return today's verdict on a stream; `attempt_usd` was reserved for it."""
    arm = arm_of_connection(study, connection, scenario)
    ended, lines = ended_of(stdout, end, study.limits.stdout_bytes)
    events = events_for(connection.model, arm, alias=connection.alias)
    for line in lines:
        events.take(line)
    seen = transcript(events, ended, arm)
    computed = prices.list_price(study.prices, seen.usage, seen.largest_prompt_tokens)
    costs, more = known_costs(seen, study.prices)
    excess = money.subtract(max(costs, default=money.ZERO), attempt_usd)
    facts = facts_of(
        study,
        connection,
        arm,
        computed_usd=computed.usd if seen.usage_complete else None,
        overshoot_usd=max(excess, money.ZERO),
        export_changes=export_changes,
    )
    judgement = judge(seen, facts)
    return Verdict(
        transcript=seen,
        judgement=judgement,
        computed=computed if seen.usage_complete else None,
        charged_usd=charge(judgement.status, attempt_usd, costs, more),
    )
