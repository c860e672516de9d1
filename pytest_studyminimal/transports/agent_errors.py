"""What a native failure means: blocked, and by what, or a plain failure (None).

Only fields of the CLI or the provider decide: a status, a code, the class of an error. What a task or a
model says never does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_studyminimal.protocol.records import Block

_BY_STATUS: dict[int, Block] = {
    401: "authentication",
    402: "budget",
    403: "model-access",
    404: "model-access",
}
_BY_CODE: dict[str, Block] = {
    "insufficient_quota": "budget",
    "usage_limit_exceeded": "budget",
    "billing_hard_limit_reached": "budget",
    "invalid_api_key": "authentication",
    "unauthorized": "authentication",
    "model_not_found": "model-access",
    "model_not_available": "model-access",
}


def block_of_status(status: int | None) -> Block | None:
    """Return what a provider's HTTP status blocks."""
    return _BY_STATUS.get(status) if status is not None else None


def block_of_code(code: str | None) -> Block | None:
    """Return what the code in a provider's error body blocks."""
    return _BY_CODE.get(code) if code is not None else None


def code_in(body: object) -> str | None:
    """Return `error.code`, else `error.type`, of an error body given as text of JSON."""
    try:
        document: Any = json.loads(body) if isinstance(body, str) else None
    except (ValueError, RecursionError):
        return None
    error = document.get("error") if isinstance(document, dict) else None
    if not isinstance(error, dict):
        return None
    told = [error.get(name) for name in ("code", "type")]
    return next((one for one in told if isinstance(one, str)), None)
