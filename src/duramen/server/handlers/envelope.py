"""Envelope 0: a client's request that another node hands on to the active controller (KIP-590).

What the answer tells is in the image of this node; its end is told with it (a tagged field of ours), so that the other
node can wait until its own image is as far.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.ports import Part
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.api.request import ApiRow, Request
from duramen.server.api.request_decoder import SMALL_BYTES, take_embedded
from duramen.server.controller import envelopes
from duramen.server.controller.embedded_request import EmbeddedRequest, LargeEmbeddedRequest
from duramen.wire.error_codes import Codes
from duramen.wire.frame import SIZE_BYTES, parse_request_header
from duramen.wire.messages.envelope import EnvelopeResponse


def handle(rows: Mapping[int, ApiRow], most_elements: int, request: Request) -> None:
    """Have the embedded request handled as if its client were here. rows: of what may be handed on; most_elements: of
    one that is decoded to be refused. Anything else, an envelope in it too, is INVALID_REQUEST."""
    if CLUSTER_NAME in request.denied:
        _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        return
    if not request.services.controller.is_active:
        _refuse(request, ErrorCode.NOT_CONTROLLER)
        return
    view = memoryview(request.body.request_data)
    try:
        embedded, position = _embedded(rows, request, view)
        take_embedded(embedded, view, position, most_elements)
    except IndexError:
        _refuse(request, ErrorCode.INVALID_REQUEST)
    except DuramenError as error:
        _refuse(request, error.code)


def _embedded(rows: Mapping[int, ApiRow], request: Request, view: memoryview) -> tuple[Request, int]:
    """The embedded request without its body, and where that begins."""
    header = parse_request_header(view)
    row = rows.get(header.api_key)
    if row is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"API key {header.api_key} cannot be handed on")
    if not row.lowest <= header.api_version <= row.highest:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    kind = EmbeddedRequest if len(view) <= SMALL_BYTES else LargeEmbeddedRequest
    embedded = kind(
        request.services,
        request.connection,
        row,
        header.api_version,
        header.correlation_id,
        header.client_id or "",
        envelopes.asker_from_wire(request.body),
        partial(_answer, request),
        lambda reason: _refuse(request, ErrorCode.INVALID_REQUEST),
    )
    return embedded, header.body_position


def _answer(request: Request, parts: list[Part], codes: Codes) -> None:
    controller = request.services.controller
    if int(ErrorCode.NOT_CONTROLLER) in codes:
        # It was deposed meanwhile: whoever handed it on asks the next one.
        _refuse(request, ErrorCode.NOT_CONTROLLER)
        return
    data = b"".join(parts)[SIZE_BYTES:]  # type: ignore[arg-type]
    _reply(request, response_data=data, error_code=0, metadata_offset=controller.partition.high_watermark)


def _refuse(request: Request, code: ErrorCode) -> None:
    _reply(request, response_data=None, error_code=int(code))


def _reply(request: Request, **fields: Any) -> None:
    request.reply(EnvelopeResponse.new(**fields))
