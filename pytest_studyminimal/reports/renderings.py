"""The document of a run as JSON, CSV, Markdown or a page; every word is made harmless for its format."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol.text import dollars, one_line
from pytest_studyminimal.reports.page.assembly import as_html

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_COLUMNS = (
    *("attempt", "task", "scenario", "repetition", "place", "status", "reason"),
    *("input_tokens", "cache_read_tokens", "cache_write_tokens", "prompt_tokens", "output_tokens"),
    *("turns", "tool_calls", "wall_s", "charged_usd", "reported_cost_usd", "computed_cost_usd"),
    *("cost_basis", "answer_complete", "outcome", "outcome_missing_because"),
)
# GitHub refuses a comment of more than 65,536 characters.
_MOST_COMMENT_CHARS = 60_000
_HEAD_LINES = 2
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def as_json(document: dict[str, Any]) -> str:
    """Return the document as JSON."""
    return json.dumps(document, indent=2) + "\n"


def as_csv(document: dict[str, Any]) -> str:
    """Return one row per planned attempt; a cell that a spreadsheet would run is made text."""
    text = io.StringIO()
    # Told apart from evidence also where the file is all that is left.
    columns = ("study", "run", "series", "rehearsal", *_COLUMNS)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    head = (document["study"], document["run"], document["series"]["id"], document["rehearsal"])
    for attempt in document["attempts"]:
        cells = (*head, *(attempt.get(name) for name in _COLUMNS))
        writer.writerow([_cell(cell) for cell in cells])
    return text.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, (bool, int, float)):
        return str(value).lower() if isinstance(value, bool) else str(value)
    text = one_line(str(value), 1000)
    return f"'{text}" if text.startswith(_FORMULA) else text


def as_markdown(document: dict[str, Any]) -> str:
    """Return a report that fits a comment on a pull request."""
    attempts, rest = list(_attempts(document)), [*_markdown(document)]
    room = _MOST_COMMENT_CHARS - sum(len(line) + 1 for line in rest)
    shown = _fitting(attempts, room)
    left = len(attempts) - max(len(shown), _HEAD_LINES)
    note = [f"and {left:,} more attempts, which JSON and CSV hold", ""] if left else []
    lines = [*rest[:-1], *shown, "", *note, rest[-1]]
    text = "\n".join(_fitting(lines, _MOST_COMMENT_CHARS + 1_000)) + "\n"
    return text if room > 0 else f"{text}\ncut here: JSON, CSV and HTML hold the rest\n"


def _fitting(lines: Sequence[str], room: int) -> Sequence[str]:
    """Return the first lines that fit into so many characters."""
    for number, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return lines[:number]
    return lines


def _markdown(document: dict[str, Any]) -> Iterator[str]:
    title = document["title"] or document["study"]
    mark = " · **rehearsal, not evidence**" if document["rehearsal"] else ""
    yield f"## {_word(title)}"
    yield ""
    yield (
        f"Study `{document['study']}` · {document['phase']}{mark} · run `{document['run']}` · series"
        f" `{document['series']['id'][:12]}`"
    )
    yield ""
    declared = [line for line in document["declarations"].values() if line is not None]
    yield from (f"- {_word(line)}" for line in (*declared, *document["limitations"]))
    yield ""
    yield from _setups(document)
    yield from _arms(document)
    yield from _correctness(document)
    for compared in document["effects"]:
        yield from _effects(compared)
    spent = document["money"]
    yield (
        f"Charged {dollars(spent['charged_usd'])} in this run; account `{spent['account']}`:"
        f" {dollars(spent['account_spent_usd'])} spent of {dollars(spent['cap_usd'])}."
    )


def _setups(document: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        ("arm", "servers", "tools offered", "calls (errors)", "denied", "first in"),
        [
            (
                arm,
                "–"
                if found["planned_servers"] is None
                else ", ".join(found["planned_servers"]) or "none",
                ", ".join(found["offered_tools"]) or "–",
                _calls(found) or "none",
                found["denials"],
                f"{document['order'][arm]} of {sum(document['order'].values())}",
            )
            for arm, found in document["setups"].items()
        ],
    )
    yield ""


def _calls(found: dict[str, Any]) -> str:
    errors = found["tool_errors_by_name"]
    return ", ".join(
        f"{name} {count:,}" + (f" ({errors[name]:,})" if name in errors else "")
        for name, count in found["tool_calls_by_name"].items()
    )


def _arms(document: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        (
            "arm",
            "attempts",
            "statuses",
            "prompt tokens",
            "output tokens",
            "tools",
            "seconds",
            "charged",
        ),
        [
            (
                name,
                arm["attempts"],
                ", ".join(f"{count} {status}" for status, count in arm["statuses"].items()),
                *(
                    _median(arm["metrics"][metric])
                    for metric in ("prompt_tokens", "output_tokens", "tool_calls", "wall_s")
                ),
                dollars(arm["charged_usd"]),
            )
            for name, arm in document["arms"].items()
        ],
    )
    yield ""
    yield "Medians over completed attempts, with how many there are; the charge is of all attempts."
    yield ""


def _median(metric: dict[str, Any]) -> str:
    return (
        f"{metric['median']} (n={metric['n']})"
        if metric["n"]
        else f"– (n=0 of {metric['missing']})"
    )


def _effects(compared: dict[str, Any]) -> Iterator[str]:
    first, second = compared["arms"]
    yield f"### {_word(second)} − {_word(first)}, paired and clustered by task (exploratory)"
    yield ""
    rows = []
    for name, metric in compared["metrics"].items():
        bounds = metric["interval"]
        rows.append(
            (
                name,
                f"{metric['pairs']} ({metric['missing']} missing)",
                _figure(metric["estimate"]),
                f"{_figure(bounds[0])} … {_figure(bounds[1])}" if bounds else "–",
                _figure(metric["p"]),
                _figure(metric.get("p_holm")),
                _figure(metric["detectable"]),
            )
        )
    yield from _table(
        ("metric", "pairs", "mean difference", "95 % interval", "p", "p (Holm)", "detectable"), rows
    )
    yield ""


def _correctness(document: dict[str, Any]) -> Iterator[str]:
    names = ("correct", "partial", "incorrect", "incomplete", "missing")
    yield from _table(
        ("arm", *names, "mean score", "if the missing were wrong … right", "USD per correct"),
        [
            (
                arm,
                *(found[name] for name in names),
                "–" if found["mean"] is None else f"{found['mean']} (n={found['n']})",
                " … ".join(found["range"]) if found["range"] else "–",
                "–" if found["usd_per_correct"] is None else dollars(found["usd_per_correct"]),
            )
            for arm, found in document["correctness"]["arms"].items()
        ],
    )
    yield ""


def _figure(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _attempts(document: dict[str, Any]) -> Iterator[str]:
    yield from _table(
        (
            "attempt",
            "status",
            "prompt tokens",
            "output tokens",
            "tools",
            "seconds",
            "charged",
            "reason",
        ),
        [
            (
                one["attempt"],
                one["status"],
                *(
                    "–" if one[name] is None else one[name]
                    for name in ("prompt_tokens", "output_tokens", "tool_calls", "wall_s")
                ),
                "–" if one["charged_usd"] is None else dollars(one["charged_usd"]),
                one["reason"] or "",
            )
            for one in document["attempts"]
        ],
    )


def _table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield "| " + " | ".join(names) + " |"
    yield "|" + " --- |" * len(names)
    for row in rows:
        yield "| " + " | ".join(_word(cell) for cell in row) + " |"


def _word(value: object) -> str:
    """Return text that no Markdown of its own reaches a page with."""
    text = one_line(str(value), 300)
    for mark in ("\\", "`", "*", "_", "{", "}", "[", "]", "<", ">", "#", "|", "!", "~", "&", "@"):
        text = text.replace(mark, f"\\{mark}" if mark not in "<>&@" else _ENTITIES[mark])
    return text


_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;", "@": "&#64;"}

FORMATS: dict[str, Callable[[dict[str, Any]], str]] = {
    "json": as_json,
    "csv": as_csv,
    "markdown": as_markdown,
    "html": as_html,
}
