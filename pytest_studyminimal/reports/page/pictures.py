"""Which pictures a report has, and what is said below each: what is compared, how many, what is missing."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.reports.outcomes import SCORES
from pytest_studyminimal.reports.page import plots
from pytest_studyminimal.reports.page.drawing import finished, sample, style
from pytest_studyminimal.reports.page.figures import brief, counted, dollars, name_of, number
from pytest_studyminimal.reports.page.svg import arm_role

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.figure import Figure

_MOST_PAIRS = 80
_MOST_TASKS = 8
_MOST_NAMED = 60
_MOST_BARS = 240
_MOST_TOOLS = 12
SPREAD = (
    *("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"),
    *("turns", "tool_calls", "wall_s", "charged_usd", "reported_cost_usd", "computed_cost_usd"),
)
_OUTCOMES = (
    *(("correct", "good"), ("partial", "half"), ("incorrect", "bad")),
    *(("incomplete", "other"), ("missing", "none")),
)


@dataclass(frozen=True)
class Picture:
    """One picture as an SVG element; `svg` is None where there is nothing to draw, and `caption` says so."""

    title: str
    svg: str | None
    caption: str
    wide: bool = False


@dataclass(frozen=True)
class Section:
    """Pictures that answer one question."""

    id: str
    title: str
    pictures: tuple[Picture, ...]


class Pictures:
    """Draws the pictures of one document of a report."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.arms = list(document["arms"])
        self.attempts = document["attempts"]
        self.mark = "REHEARSAL · not evidence" if document["rehearsal"] else None
        self.number = 0

    def sections(self) -> list[Section]:
        """Return every picture, the comparison first."""
        with style():
            return [
                Section("compared", "The arms compared, pair by pair", tuple(self._paired())),
                Section("outcomes", "Were the answers right?", (self._outcomes(),)),
                Section("spread", "How the figures are spread", tuple(self._spreads())),
                Section("tools", "Which tools were called", (self._tools(),)),
                Section("budget", "Where the money went", (self._budget(),)),
                Section("order", "The run in order", (self._order(),)),
            ]

    def _picture(
        self, title: str, drawn: Figure | None, caption: str, *, wide: bool = False
    ) -> Picture:
        if drawn is None:
            return Picture(title, None, caption, wide)
        self.number += 1
        name = f"picture-{self.number}"
        return Picture(title, finished(drawn, name, title, mark=self.mark), caption, wide)

    def _paired(self) -> Iterator[Picture]:
        known = {
            (one["task"], one["repetition"], one["scenario"]): one
            for one in self.attempts
            if one["status"] == "completed"
        }
        for compared in self.document["effects"]:
            first, second = compared["arms"]
            pairs = [
                (here, there)
                for (task, repetition, arm), here in known.items()
                if arm == first and (there := known.get((task, repetition, second)))
            ]
            for metric, effect in compared["metrics"].items():
                yield self._pair(metric, effect, pairs, (first, second))

    def _pair(
        self,
        metric: str,
        effect: dict[str, Any],
        pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]],
        arms: tuple[str, str],
    ) -> Picture:
        sides = [
            (left, right)
            for here, there in pairs
            if (left := _value(here, metric)) is not None
            and (right := _value(there, metric)) is not None
        ]
        shown = sample(sorted(sides, key=lambda pair: pair[1] - pair[0]), _MOST_PAIRS)
        first, second = arms
        title = f"{name_of(metric)}: {second} against {first}"
        count = (
            f"{counted(effect['pairs'], 'pair')} of the same task and repetition,"
            f" {effect['missing']:,} missing"
        )
        if not sides:
            return self._picture(title, None, f"No pair to draw: {count}.")
        drawn = plots.slopes(
            shown,
            ((first, self.arms.index(first)), (second, self.arms.index(second))),
            effect,
        )
        left_out = len(sides) - len(shown)
        sampled = f" {left_out:,} further lines are not drawn." if left_out else ""
        return self._picture(title, drawn, f"{count}. {_effect(effect, metric, arms)}{sampled}")

    def _outcomes(self) -> Picture:
        found = self.document["correctness"]["arms"]
        rows = {arm: [found[arm][name] for name, _ in _OUTCOMES] for arm in self.arms}
        told = "; ".join(
            f"{arm}: {_score(found[arm])}, {_missing(found[arm])}" for arm in self.arms
        )
        parts = [part for part in _OUTCOMES if part[0] in found[self.arms[0]]]
        return self._picture(
            "outcomes of all planned attempts, by arm",
            plots.shares(rows, parts),
            f"{told}. What is missing is drawn hollow and enters no mean.",
            wide=True,
        )

    def _spreads(self) -> Iterator[Picture]:
        tasks = list(self.document["tasks"])
        for metric in SPREAD:
            rows = [
                (f"{arm}, all tasks", place, self._values(metric, arm))
                for place, arm in enumerate(self.arms)
            ]
            known = sum(len(values) for _, _, values in rows)
            missing = len(self.attempts) - known
            title = f"{name_of(metric)} by arm and by task"
            if not known:
                yield self._picture(
                    title, None, f"Unknown for all {counted(missing, 'attempt')}; not zero."
                )
                continue
            if len(tasks) > 1:
                rows += [
                    (task if not place else "", place, self._values(metric, arm, task))
                    for task in tasks[:_MOST_TASKS]
                    for place, arm in enumerate(self.arms)
                ]
            told = f"{counted(known, 'completed attempt')}, {missing:,} missing. Bar: median."
            if len(tasks) > _MOST_TASKS:
                told += f" {len(tasks) - _MOST_TASKS:,} further tasks are in the table only."
            drawn = plots.spread(rows)
            if known > len(rows) * 12 and known > 360 // len(rows):
                told += " Of many dots an even sample is drawn."
            yield self._picture(title, drawn, told)

    def _values(self, metric: str, arm: str, task: str | None = None) -> list[float]:
        return [
            value
            for one in self.attempts
            if one["status"] == "completed"
            and one["scenario"] == arm
            and task in {None, one["task"]}
            and (value := number(one[metric])) is not None
        ]

    def _tools(self) -> Picture:
        calls: dict[str, Counter[str]] = {arm: Counter() for arm in self.arms}
        for one in self.attempts:
            calls[one["scenario"]].update(one.get("tool_calls_by_name") or {})
        total = sum(calls.values(), Counter[str]())
        names = [name for name, _ in total.most_common(_MOST_TOOLS)]
        title = "calls by tool and arm"
        if not names:
            return self._picture(title, None, "No attempt called a tool.")
        rows = {name: [calls[arm][name] for arm in self.arms] for name in names}
        unknown = sum(one["tool_calls"] is None for one in self.attempts)
        told = (
            f"{counted(total.total(), 'call')} of all attempts, whatever their status;"
            f" of {unknown:,} nothing is known."
        )
        if len(total) > len(names):
            told += f" {len(total) - len(names):,} further tools are in the table only."
        return self._picture(title, plots.counts(rows, self.arms), told, wide=True)

    def _budget(self) -> Picture:
        money = self.document["money"]
        charged = float(money["charged_usd"])
        others = max(0.0, float(money["account_spent_usd"]) - charged)
        reserved = float(money["account_reserved_usd"])
        used = charged + others + reserved
        lifted = money["cap_usd"] == "unlimited"
        left = 0.0 if lifted else max(0.0, float(money["cap_usd"]) - used)
        by_arm = [float(self.document["arms"][arm]["charged_usd"]) for arm in self.arms]
        pieces = [
            ("other runs", "soft", others),
            *(
                (f"this run: {arm}", arm_role(place), spent)
                for place, (arm, spent) in enumerate(zip(self.arms, by_arm, strict=True))
            ),
            ("reserved", "other", reserved),
            ("left", "none", left),
        ]
        drawn = [piece for piece in pieces if piece[2]]
        parts = [(name, role) for name, role, _ in drawn]
        row = [amount for _, _, amount in drawn]
        over = " The cap was exceeded by what the provider charged." if (
            money["cumulative_cap_exceeded"]
        ) else ""  # fmt: skip
        return self._picture(
            "the account, up to its cap",
            plots.shares({"": row}, parts, money=True) if drawn else None,
            f"This run was charged {dollars(money['charged_usd'])}; account {money['account']}:"
            f" {dollars(money['account_spent_usd'])} spent and"
            f" {dollars(money['account_reserved_usd'])} reserved of {dollars(money['cap_usd'])}.{over}",
            wide=True,
        )

    def _order(self) -> Picture:
        planned = sorted(self.attempts, key=lambda one: one["place"])
        started = sum(one["started_at"] is not None for one in planned)
        begun = min((_time(one["started_at"]) for one in planned if one["started_at"]), default=0)
        shown = sample(planned, _MOST_BARS)
        bars = [
            plots.Bar(
                one["attempt"],
                self.arms.index(one["scenario"]),
                _time(one["started_at"]) - begun if one["started_at"] else None,
                _time(one["ended_at"]) - begun if one["ended_at"] else None,
                one["status"],
            )
            for one in shown
        ]
        told = (
            f"{counted(len(planned), 'planned attempt')} in the frozen order, {started:,} started,"
            f" {len(planned) - started:,} not. Hollow: not completed."
        )
        if len(shown) < len(planned):
            told += f" An even sample of {len(shown):,} is drawn; the table has the rest."
        named = len(planned) <= _MOST_NAMED
        return self._picture(
            "each attempt from start to end", plots.order(bars, named=named), told, wide=True
        )


def _value(attempt: dict[str, Any], metric: str) -> float | None:
    if metric == "score":
        return number(SCORES.get(attempt["outcome"]))
    return number(attempt.get(metric))


def _effect(effect: dict[str, Any], metric: str, arms: tuple[str, str]) -> str:
    if effect["estimate"] is None:
        return "No difference can be told."
    bounds = effect["interval"]
    between = (
        f"95 % interval {brief(bounds[0], metric)} … {brief(bounds[1], metric)}"
        if bounds
        else "no interval from a single task"
    )
    return (
        f"Mean difference, {arms[1]} − {arms[0]}, over {counted(len(effect['by_task']), 'task')}:"
        f" {brief(effect['estimate'], metric)} ({between}; exploratory)."
    )


def _score(found: dict[str, Any]) -> str:
    return (
        f"mean score {brief(float(found['mean']), 'score')} of {found['n']:,} judged"
        if found["n"]
        else "none judged"
    )


def _missing(found: dict[str, Any]) -> str:
    why = ", ".join(f"{reason} {count:,}" for reason, count in found["missing_because"].items())
    return f"{found['missing']:,} missing" + (f" ({why})" if why else "")


def _time(at: str) -> float:
    return dt.datetime.fromisoformat(at).timestamp()
