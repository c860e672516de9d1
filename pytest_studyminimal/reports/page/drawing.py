"""Drawing with matplotlib: small pictures whose colours stand for roles of the page.

matplotlib is imported late: it is part of the extra `report`.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import TYPE_CHECKING, Any, TypeVar

from pytest_studyminimal.reports.page.svg import colour, embedded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Item = TypeVar("Item")

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 10.0,
    "font.family": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.linewidth": 0.8,
    "xtick.major.size": 0.0,
    "ytick.major.size": 0.0,
    "axes.axisbelow": True,
    "path.simplify": False,
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw as the page draws, and leave matplotlib as it was."""
    import matplotlib as mpl  # noqa: PLC0415 - the extra

    roles = {
        "text.color": "ink",
        "axes.labelcolor": "soft",
        "axes.edgecolor": "soft",
        "xtick.color": "soft",
        "ytick.color": "soft",
        "grid.color": "grid",
    }
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        # A name may be in any script; the page's own fonts show it.
        warnings.simplefilter("ignore")
        colours: Any = {name: colour(role) for name, role in roles.items()}
        mpl.rcParams.update(_STYLE | colours)
        yield


def figure(width: float, height: float) -> Figure:
    """Return an empty picture of so many units; a unit is a pixel where there is room."""
    from matplotlib.figure import Figure as Drawn  # noqa: PLC0415 - the extra

    return Drawn(figsize=(width / 72, height / 72), layout="constrained")


def finished(drawn: Figure, name: str, label: str, *, mark: str | None) -> str:
    """Return a picture as an SVG element; `mark` is written into it, so that a copy carries it."""
    import matplotlib as mpl  # noqa: PLC0415 - the extra

    if mark:
        drawn.text(0.5, 0.5, mark, color=colour("soft"), alpha=0.22, fontsize=17, rotation=14,
                   ha="center", va="center", zorder=9)  # fmt: skip
    out = io.StringIO()
    nothing: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with mpl.rc_context({"svg.hashsalt": name}):
        drawn.savefig(out, format="svg", transparent=True, metadata=nothing)
    return embedded(out.getvalue(), label)


def short(value: float, _: object = None) -> str:
    """Return the number of a tick in a few characters."""
    for least, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= least:
            return f"{value / (1e3 if unit == 'k' else least):g}{unit}".replace("-", "−")
    return f"{value:.6g}".replace("-", "−")


def plain_axis(axes: Axes, which: str, *, grid: bool = True) -> None:
    """Give an axis of figures few, short ticks and fine lines across."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator  # noqa: PLC0415 - the extra

    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axis.set_major_formatter(FuncFormatter(short))
    if grid:
        axes.grid(axis=which, linewidth=0.7)  # type: ignore[arg-type]


def sample(items: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many of the items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    step = (len(items) - 1) / (most - 1)
    return [items[round(place * step)] for place in range(most)]


def cut(text: str, most: int) -> str:
    """Return a name that fits beside a picture; what was cut off is in the table."""
    return text if len(text) <= most else text[: most - 1] + "…"
