"""What the SDK and the operating system raise, as one line each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from pytest_studyminimal.workspace.process import shown

if TYPE_CHECKING:
    from collections.abc import Callable


class Failure(Exception):  # noqa: N818 - a value on its way to a refusal or to an error result
    """What went wrong, as one line. `kind` is as in ServerError, or answer.

    `answer` means that the server answered, but with an error or with something unusable.
    """

    def __init__(self, kind: str, found: str) -> None:
        super().__init__(found)
        self.kind = kind
        self.found = found


def is_an_answer(error: Exception | None) -> bool:
    """Whether the server itself answered with this error."""
    # The SDK raises the same for the end of the output, with a code that servers use as well.
    return _is_rpc(error) and str(error) != "Connection closed"


def _is_rpc(error: Exception | None) -> bool:
    # The SDK takes most of a second to import: only where a server was talked to.
    from pytest_studyminimal.workspace.transport import RpcError  # noqa: PLC0415

    return isinstance(error, RpcError)


def why(error: OSError | ValueError) -> str:
    """Return why a program did not start."""
    if isinstance(error, OSError):
        where = f": {shown(str(error.filename), 200)}" if error.filename else ""
        return f"{error.strerror or type(error).__name__}{where}"
    return str(error)


def described(error: Exception | None, result: Any, hide: Callable[[str], str]) -> str:
    """Return what the SDK raised as words; `result` is the raw result that it could not read.

    `hide` is applied to what the server said.
    """
    if _is_rpc(error):
        data = error.error  # type: ignore[union-attr]
        return f"error {data.code}: {shown(hide(data.message), 500)}"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        told = hide(f"{_tool_at(first['loc'], result)}{place}: {first['msg']}")
        return f"something unreadable ({told})"
    return f"something unusable ({type(error).__name__}: {shown(hide(str(error)), 300)})"


def _tool_at(loc: tuple[int | str, ...], result: Any) -> str:
    """Name the tool of a list in which the SDK found something wrong, which says only where."""
    if len(loc) < 2 or loc[0] != "tools" or not isinstance(loc[1], int):
        return ""
    try:
        return f"tool {shown(str(result['tools'][loc[1]]['name']), 80)}, "
    except (LookupError, TypeError):
        return ""
