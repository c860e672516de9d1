"""How much a run may spend, and who said so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money
from pytest_studyminimal.protocol.errors import UsageRefusedError
from pytest_studyminimal.protocol.prices import upper_rates
from pytest_studyminimal.protocol.text import one_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from decimal import Decimal

    from pytest_studyminimal.protocol.schedule import Phase
    from pytest_studyminimal.protocol.study import Study, Tier

BUDGET_OPTION = "--study-budget-usd"
BUDGET_VARIABLE = "STUDY_BUDGET_USD"


@dataclass(frozen=True)
class Cap:
    """The total cap of the account in dollars, and where it was said."""

    usd: Decimal
    source: str


def decide_cap(study: Study, phase: Phase, option: str | None, environ: Mapping[str, str]) -> Cap:
    """Return the cap of a phase.

    The pilot's is the smallest of manifest, variable and option; the full run's is the option, else
    the variable, else the manifest's. UsageRefusedError for a value that is no amount above 0.
    """
    stated = _stated(study, option, environ)
    if phase == "pilot":
        manifest = Cap(usd=study.budget.pilot_usd, source="budget.pilot_usd")
        return min((manifest, *stated), key=lambda cap: cap.usd)
    return (*stated, Cap(usd=study.budget.full_usd, source="budget.full_usd"))[0]


def decide_adjudication_cap(
    study: Study,
    approved: Decimal,
    option: str | None,
    environ: Mapping[str, str],
    *,
    raises: bool,
) -> Cap:
    """Return the cap of an adjudication: the one last approved for the account, or less where stated.

    Only with `raises`, a fresh approval, may it be more: then it is what a full run would have.
    """
    if raises:
        return decide_cap(study, "full", option, environ)
    last = Cap(usd=approved, source="the cap last approved")
    return min((last, *_stated(study, option, environ)), key=lambda cap: cap.usd)


def _stated(study: Study, option: str | None, environ: Mapping[str, str]) -> list[Cap]:
    return [
        Cap(usd=amount, source=source)
        for source, text in (
            (BUDGET_OPTION, option),
            (BUDGET_VARIABLE, environ.get(BUDGET_VARIABLE)),
        )
        if (amount := _stated_cap(study, source, text)) is not None
    ]


def _stated_cap(study: Study, source: str, text: str | None) -> Decimal | None:
    if text != money.UNLIMITED_WORD:
        return positive_amount(source, text)
    if not study.budget.unlimited:
        raise UsageRefusedError(
            f"{source}: found 'unlimited', required an amount above 0; the manifest does not allow that"
            " word (budget.unlimited)"
        )
    return money.UNLIMITED


def positive_amount(source: str, text: str | None) -> Decimal | None:
    """Return the amount above 0 that `text` writes, None where there is no text.

    Zero, an empty text or a word never means unlimited. UsageRefusedError names the source.
    """
    if text is None:
        return None
    try:
        amount = money.parse(text)
    except ValueError as error:
        found = one_line(text, 60)
        raise UsageRefusedError(f"{source}: found {found!r}, required {_unquoted(error)}") from None
    if amount <= 0:
        raise UsageRefusedError(
            f"{source}: found {text!r}, required an amount above 0; 0 means no paid work"
        )
    return amount


def _unquoted(error: ValueError) -> str:
    return str(error).replace(' in quotes such as "0.10"', " such as 0.10")


def decide_upper(
    study: Study, options: Mapping[str, str | None], environ: Mapping[str, str]
) -> Tier:
    """Return the rates of reservations and charges; `options` by kind, input and output.

    An option wins over its variable. UsageRefusedError for what is no amount, or below the table.
    """
    stated: dict[str, Decimal | None] = {}
    for kind in ("input", "output"):
        variable = f"STUDY_{kind.upper()}_USD_PER_MILLION"
        source, text = f"--study-{kind}-usd-per-million", options.get(kind)
        if text is None:
            source, text = variable, environ.get(variable)
        stated[f"{kind}_usd"] = positive_amount(source, text)
        try:
            tier = upper_rates(study.prices, **stated)
        except ValueError as error:
            raise UsageRefusedError(f"{source}: found {text!r}, required {error}") from None
    return tier


def required_model(study_model: str, environ: Mapping[str, str]) -> None:
    """Refuse a `STUDY_MODEL` that is not the manifest's model."""
    stated = environ.get("STUDY_MODEL")
    if stated is not None and stated != study_model:
        raise UsageRefusedError(
            f"STUDY_MODEL: found {one_line(stated, 60)!r}, required {study_model!r}"
        )
