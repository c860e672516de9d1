"""The tables of the page: every planned attempt, every arm, every effect, and how much is missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from pytest_studyminimal.reports.page.figures import UNKNOWN, dollars, exact, name_of, rounded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_ROW_BYTES = 2_000_000
_MOST_OTHER_BYTES = 160_000
_MOST_FACT_BYTES = 350_000
_PER_CELL = 6
_PER_FACT = 40
_COLUMNS: dict[str, str] = {
    "#": "place",
    "input": "input_tokens",
    "cache read": "cache_read_tokens",
    "cache write": "cache_write_tokens",
    "output": "output_tokens",
    "turns": "turns",
    "tools": "tool_calls",
    "seconds": "wall_s",
    "charged": "charged_usd",
    "reported": "reported_cost_usd",
    "computed": "computed_cost_usd",
}
# An attempt is named by its task, scenario and repetition.
_IN_ROW = {
    "repetition",
    *_COLUMNS.values(),
    "attempt",
    "status",
    "reason",
    "outcome",
    "task",
    "scenario",
}


@dataclass(frozen=True)
class Row:
    """Cells, and what the row opens to: public facts and, on a private page, the answer."""

    cells: tuple[str, ...]
    reason: str | None = None
    facts: tuple[tuple[str, str], ...] = ()
    answer: str | None = None


@dataclass(frozen=True)
class Table:
    """A table; its first `words` columns are words, the others figures; `note` says what is not shown."""

    id: str
    title: str
    columns: tuple[str, ...]
    words: int
    rows: tuple[Row, ...]
    note: str
    opens: bool = False


def attempts(document: dict[str, Any], answers: Mapping[str, str] | None) -> Table:
    """Return the table of all planned attempts; what does not fit is counted and named.

    `answers` by attempt are private: None on a public page.
    """
    rows, size, facts_size, closed, private_closed = [], 0, 0, 0, 0
    # What is not completed opens first: it is what a reader must be able to look into.
    for one in sorted(document["attempts"], key=lambda one: one["status"] == "completed"):
        cells, reason = _cells(one), one["reason"]
        size += sum(len(escape(cell)) + _PER_CELL for cell in (*cells, reason or ""))
        if size > _MOST_ROW_BYTES:
            break
        facts = tuple(_facts(one))
        answer = None if answers is None else answers.get(one["attempt"])
        weight = sum(len(escape(part)) + _PER_FACT for fact in facts for part in fact)
        weight += len(escape(answer or ""))
        if facts_size + weight > _MOST_FACT_BYTES:
            rows.append((one["place"], Row(cells, reason)))
            closed += 1
            private_closed += answer is not None
            continue
        facts_size += weight
        rows.append((one["place"], Row(cells, reason, facts, answer)))
    rows.sort(key=lambda row: row[0])
    note = _attempts_note(document, len(rows), closed)
    if private_closed:
        note += (
            f" {private_closed:,} answers are not shown; `studyminimal show --private` has them."
        )
    columns = ("attempt", "status", "outcome", *_COLUMNS)
    return Table("attempts", "All planned attempts", columns, 3, tuple(row for _, row in rows), note,
                 opens=True)  # fmt: skip


def _attempts_note(document: dict[str, Any], shown: int, closed: int) -> str:
    total = len(document["attempts"])
    prefix = f"{total:,} attempts; a dash is unknown, never zero."
    if closed:
        prefix += f" The facts of {closed:,} do not fit here; the JSON format has them."
    if total > shown:
        prefix += f" {total - shown:,} attempts are not shown; the JSON and CSV formats have them."
    return prefix


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    figures = (
        dollars(one[key])
        if key.endswith("_usd")
        else (rounded(one[key]) if key == "wall_s" else exact(one[key]))
        for key in _COLUMNS.values()
    )
    return (one["attempt"], one["status"], one["outcome"], *figures)


def _facts(one: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in one.items():
        if name in _IN_ROW or value is None or value in ([], {}):
            continue
        yield name.replace("_", " "), _told(value)


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_told(one)}" for name, one in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_told(one) for one in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return UNKNOWN if value is None else str(value)


def arms(document: dict[str, Any]) -> Table:
    """Return one row per arm: statuses, outcomes, and money over all of its attempts."""
    judged = document["correctness"]["arms"]
    rows = []
    for name, arm in document["arms"].items():
        found = judged[name]
        rows.append(
            (
                name,
                ", ".join(f"{count:,} {status}" for status, count in arm["statuses"].items()),
                ", ".join(f"{why} {count:,}" for why, count in found["missing_because"].items()),
                exact(arm["attempts"]),
                *(exact(found[one]) for one in ("correct", "partial", "incorrect", "incomplete")),
                exact(found["missing"]),
                _of(found["mean"], found["n"], found["missing"]),
                " … ".join(rounded(one) for one in found["range"] or ()) or UNKNOWN,
                dollars(arm["charged_usd"]),
                dollars(found["usd_per_correct"] and rounded(found["usd_per_correct"])),
            )
        )
    columns = ("arm", "statuses", "missing because", "attempts", "correct", "partial", "incorrect",
               "incomplete", "missing", "mean score", "if missing were wrong … right", "charged",
               "per correct")  # fmt: skip
    note = (
        "Charged is of all attempts, the failed ones too; each mean names what is missing from it."
    )
    return _fitting("arms", "Arms", columns, 3, rows, note)


def _of(value: Any, count: int, missing: int) -> str:
    return f"{rounded(value)} (n={count:,}, {missing:,} missing)"


def effects(document: dict[str, Any]) -> Table:
    """Return one row per comparison and metric."""
    rows = []
    for compared in document["effects"]:
        first, second = compared["arms"]
        for metric, one in compared["metrics"].items():
            low, high = one["interval"] or (None, None)
            rows.append(
                (
                    name_of(metric),
                    f"{second} − {first}",
                    exact(one["pairs"]),
                    exact(one["missing"]),
                    *map(rounded, (one["estimate"], low, high, one["p"], one.get("p_holm"))),
                    rounded(one["detectable"]),
                )
            )
    columns = ("metric", "difference", "pairs", "missing", "mean", "95 % from", "to", "p", "p (Holm)",
               "detectable")  # fmt: skip
    note = (
        "Differences within pairs, averaged within a task, then over tasks; exploratory. Detectable is"
        " what a study of this size and spread would find four times out of five."
    )
    return _fitting("effects", "Paired differences", columns, 2, rows, note)


def distributions(document: dict[str, Any]) -> Iterator[Table]:
    """Yield the distributions of every metric by arm, then by task and arm."""
    columns = ("n", "missing", "total", "mean", "median", "least", "most")
    by_arm = [
        (name_of(metric), arm, *_distribution(one))
        for arm, facts in document["arms"].items()
        for metric, one in facts["metrics"].items()
    ]
    note = "Over completed attempts whose figure is known; totals are exact."
    yield _fitting("by-arm", "Distributions by arm", ("metric", "arm", *columns), 2, by_arm, note)
    by_task = [
        (name_of(metric), task, arm, *_distribution(one))
        for task, sides in document["tasks"].items()
        for arm, facts in sides.items()
        for metric, one in facts["metrics"].items()
    ]
    heads = ("metric", "task", "arm", *columns)
    yield _fitting("by-task", "Distributions by task and arm", heads, 3, by_task, note)


def _distribution(one: dict[str, Any]) -> tuple[str, ...]:
    return (
        exact(one["n"]),
        exact(one["missing"]),
        exact(one.get("total")),
        *(rounded(one.get(name)) for name in ("mean", "median", "least", "most")),
    )


def tools(document: dict[str, Any]) -> Table:
    """Return one row per tool and arm: calls, errors among them, attempts that used it."""
    calls, errors, users = Counter[Any](), Counter[Any](), Counter[Any]()
    for one in document["attempts"]:
        for name, count in (one.get("tool_calls_by_name") or {}).items():
            calls[name, one["scenario"]] += count
            users[name, one["scenario"]] += 1
        for name, count in (one.get("tool_errors_by_name") or {}).items():
            errors[name, one["scenario"]] += count
    rows = [
        (*key, exact(calls[key]), exact(errors[key]), exact(users[key])) for key in sorted(calls)
    ]
    unknown = sum(one["tool_calls"] is None for one in document["attempts"])
    note = f"Of all attempts, whatever their status; of {unknown:,} nothing is known."
    columns = ("tool", "arm", "calls", "errors", "attempts")
    return _fitting("tools", "Tools by name", columns, 2, rows, note)


def setups(document: dict[str, Any]) -> Table:
    """Return one row per arm: what it was to have, what it was offered, how often it went first."""
    order = document["order"]
    rows = [
        (
            arm,
            _listed(found["planned_servers"]),
            _listed(found["planned_tools"]),
            ", ".join(found["offered_tools"]) or UNKNOWN,
            exact(found["denials"]),
            exact(found["api_retries"]),
            exact(order[arm]),
        )
        for arm, found in document["setups"].items()
    ]
    uneven = [arm for arm, found in document["setups"].items() if found["offered_sets"] > 1]
    note = f"First is how often an arm was planned first of {sum(order.values()):,} pairs."
    if uneven:
        note += f" Not every attempt was offered the same tools: {', '.join(uneven)}."
    columns = ("arm", "servers", "planned tools", "offered tools", "denials", "API retries",
               "first")  # fmt: skip
    return _fitting("setups", "What each arm was offered", columns, 4, rows, note)


def _listed(names: Sequence[str] | None) -> str:
    return UNKNOWN if names is None else ", ".join(names) or "none"


def servers(document: dict[str, Any]) -> Table:
    """Return one row per server and corpus: who it said it is, and what it could reach."""
    rows = []
    for server, by_corpus in document["provenance"]["servers"].items():
        for corpus, facts in by_corpus.items():
            reaches = [one for found in facts["reachable"].values() for one in found]
            rows.append(
                (
                    server,
                    corpus,
                    " ".join(one for one in (facts["name"], facts["version"]) if one) or UNKNOWN,
                    facts["protocol_version"] or UNKNOWN,
                    ", ".join(facts["tools"]),
                    exact(len(reaches)) if reaches else UNKNOWN,
                    *(
                        exact(reaches.count(word)) if reaches else UNKNOWN
                        for word in ("yes", "no", "unknown")
                    ),
                )
            )
    columns = ("server", "corpus", "says it is", "protocol", "tools", "sources", "reachable",
               "not reachable", "unknown")  # fmt: skip
    note = (
        "As found before the first attempt. Sources are those of the answer key, counted by task."
    )
    return _fitting("servers", "Servers", columns, 5, rows, note)


def _fitting(
    name: str,
    title: str,
    columns: tuple[str, ...],
    words: int,
    rows: Sequence[tuple[str, ...]],
    note: str,
) -> Table:
    shown: list[Row] = []
    size = 0
    for cells in rows:
        size += sum(len(escape(cell)) + _PER_CELL for cell in cells)
        if size > _MOST_OTHER_BYTES:
            left = len(rows) - len(shown)
            note += f" {left:,} rows are not shown; the JSON format has them."
            break
        shown.append(Row(cells))
    return Table(f"table-{name}", title, columns, words, tuple(shown), note)
