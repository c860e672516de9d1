"""What a result event of Claude Code says of tokens and money: usage by model, checked.

`modelUsage` is authoritative, since it holds the CLI's own side requests. Cache writes are split by
`usage.cache_creation`; what is not attributed to five minutes is priced at one hour.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.records import Usage
from pytest_studyminimal.transports.stream import cost_of, count_of, word_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from decimal import Decimal

_COUNTS = ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")


@dataclass(frozen=True)
class Bill:
    """One result's money: `reported_usd` and `usage` are None where they are not valid.

    `least` is what is known of the usage all the same, `by_model_usd` what was reported by model.
    """

    reported_usd: Decimal | None
    usage: Usage | None
    models: tuple[str, ...]
    problems: tuple[str, ...]
    least: Usage = field(default_factory=Usage)
    by_model_usd: Decimal = money.ZERO


def bill_of(result: dict[str, Any], is_study_model: Callable[[str], bool]) -> Bill:
    """Return what a result event says of cost; every problem is one public line."""
    reported = cost_of(result.get("total_cost_usd"))
    problems = [] if reported is not None else ["total_cost_usd is missing or no amount"]
    by_model = result.get("modelUsage", {})
    if not isinstance(by_model, dict):
        return Bill(reported, None, (), (*problems, "modelUsage is no object"))
    counts = [0, 0, 0, 0]
    foreign_writes = 0
    valid = True
    for name, entry in by_model.items():
        found = _counts(entry)
        if not is_study_model(name):
            problems.append(f"another model was used: {word_of(name, 80)}")
            foreign_writes += found[3] if found else 0
            continue
        if found is None:
            problems.append("modelUsage has missing or invalid counts")
            valid = False
            continue
        problems += _faults(entry)
        counts = [one + more for one, more in zip(counts, found, strict=True)]
    if not by_model and _has_tokens(result.get("usage")):
        return Bill(reported, None, (), (*problems, "usage without modelUsage"))
    usage, split_problems = _split(counts, result.get("usage"), foreign_writes)
    problems += split_problems
    names = tuple(word_of(name, 200) or "" for name in by_model)
    told = [cost_of(entry.get("costUSD")) for entry in by_model.values() if isinstance(entry, dict)]
    return Bill(
        reported,
        usage if valid else None,
        names,
        tuple(problems),
        least=Usage(
            input_tokens=counts[0],
            output_tokens=counts[1],
            cache_read_tokens=counts[2],
            cache_write_5m_tokens=counts[3],
        ),
        by_model_usd=money.total(cost for cost in told if cost is not None),
    )


def _counts(entry: object) -> list[int] | None:
    if not isinstance(entry, dict):
        return None
    found = [count_of(entry.get(name)) for name in _COUNTS]
    known = [count for count in found if count is not None]
    return known if len(known) == len(_COUNTS) else None


def _faults(entry: dict[str, Any]) -> list[str]:
    faults = []
    basis = entry.get("costBasis", "list")
    if basis != "list":
        faults.append(f"costBasis is {word_of(basis, 40) or 'no text'}, required list prices")
    searches = entry.get("webSearchRequests", 0)
    if isinstance(searches, bool) or searches != 0:
        faults.append("web searches were charged")
    return faults


def _split(counts: list[int], usage: object, foreign_writes: int) -> tuple[Usage | None, list[str]]:
    read, written, cached, created = counts
    creation = usage.get("cache_creation") if isinstance(usage, dict) else None
    creation = {} if creation is None else creation
    if not isinstance(creation, dict):
        return None, ["usage.cache_creation is no object"]
    short = count_of(creation.get("ephemeral_5m_input_tokens", 0))
    long = count_of(creation.get("ephemeral_1h_input_tokens", 0))
    if short is None or long is None:
        return None, ["usage.cache_creation has invalid counts"]
    if short + long > created + foreign_writes:
        return None, ["usage.cache_creation exceeds the cache writes of modelUsage"]
    return Usage(
        input_tokens=read,
        output_tokens=written,
        cache_read_tokens=cached,
        cache_write_5m_tokens=min(short, created),
        cache_write_1h_tokens=created - min(short, created),
    ), []


def _has_tokens(usage: object) -> bool:
    message = message_usage(usage)
    return message is not None and message != Usage()


def message_usage(usage: object) -> Usage | None:
    """Return the usage of one message as the API writes it, None where it is missing or invalid."""
    if not isinstance(usage, dict):
        return None
    creation = usage.get("cache_creation") or {}
    short = creation.get("ephemeral_5m_input_tokens", 0) if isinstance(creation, dict) else None
    names = ("input_tokens", "output_tokens")
    cache = ("cache_read_input_tokens", "cache_creation_input_tokens")
    found = [count_of(usage.get(name)) for name in names]
    # The API leaves cache counts out, or says null, where nothing was cached.
    found += [count_of(usage.get(name) or 0) for name in cache]
    found.append(count_of(short))
    known = [count for count in found if count is not None]
    if len(known) != len(found) or known[4] > known[3]:
        return None
    return Usage(
        input_tokens=known[0],
        output_tokens=known[1],
        cache_read_tokens=known[2],
        cache_write_5m_tokens=known[4],
        cache_write_1h_tokens=known[3] - known[4],
    )
