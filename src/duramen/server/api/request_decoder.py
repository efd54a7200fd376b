"""Frames to requests: decoding, authorizing, and the call of the handler.

The only place (with the reply path in `api/request.py`) where any exception is caught: whatever one client provokes
ends at worst that client's connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from struct import Struct

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.server.api.authorizer import NOBODY, AllowAll, Resource
from duramen.server.api.request import ApiRow, Request
from duramen.server.api.services import Services
from duramen.server.api.sliced_work import Work
from duramen.server.net.connection import ClientConnection
from duramen.wire.errors import TooManyElementsError
from duramen.wire.runtime import HEADER_TAGS, skip_tags

HEADER = Struct(">hhih")
"""Key, version, correlation id and the length of the client id."""
HEADER_BYTES = HEADER.size
SMALL_BYTES = 32 * 1024
"""Requests up to here are decoded at once: milliseconds when they are full of the smallest elements. Not below
KEPT_BY_REFERENCE_BYTES."""

NO_API = -1
"""Stands for every key that is not served: clients may send 65,536 of them."""


class RequestDecoder:
    """Turns frames into requests by the table of what is served, and hands each to its handler."""

    def __init__(self, services: Services, table: Mapping[int, ApiRow], most_elements: int) -> None:
        """most_elements: of a request that is decoded to be refused."""
        self._services = services
        self._table = table
        self._most_elements = most_elements
        self.fast_paths = {key: row.fast_path() for key, row in table.items() if row.fast_path is not None}

    def on_frame(self, connection: ClientConnection, view: memoryview) -> None:
        """Handle one frame of a connection."""
        services = self._services
        key = -1
        try:
            if len(view) < HEADER_BYTES:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"a request of {len(view)} bytes has no header")
            key, version, correlation_id, length = HEADER.unpack_from(view)
            fast_path = self.fast_paths.get(key)
            if fast_path is not None and fast_path.handle_known(
                services, connection, view, version, correlation_id, length
            ):
                return
            row = self._table.get(key)
            if row is None or not row.lowest <= version <= row.highest:
                self._refuse_version(connection, view, row, key, version, correlation_id)
                return
            position = HEADER_BYTES + length if length > 0 else HEADER_BYTES
            client = view[HEADER_BYTES:position].tobytes()
            if client != connection.client_bytes:
                connection.know_client(client, length)
            if version >= row.flexible_from:
                position = position + 1 if view[position] == 0 else skip_tags(view, position, HEADER_TAGS)
            is_small = len(view) <= SMALL_BYTES
            make = row.request_class if is_small else row.large_class
            request = make(services, connection, row, version, correlation_id)
            connection.expect(request)
            # Bytes behind the message are ignored, as Kafka does: librdkafka sends some (Metadata v11 and up).
            if is_small:
                request.body, _ = row.request.decode_from(view, version, position)
            elif not self._decoded_at_once(request, view, position):
                services.sliced_work.add(connection, _take_large(request, view, position, self._most_elements))
                return
            if type(services.access.authorizer) is not AllowAll:
                request.denied = _denied(request, row)
            row.handle(request)
            if fast_path is not None:
                fast_path.learn(view, request)
        except (DuramenError, IndexError) as error:
            services.metrics.error(key if key in self._table else NO_API)
            connection.close(str(error))
        except Exception as error:  # noqa: BLE001 the connection loop: one client's request must not end the server
            services.metrics.error(key if key in self._table else NO_API)
            services.report_bug("request-failed", error, api=key, peer=connection.transport.peer)
            connection.close(f"internal error: {error!r}")

    def _decoded_at_once(self, request: Request, view: memoryview, position: int) -> bool:
        """Whether a large request was decoded here: one of few elements, where the row says so."""
        most = request.row.decoded_at_once
        if not most:
            return False
        try:
            request.body, _ = request.row.request.decode_bounded(view, request.version, position, most)
        except TooManyElementsError:
            return False
        return True

    def _refuse_version(
        self,
        connection: ClientConnection,
        view: memoryview,
        row: ApiRow | None,
        key: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Hang up, as Kafka does for all but ApiVersions (KIP-511), unless the row has an answer."""
        refuse = None if row is None else row.refuse_version
        if row is None or refuse is None or not refuse(self._services, connection, row, view, version, correlation_id):
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"API key {key} version {version} is not served")


def take_embedded(request: Request, view: memoryview, position: int, most_elements: int) -> None:
    """Decode a request that came in another one, and handle it; `position`: where its body begins."""
    if request.was_large:
        work = _take_large(request, view, position, most_elements)
        request.services.sliced_work.add(request.connection, work, begun=True)
        return
    row = request.row
    request.body, _ = row.request.decode_from(view, request.version, position)
    if type(request.services.access.authorizer) is not AllowAll:
        request.denied = _denied(request, row)
    row.handle(request)


def _take_large(request: Request, view: memoryview, position: int, most_elements: int) -> Work:
    """Decode beside the loop and handle the request; what its handler does in steps comes next."""
    row = request.row
    decode = row.request.bounded_decoder(request.version)
    handle = row.handle_large
    try:
        try:
            request.body, _ = yield partial(decode, view, position, row.most)
        except TooManyElementsError:
            if row.refuse_excess is None:
                raise
            request.body, _ = yield partial(decode, view, position, most_elements)
            handle = row.refuse_excess
        del view
        if type(request.services.access.authorizer) is not AllowAll:
            request.denied = _denied(request, row)
        handle(request)
    except Exception as error:  # noqa: BLE001 as in the decoder
        request.fail(error)


def _denied(request: Request, row: ApiRow) -> frozenset[str]:
    if row.resource is Resource.NONE:
        return NOBODY
    return request.denies(row.operation, row.resource, row.names(request.body))
