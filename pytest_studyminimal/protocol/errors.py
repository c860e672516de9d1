"""The exception tree: every refusal is one message of what was found, what was required, where."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_studyminimal.protocol import money

if TYPE_CHECKING:
    from decimal import Decimal


class StudyError(Exception):
    """A refusal with one public line; it never holds an answer, a key or a prompt."""


class StudyFileError(StudyError):
    """The study file, its local companion or the answer key cannot be used as written."""


class UsageRefusedError(StudyError):
    """The command line asks for something that would break the study."""


class CorpusError(StudyError):
    """A corpus is missing, dirty, unreadable or not at its pin."""


class ServerError(StudyError):
    """An MCP server could not be started, listed or made ready.

    `kind` is one of spawn, start, timeout, noise, tools, ready, identity.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class ProviderError(StudyError):
    """A provider cannot be used: no key, an unusable address, a port that is taken."""


class LedgerError(StudyError):
    """The ledger cannot be opened, read or written; nothing may be spent without it."""


class BudgetRefusedError(StudyError):
    """A reservation would not fit under the cap; nothing was started and nothing was charged.

    All amounts are US dollars: `cap`, `spent` (settled), `reserved` (open) and `needed`.
    """

    def __init__(
        self, *, cap_usd: Decimal, spent_usd: Decimal, reserved_usd: Decimal, needed_usd: Decimal
    ) -> None:
        super().__init__(
            f"budget: cap {money.text(cap_usd)} USD, spent {money.text(spent_usd)},"
            f" reserved {money.text(reserved_usd)}, needed {money.text(needed_usd)}"
        )
        self.cap_usd = cap_usd
        self.spent_usd = spent_usd
        self.reserved_usd = reserved_usd
        self.needed_usd = needed_usd


class AttemptBudgetError(StudyError):
    """A paid call would take the attempt above its own reservation (budget.attempt_usd)."""


class RunStoppedError(StudyError):
    """The run was stopped by an earlier attempt; this one is blocked."""


class AlreadyStartedError(StudyError):
    """This attempt was started before; an attempt runs at most once."""


class AgentError(StudyError):
    """An agent CLI is missing, not the pinned build, or not logged in; nothing was started."""
