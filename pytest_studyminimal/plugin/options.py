"""The options, and all that happens without `--study`: study items are deselected."""

from __future__ import annotations

import json

import pytest

FIXTURES = {
    "pilot": "study_attempt",
    "full": "study_attempt",
    "adjudicate": "study_adjudication",
}
"""What a phase's test function asks for."""
STUDY_FIXTURES = frozenset(FIXTURES.values())


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("studyminimal", "controlled studies of coding agents")
    group.addoption(
        "--study",
        metavar="PHASE",
        choices=("pilot", "full", "adjudicate"),
        help="run a study: pilot (a few paid attempts), full (the whole matrix) or adjudicate (judge the"
        " answers of a full run blind). Counts only on the command line, never from addopts or"
        " PYTEST_ADDOPTS.",
    )
    group.addoption(
        "--approve-budget",
        action="store_true",
        dest="study_approve_budget",
        help="approve the cap of a full run, or a new one of an adjudication; counts only on the command"
        " line",
    )
    group.addoption(
        "--study-budget-usd",
        metavar="USD",
        help="total cap of the study's account in dollars, such as 1 or 0.50; wins over STUDY_BUDGET_USD"
        " and the manifest. 0, an empty text or a word never means unlimited: it is refused.",
    )
    group.addoption(
        "--study-attempt-budget-usd",
        metavar="USD",
        help="cap of one attempt (default: the manifest's)",
    )
    group.addoption(
        "--study-input-usd-per-million",
        metavar="USD",
        help="upper input price for reservations and charges (default: the table's highest)",
    )
    group.addoption(
        "--study-output-usd-per-million", metavar="USD", help="as above, for output tokens"
    )
    group.addoption(
        "--study-root",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help="where the checkout of a corpus, or the engine, lies on this machine (repeatable)",
    )
    group.addoption(
        "--study-agent",
        metavar="TRANSPORT=PATH",
        action="append",
        default=[],
        help="the program of an agent CLI, such as claude-code=PATH (default: the one on PATH)",
    )
    group.addoption(
        "--study-connection", metavar="ID", help="connection of the manifest (default: its first)"
    )
    group.addoption(
        "--study-rehearse",
        action="store_true",
        help="everything real but the model, which is local, scripted and free; never evidence",
    )
    group.addoption(
        "--study-ledger",
        metavar="PATH",
        help="ledger file (default: one per study in the user's state directory)",
    )
    group.addoption(
        "--study-run",
        metavar="ID",
        help="the run whose answers --study adjudicate judges (default: the study's newest full one)",
    )
    group.addoption(
        "--study-report",
        metavar="DIR",
        help="write the report of the run into this folder at its end, in every format",
    )
    parser.addini("study_default", "study folder for --study without a path, relative to rootdir")


def on_command_line(config: pytest.Config, option: str) -> str | None:
    """Return the value that `option` has on the command line itself ("" for a flag), else None."""
    found = None
    arguments = [str(argument) for argument in config.invocation_params.args]
    for index, argument in enumerate(arguments):
        if argument == "--":
            break
        name, separator, value = argument.partition("=")
        if name == option:
            following = arguments[index + 1] if index + 1 < len(arguments) else ""
            found = value if separator else following
    return found


def worker_orders(config: pytest.Config) -> dict[str, str] | None:
    """Return what the controller told this xdist worker about the run, None in any other process."""
    orders = getattr(config, "workerinput", {}).get("studyminimal")
    return json.loads(orders) if orders else None


def requested_phase(config: pytest.Config) -> str | None:
    """Return the phase of this session; None without `--study` on the command line."""
    if hasattr(config, "workerinput"):
        orders = worker_orders(config)
        return orders["phase"] if orders else None
    return on_command_line(config, "--study")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if requested_phase(config) is not None:
        from pytest_studyminimal.plugin.session import activate  # noqa: PLC0415

        activate(config)


def pytest_report_header(config: pytest.Config) -> str | None:
    if config.getoption("study") and requested_phase(config) is None:
        return "study: --study from addopts is ignored; it counts only on the command line"
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if requested_phase(config) is not None:
        return
    dropped = [item for item in items if is_study_item(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not is_study_item(item)]


def is_study_item(item: pytest.Item) -> bool:
    """Whether an item belongs to a study."""
    return not STUDY_FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
