"""Options of pytest and its plugins that would break a study: repeat, reorder, choose by outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_studyminimal.plugin.options import on_command_line
from pytest_studyminimal.protocol.errors import UsageRefusedError

if TYPE_CHECKING:
    import pytest

_CHOOSES = "choosing or ordering attempts by earlier outcomes is a retry"
_REFUSED: tuple[tuple[str, str, str], ...] = (
    ("reruns", "--reruns", "an attempt runs at most once"),
    ("force_reruns", "--force-reruns", "an attempt runs at most once"),
    ("lf", "--lf", _CHOOSES),
    ("failedfirst", "--ff", _CHOOSES),
    ("newfirst", "--nf", _CHOOSES),
    ("stepwise", "--sw", _CHOOSES),
    ("stepwise_reset", "--sw-reset", _CHOOSES),
    ("stepwise_skip", "--sw-skip", _CHOOSES),
    ("showfixtures", "--fixtures", "it runs no attempt"),
    ("show_fixtures_per_test", "--fixtures-per-test", "it runs no attempt"),
    ("cacheshow", "--cache-show", "it runs no attempt"),
    ("setuponly", "--setup-only", "it would prepare attempts and run none"),
    ("setupplan", "--setup-plan", "it would prepare attempts and run none"),
    (
        "continue_on_collection_errors",
        "--continue-on-collection-errors",
        "a study is never run in part",
    ),
    ("fulltrace", "--full-trace", "it would show private values of failed attempts"),
    ("usepdb", "--pdb", "it keeps an attempt's process open for hours and shows private values"),
    ("trace", "--trace", "it keeps an attempt's process open for hours and shows private values"),
    ("looponfail", "--looponfail", "an attempt runs at most once"),
)


_MONEY = (
    "--study-budget-usd",
    "--study-attempt-budget-usd",
    "--study-input-usd-per-million",
    "--study-output-usd-per-million",
)


def refuse_options(config: pytest.Config) -> None:
    """Raise UsageRefusedError for the first option that a study cannot be run with."""
    for name, option, why in _REFUSED:
        if getattr(config.option, name, None):
            raise UsageRefusedError(f"{option}: found with --study, required without it: {why}")
    if config.option.study_run is not None and config.option.study != "adjudicate":
        raise UsageRefusedError(
            "--study-run: found without --study adjudicate, required with it: it names the run to judge"
        )
    for option in _MONEY:
        name = option.removeprefix("--").replace("-", "_")
        if getattr(config.option, name) is not None and on_command_line(config, option) is None:
            raise UsageRefusedError(
                f"{option}: found elsewhere, required on the command line itself, since it is about money"
            )
    if config.pluginmanager.hasplugin("rerunfailures") and str(config.getini("reruns") or 0) != "0":
        raise UsageRefusedError(
            "reruns: found in the ini file, required none with --study: an attempt runs at most once"
        )
    if (getattr(config.option, "count", None) or 1) > 1:
        raise UsageRefusedError(
            "--count: found with --study, required without it: an attempt runs at most once"
        )
    if getattr(config.option, "dist", "no") == "each":
        raise UsageRefusedError(
            "--dist each: found with --study, required another: an attempt runs at most once"
        )
    if _timeout_method(config) == "thread":
        raise UsageRefusedError(
            "timeout_method: found 'thread', required 'signal': a thread ends the process in mid-attempt"
        )


def _timeout_method(config: pytest.Config) -> str | None:
    if not config.pluginmanager.hasplugin("timeout"):
        return None
    timeout = getattr(config.option, "timeout", None) or config.getini("timeout")
    method = getattr(config.option, "timeout_method", None) or config.getini("timeout_method")
    return str(method) if timeout and method else None


def refuse_marks(item: pytest.Item) -> None:
    """Raise UsageRefusedError for a mark that would start an attempt again."""
    if (name := repeating_mark(item)) is not None:
        raise mark_refused(item.name, name)


def repeating_mark(item: pytest.Item) -> str | None:
    """Return the name of a mark that would start an attempt again."""
    return next((name for name in ("flaky", "repeat") if item.get_closest_marker(name)), None)


def mark_refused(item: str, name: str) -> UsageRefusedError:
    """Return the refusal of a mark that would start an attempt again."""
    return UsageRefusedError(
        f"{item}: found the mark {name}, required none: an attempt runs at most once"
    )
