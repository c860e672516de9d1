"""The closing section of a run, as lines of plain text."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.text import dollars, one_line
from pytest_studyminimal.reports.adjudications import verdict_lines
from pytest_studyminimal.reports.pairs import Differences, differences, median
from pytest_studyminimal.reports.proofs import agent_lines, proven_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_studyminimal.protocol.records import Observation
    from pytest_studyminimal.reports.view import Line, RunView

MOST_LISTED = 40
NOT_EVIDENCE = "rehearsal: the model is local and scripted, so nothing here is evidence"
UNKNOWN = "–"


def heading(run: RunView) -> str:
    """Return the title of a run's section."""
    body = run.row.body
    parts = ["study " + body["study"], body["phase"]]
    if body["not_selected"]:
        parts.append(f"partial ({len(body['selected'])} of {len(body['planned'])})")
    if body["rehearsal"]:
        parts.append("rehearsal, not evidence")
    return " · ".join(parts)


def summary(run: RunView, *, verbose: bool, ledger: Path) -> list[str]:
    """Return the section: attempts, arms, differences, extrapolation, what stopped it, where it lies."""
    lines: list[str] = []
    listed = run.selected if verbose or len(run.selected) <= MOST_LISTED else ()
    if listed:
        lines += [*attempt_table(listed), ""]
    if run.row.body["phase"] == "adjudicate":
        lines += verdict_lines(run)
    else:
        lines += [*arm_table(run), ""]
        for found in differences(run.selected, scenarios(run)):
            lines += _difference_lines(found)
    if run.row.body["phase"] == "pilot":
        lines += extrapolation(run)
    lines += agent_lines(run)
    lines += _what_stopped(run)
    lines.append(_money_line(run))
    if run.row.body["rehearsal"]:
        lines += [] if run.row.body["phase"] == "adjudicate" else [proven_line(run)]
        lines.append(NOT_EVIDENCE)
    lines.append(f"ledger {ledger} · run {run.row.run}{_registered(run)}")
    return lines


def _registered(run: RunView) -> str:
    folder = run.row.body.get("study_folder", {})
    if "commit" not in folder:
        return ""
    state = "with changes beside it" if folder["dirty"] else "unchanged"
    return f" · study at commit {folder['commit'][:12]}, {state}"


def scenarios(run: RunView) -> tuple[str, ...]:
    """Return the arms of a run in the manifest's order."""
    return tuple(run.row.body["scenarios"])


def attempt_table(lines: Sequence[Line]) -> list[str]:
    """Return one row per attempt: status, turns, tools, tokens in and out, charged dollars, seconds."""
    rows = [("attempt", "status", "turns", "tools", "in", "out", "charged", "seconds")]
    for line in lines:
        seen = line.observation
        rows.append((line.attempt.id, line.status, *figures(seen)))
    table = columns(rows)
    for number, line in enumerate(lines, start=1):
        if line.observation and line.observation.reason:
            table[number] += f"  {one_line(line.observation.reason)}"
    return table


def figures(seen: Observation | None) -> tuple[str, str, str, str, str, str]:
    """Return turns, tools, tokens in, tokens out, dollars and seconds; a dash is unknown, never zero."""
    if seen is None:
        return (UNKNOWN,) * 6
    tokens = seen.usage
    # Where a response was lost, the counts are those of the other turns.
    more = "+?" if tokens and not seen.usage_complete else ""
    return (
        _count(seen.turns),
        _count(seen.tool_calls),
        _count(tokens.prompt_tokens if tokens else None) + more,
        _count(tokens.output_tokens if tokens else None) + more,
        dollars(money.text(seen.charged_usd)),
        UNKNOWN if seen.wall_s is None else seconds_text(seen.wall_s),
    )


def arm_table(run: RunView) -> list[str]:
    """Return one row per arm, over its selected attempts."""
    rows: list[tuple[str, ...]] = [
        (
            "arm",
            "attempts",
            "completed",
            "blocked",
            "other",
            "in",
            "out",
            "tools",
            "median s",
            "charged",
        )
    ]
    for scenario in scenarios(run):
        mine = [line for line in run.selected if line.attempt.scenario == scenario]
        seen = [line.observation for line in mine if line.observation]
        rows.append((scenario, *_arm(mine, seen)))
    return columns(rows)


def _arm(mine: Sequence[Line], seen: Sequence[Observation]) -> tuple[str, ...]:
    completed = sum(line.status == "completed" for line in mine)
    blocked = sum(line.status == "blocked" for line in mine)
    walls = [
        Decimal(str(one.wall_s))
        for one in seen
        if one.wall_s is not None and one.status == "completed"
    ]
    return (
        str(len(mine)),
        str(completed),
        str(blocked),
        str(len(mine) - completed - blocked),
        _sum(seen, lambda one: one.usage.prompt_tokens if one.usage else None, usage=True),
        _sum(seen, lambda one: one.usage.output_tokens if one.usage else None, usage=True),
        _sum(seen, lambda one: one.tool_calls),
        seconds_text(float(median(walls))) if walls else UNKNOWN,
        dollars(money.text(money.total(one.charged_usd for one in seen))) if seen else UNKNOWN,
    )


def columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Lay rows out under their headings: words to the left, figures to the right."""
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    words = {
        index
        for index, name in enumerate(rows[0])
        if name in {"attempt", "arm", "status", "run", "phase", "state"}
    }
    return [
        "  ".join(
            cell.ljust(width) if index in words else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _count(number: int | None) -> str:
    return UNKNOWN if number is None else f"{number:,}"


def _sum(
    seen: Sequence[Observation],
    figure: Callable[[Observation], int | None],
    *,
    usage: bool = False,
) -> str:
    figures = [(one, figure(one)) for one in seen]
    known = [number for _, number in figures if number is not None]
    # What was charged nothing made no paid call: its missing figure hides no tokens.
    lost = any(
        one.charged_usd and (number is None or (usage and not one.usage_complete))
        for one, number in figures
    )
    return (_count(sum(known)) if known else UNKNOWN) + ("+?" if known and lost else "")


def _difference_lines(found: Differences) -> list[str]:
    arms = f"paired differences, {found.second} − {found.first}"
    missing = f", {found.missing} missing" if found.missing else ""
    if not found.pairs:
        return [f"{arms}: no complete pair{missing}"]
    pairs = f"{found.pairs} pair{'s' if found.pairs > 1 else ''}{missing}"
    shown = " · ".join(f"{name} {_signed(value)}" for name, value in found.medians.items())
    return [f"{arms} (median of {pairs}):", f"  {shown}"]


def _signed(value: Decimal) -> str:
    sign = "−" if value < 0 else "+" if value > 0 else "±"
    whole, point, fraction = money.text(value.copy_abs()).partition(".")
    return f"{sign}{int(whole):,}{point}{fraction}"


def extrapolates(run: RunView) -> bool:
    """Whether every attempt of a pilot is complete: only then does its cost say something."""
    return run.completed and all(
        line.observation and line.observation.usage_complete and line.observation.answer_complete
        for line in run.lines
    )


def extrapolation(run: RunView) -> list[str]:
    """Return the pilot's measured cost and what it extrapolates to, or why there is no such figure."""
    body = run.row.body
    full = body["full_attempts"]
    costs = [
        f"{line.attempt.id} {dollars(money.text(line.observation.charged_usd))}"
        for line in run.selected
        if line.observation
    ]
    lines = [f"pilot cost: {', '.join(costs)}"] if costs else []
    if not extrapolates(run):
        return [*lines, "extrapolation: missing, since not every pilot attempt is complete"]
    pilot = len(run.lines)
    times, rest = divmod(full, pilot)
    factor = str(times) if not rest else f"{full}/{pilot}"
    projected = money.text(money.scaled(run.charged_usd, full, pilot))
    seconds = sum(line.observation.wall_s or 0 for line in run.lines if line.observation)
    measured = dollars(money.text(run.charged_usd))
    return [
        *lines,
        (
            f"extrapolation: {measured} × {factor} = {dollars(projected)} and about"
            f" {minutes(seconds * full / pilot)} for the full run of {full} attempts"
        ),
        "this is no upper bound: a pilot of one task cannot predict the others",
    ]


def seconds_text(seconds: float) -> str:
    """Return seconds with two decimals where they are few, one where they are many."""
    return f"{seconds:.2f}" if seconds < 10 else f"{seconds:.1f}"


def minutes(seconds: float) -> str:
    """Return a duration for people."""
    if seconds < 1:
        return "a second"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _what_stopped(run: RunView) -> list[str]:
    if run.stop is not None:
        at = f"at {run.stop.attempt} " if run.stop.attempt else ""
        left = sum(line.status == "blocked" and line.observation is None for line in run.selected)
        blocked = f"; {left} not reached and shown as blocked" if left else ""
        reason = next(
            (
                line.observation.reason
                for line in run.lines
                if line.observation
                and line.attempt.id == run.stop.attempt
                and line.observation.reason
            ),
            None,
        )
        said = f" ({one_line(reason)})" if reason else ""
        return [
            f"the run stopped {at}with {one_line(run.stop.body['why'])}{said}{blocked}",
            "nothing is retried or resumed: mend the cause and start a new run",
        ]
    if not run.selected_completed:
        left = sum(line.status in {"blocked", "open"} for line in run.selected)
        reason = one_line(run.close.body["reason"]) if run.close else "the session ended"
        attempts = f"{left} attempt{'s' if left != 1 else ''} not reached"
        return [f"the run ended early ({reason}): {attempts}; start a new run"]
    return []


def _money_line(run: RunView) -> str:
    balance = run.balance
    reserved = (
        f", {dollars(money.text(balance.reserved_usd))} reserved" if balance.reserved_usd else ""
    )
    over = (
        " · THE CAP WAS EXCEEDED by what the provider charged"
        if any(line.observation and line.observation.cumulative_cap_exceeded for line in run.lines)
        else ""
    )
    rule = "larger of reported and list price" if run.row.body.get("agent") else "upper rates"
    return (
        f"charged {dollars(money.text(run.charged_usd))} in this run ({rule}); account"
        f" {run.row.account}: {dollars(money.text(balance.spent_usd))} spent{reserved}"
        f" of {dollars(money.text(run.cap_usd))}{over}"
    )
