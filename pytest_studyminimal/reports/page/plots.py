"""What the pictures look like: slopes of pairs, spread of an arm, bars of money, the order of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.reports.page.drawing import (
    MARKERS,
    cut,
    figure,
    plain_axis,
    sample,
    short,
)
from pytest_studyminimal.reports.page.svg import arm_role, colour

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_DOTS = 360
Row = tuple[str, int, "Sequence[float]"]


@dataclass(frozen=True)
class Bar:
    """One attempt in time: seconds from the run's start; `begun` is None where it never began."""

    name: str
    arm: int
    begun: float | None
    ended: float | None
    status: str


def slopes(
    sides: Sequence[tuple[float, float]],
    arms: tuple[tuple[str, int], tuple[str, int]],
    effect: Mapping[str, Any],
) -> Figure:
    """Draw each pair as a line from one arm to the other, and beside it the differences by task."""
    drawn = figure(350, 215)
    left, right = drawn.subplots(1, 2, width_ratios=(3, 2))
    for here, there in sides:
        left.plot((0, 1), (here, there), color=colour("soft"), linewidth=0.9, alpha=0.55)
    for place, (_, arm) in enumerate(arms):
        left.plot(
            [place] * len(sides),
            [pair[place] for pair in sides],
            MARKERS[arm % len(MARKERS)],
            color=colour(arm_role(arm)),
            markersize=6,
            alpha=0.85,
            markeredgewidth=0,
        )
    left.set_xlim(-0.25, 1.25)
    left.set_xticks((0, 1), [cut(name, 17) for name, _ in arms], color=colour("ink"))
    values = [value for pair in sides for value in pair]
    if min(values) >= 0:
        left.set_ylim(0, max(values) * 1.08 or 1)
    plain_axis(left, "y")
    _difference(right, effect, arms[1][1])
    return drawn


def _difference(axes: Axes, effect: Mapping[str, Any], arm: int) -> None:
    by_task = sample(sorted(effect["by_task"].values()), 60)
    axes.axhline(0, color=colour("soft"), linewidth=1, linestyle=(0, (3, 2)))
    axes.plot([0] * len(by_task), by_task, "o", color=colour("soft"), markersize=5, alpha=0.6,
              markeredgewidth=0)  # fmt: skip
    estimate, interval = effect["estimate"], effect["interval"]
    if interval:
        axes.plot((1, 1), interval, color=colour(arm_role(arm)), linewidth=3)
    if estimate is not None:
        axes.plot([1], [estimate], "D", color=colour("ink"), markersize=6.5, markeredgewidth=0)
    axes.set_xlim(-0.6, 1.6)
    axes.set_xticks((0, 1), ("by task", "mean"), color=colour("ink"))
    plain_axis(axes, "y")


def spread(rows: Sequence[Row]) -> Figure:
    """Draw the values of each group as dots on a line, with a bar at the median."""
    drawn = figure(350, 46 + 21 * len(rows))
    axes = drawn.subplots()
    most = max(12, _MOST_DOTS // len(rows))
    for place, (_, arm, values) in enumerate(rows):
        dots = sample(sorted(values), most)
        heights = [place + 0.26 * ((number * 0.618) % 1 - 0.5) for number in range(len(dots))]
        role = colour(arm_role(arm))
        axes.plot(dots, heights, MARKERS[arm % len(MARKERS)], color=role, markersize=5, alpha=0.6,
                  markeredgewidth=0)  # fmt: skip
        if values:
            middle = _median(values)
            axes.plot((middle, middle), (place - 0.36, place + 0.36), color=colour("ink"),
                      linewidth=2)  # fmt: skip
    axes.set_yticks(
        range(len(rows)), [cut(name, 28) for name, _, _ in rows], color=colour("ink"), fontsize=9
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    every = [value for _, _, values in rows for value in values]
    if min(every) >= 0:
        axes.set_xlim(-0.02 * (max(every) or 1), max(every) * 1.06 or 1)
    plain_axis(axes, "x")
    return drawn


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def shares(
    rows: Mapping[str, Sequence[float]], parts: Sequence[tuple[str, str]], *, money: bool = False
) -> Figure:
    """Draw one bar per row, cut into parts of a name and a role; the last parts are hollow."""
    drawn = figure(720, 48 + 24 * len(rows))
    axes = drawn.subplots()
    for number, (name, role) in enumerate(parts):
        widths = [values[number] for values in rows.values()]
        starts = [sum(values[:number]) for values in rows.values()]
        hollow = role == "none"
        axes.barh(
            range(len(rows)),
            widths,
            left=starts,
            height=0.62,
            label=name,
            color="none" if hollow else colour(role),
            edgecolor=colour("soft") if hollow else colour("paper"),
            linewidth=0.9,
            linestyle=(0, (3, 2)) if hollow else "solid",
        )
    axes.set_yticks(range(len(rows)), [cut(name, 22) for name in rows], color=colour("ink"))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    plain_axis(axes, "x", grid=False)
    if money:
        axes.xaxis.set_major_formatter(lambda value, _: f"${short(value)}")
    drawn.legend(
        loc="outside lower left", ncols=min(len(parts), 5), frameon=False, fontsize=9,
        handlelength=1, columnspacing=1.2, labelcolor=colour("ink"),
    )  # fmt: skip
    return drawn


def counts(rows: Mapping[str, Sequence[int]], arms: Sequence[str]) -> Figure:
    """Draw how often each name was counted, one bar per arm."""
    drawn = figure(720, 56 + (8 + 9 * len(arms)) * len(rows))
    axes = drawn.subplots()
    height = 0.8 / len(arms)
    for arm, name in enumerate(arms):
        places = [place + (arm - (len(arms) - 1) / 2) * height for place in range(len(rows))]
        widths = [values[arm] for values in rows.values()]
        axes.barh(places, widths, height * 0.92, color=colour(arm_role(arm)), label=cut(name, 24))
    axes.set_yticks(
        range(len(rows)), [cut(name, 48) for name in rows], color=colour("ink"), fontsize=9
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    plain_axis(axes, "x")
    drawn.legend(
        loc="outside lower left", ncols=4, frameon=False, fontsize=9, handlelength=1,
        labelcolor=colour("ink"),
    )  # fmt: skip
    return drawn


def order(bars: Sequence[Bar], *, named: bool) -> Figure:
    """Draw the attempts from the first to the last, each from its start to its end."""
    each = 14 if named else max(1.2, 320 / len(bars))
    drawn = figure(720, 52 + each * len(bars))
    axes = drawn.subplots()
    latest = max((bar.ended or bar.begun or 0 for bar in bars), default=0) or 1
    for place, bar in enumerate(bars):
        if bar.begun is not None:
            ended = latest if bar.ended is None else bar.ended
            whole = bar.status == "completed"
            axes.barh(
                place,
                max(ended - bar.begun, latest / 400),
                left=bar.begun,
                height=0.7,
                color=colour(arm_role(bar.arm)) if whole else "none",
                edgecolor=colour(arm_role(bar.arm)),
                linewidth=0 if whole else 1.3,
            )
        if bar.status != "completed" and named:
            late = (bar.begun or 0) > latest / 2
            at = (bar.begun or 0) if late else (bar.ended or bar.begun or 0)
            axes.text(at + latest * (-0.008 if late else 0.008), place, f"× {bar.status}",
                      va="center", ha="right" if late else "left", fontsize=9)  # fmt: skip
    names = [cut(bar.name, 52) for bar in bars] if named else []
    axes.set_yticks(range(len(names)), names, color=colour("ink"), fontsize=8.5)
    axes.set_ylim(len(bars) - 0.3, -0.7)
    axes.set_xlim(0, latest * 1.02)
    axes.set_xlabel("seconds since the first attempt began", fontsize=9, loc="left")
    plain_axis(axes, "x")
    return drawn
