"""A client's request that was handed on: decided here, its reply given to whoever handed it on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from duramen.ports import Part
from duramen.server.api.request import NO_REPLY, ApiRow, LargeRequest, Request
from duramen.wire.error_codes import Codes

if TYPE_CHECKING:
    from duramen.server.api.services import Services
    from duramen.server.net.connection import ClientConnection

OnAnswer = Callable[[list[Part], Codes], None]
"""Gets the frame of the reply, and the errors that it tells."""


class EmbeddedRequest(Request):
    """See the module. asker: principal and address of the client; on_dropped: it has no answer, and why."""

    __slots__ = ("_asker", "_client_id", "_on_answer", "_on_dropped")
    is_embedded = True

    def __init__(
        self,
        services: Services,
        connection: ClientConnection,
        row: ApiRow,
        version: int,
        correlation_id: int,
        client_id: str,
        asker: tuple[str, str],
        on_answer: OnAnswer,
        on_dropped: Callable[[str], None],
    ) -> None:
        super().__init__(services, connection, row, version, correlation_id)
        self._client_id = client_id
        self._asker = asker
        self._on_answer = on_answer
        self._on_dropped = on_dropped

    @property
    def asker(self) -> tuple[str, str]:
        return self._asker

    @property
    def client_id(self) -> str:
        return self._client_id

    def _answer(self, parts: list[Part], codes: Codes) -> None:
        if self.parts is None:
            self.parts = NO_REPLY
            self._on_answer(parts, codes)

    def drop_connection(self, reason: str) -> None:
        """Other requests come the same way: only this one ends."""
        if self.parts is None:
            self.parts = NO_REPLY
            self._on_dropped(reason)


class LargeEmbeddedRequest(EmbeddedRequest, LargeRequest):
    """One whose frame is large, and so may be its reply."""

    __slots__ = ()


def embed(request: Request, on_answer: OnAnswer) -> EmbeddedRequest:
    """The same request, decided here; its reply is given to `on_answer`."""
    kind = LargeEmbeddedRequest if request.was_large else EmbeddedRequest
    embedded = kind(
        request.services,
        request.connection,
        request.row,
        request.version,
        request.correlation_id,
        request.client_id,
        request.asker,
        on_answer,
        request.drop_connection,
    )
    embedded.body, embedded.denied = request.body, request.denied
    return embedded
