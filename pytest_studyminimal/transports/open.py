"""From a connection of the manifest to a transport that is ready to carry."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from pytest_studyminimal.transports.messages import MessagesApi, read_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pytest_studyminimal.protocol.study import Connection


@contextlib.contextmanager
def open_transport(connection: Connection, environ: Mapping[str, str]) -> Iterator[MessagesApi]:
    """Give a transport, and start the local provider for as long as a rehearsal needs it.

    Raises ProviderError where the key is missing or unusable, or the provider cannot be started.
    """
    if connection.provider == "rehearsal":
        from pytest_studyminimal.rehearsal.server import RehearsalProvider  # noqa: PLC0415

        with RehearsalProvider() as provider:
            yield MessagesApi(
                base_url=provider.base_url,
                key=read_key(connection, {}),
                version=connection.version,
                temperature=connection.temperature,
            )
        return
    assert connection.base_url is not None
    transport = MessagesApi(
        base_url=connection.base_url,
        key=read_key(connection, environ),
        version=connection.version,
        temperature=connection.temperature,
    )
    transport.prepare()
    yield transport
