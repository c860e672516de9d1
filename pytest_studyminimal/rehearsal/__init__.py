"""The dress rehearsal: a local provider behind the real wire format, with a scripted model."""

from __future__ import annotations

from pytest_studyminimal.rehearsal.server import RehearsalProvider

__all__ = ["RehearsalProvider"]
