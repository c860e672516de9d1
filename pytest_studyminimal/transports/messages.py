"""The Messages API with client-side tools: a route to a model for one attempt at a time."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import TYPE_CHECKING

import certifi

from pytest_studyminimal.protocol.arms import Arm
from pytest_studyminimal.protocol.errors import ProviderError
from pytest_studyminimal.transports import Assignment, Meter, Toolbox, Transport
from pytest_studyminimal.transports.conversation import Conversation
from pytest_studyminimal.transports.endings import End
from pytest_studyminimal.transports.exchange import Line, Secret
from pytest_studyminimal.transports.requests import first_request_bytes, request_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pytest_studyminimal.protocol.records import Transcript
    from pytest_studyminimal.protocol.study import Connection

__all__ = ["MessagesApi", "first_request_bytes", "read_key", "request_body"]

_REHEARSAL_KEY = "rehearsal"


def read_key(connection: Connection, environ: Mapping[str, str]) -> str:
    """Return the provider's key; a rehearsal has none, and its local server takes any.

    Raises ProviderError naming the variable where it is unset, empty or no header could hold it.
    """
    name = connection.key
    if name is None:
        return _REHEARSAL_KEY
    fault = _fault(environ.get(name, ""))
    if fault is None:
        return environ[name]
    # A traceback that shows locals would print every variable there is.
    del environ
    raise ProviderError(f"{name}: found {fault}, required the provider's key in this variable")


def _fault(key: str) -> str | None:
    if not key:
        return "nothing"
    plain = all("!" <= char <= "~" for char in key)
    return None if plain else "a space, a line break, a control character or a non-ASCII character"


@dataclass(frozen=True)
class MessagesApi(Transport[Toolbox]):
    """A route to a model: the API at `base_url`, without caching, thinking or server tools."""

    base_url: str
    key: str = field(repr=False, compare=False)
    version: str = "2023-06-01"
    temperature: Decimal = Decimal(0)

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        # 16 ms with the certificates (2026-11-30), so once per session and not at all on loopback.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.base_url.startswith("https:"):
            # Not ssl.create_default_context: it would write session secrets to SSLKEYLOGFILE.
            context.load_default_certs()
            context.load_verify_locations(certifi.where())
        return context

    def prepare(self) -> None:
        """Do before an attempt what could fail: read the certificates."""
        try:
            assert self._tls
        except OSError as error:
            raise ProviderError(
                f"found certificates that cannot be read ({error.strerror})"
            ) from None

    def arm(self, tools: Toolbox) -> Arm:
        """See `transports.Transport`."""
        names = tuple(tool.name for tool in tools.definitions)
        behind = {name: server for name in names if (server := tools.server_of(name))}
        return Arm(names, behind, tuple(dict.fromkeys(behind.values())))

    def carry(self, assignment: Assignment, tools: Toolbox, meter: Meter) -> Transcript:
        """Run one attempt to its end and return what was seen.

        `raw` holds one object per request: `request` (1-based), `status`, `reply` as parsed or the
        beginning of an unreadable body as `text`, and `tool_results`. LedgerError passes
        through.
        """
        secret = Secret(self.key)
        conversation = Conversation(assignment, tools, meter, self.temperature, secret)
        try:
            url = f"{self.base_url.rstrip('/')}/v1/messages"
            with Line(url, secret, self.version, self._tls) as line:
                end = conversation.run(line)
        except KeyboardInterrupt:
            end = End("interrupted", "the session was interrupted")
        return conversation.transcript(end)
