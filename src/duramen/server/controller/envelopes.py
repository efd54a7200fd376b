"""Envelopes: a client's request as it is handed on to the active controller, with who asks (KIP-590)."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from duramen.client.loop.node_client import BY_NAME, NodeRequest
from duramen.errors import ErrorCode, KafkaError
from duramen.ports import Part
from duramen.server.api.request import Request
from duramen.wire.errors import DecodeError
from duramen.wire.frame import SIZE_BYTES, encode_request
from duramen.wire.schema import Message
from duramen.wire.types import BOOL, STRING, Field

ENVELOPE: Final = BY_NAME["Envelope"]

PRINCIPAL: Final = Message(
    "DefaultPrincipalData",
    "0",
    0,
    Field("type", STRING),
    Field("name", STRING),
    Field("token_authenticated", BOOL),
)
"""As Kafka's brokers send principals to their controllers, behind two bytes with the version."""
PRINCIPAL_VERSION: Final = b"\0\0"
NOWHERE: Final = bytes(4)
"""The address of who has none."""


def wrap(request: NodeRequest, correlation_id: int, client_id: str, asker: tuple[str, str]) -> NodeRequest:
    """An envelope with this request. asker: principal and address."""
    principal, peer = asker
    frame = b"".join(
        encode_request(request.api, request.version, correlation_id, client_id, request.request)  # type: ignore[arg-type]
    )
    kind, _, name = principal.partition(":")
    data = PRINCIPAL.encode(PRINCIPAL.new(type=kind, name=name), 0)
    body = ENVELOPE.request.new(
        request_data=frame[SIZE_BYTES:],
        request_principal=PRINCIPAL_VERSION + data,
        client_host_address=address_bytes(peer),
    )
    return NodeRequest(ENVELOPE, 0, body)


def wrap_request(request: Request) -> NodeRequest:
    """An envelope with a client's request."""
    inner = NodeRequest(request.row.api, request.version, request.body)
    return wrap(inner, request.correlation_id, request.client_id, request.asker)


def address_bytes(peer: str) -> bytes:
    """The address of a transport's peer, without its port."""
    host = peer.rpartition(":")[0] or peer
    try:
        packed: bytes = _addresses().ip_address(host.strip("[]")).packed
        return packed
    except ValueError:
        return NOWHERE


def asker_from_wire(body: Any) -> tuple[str, str]:
    """Principal and address of who asks. KafkaError where they cannot be read."""
    data = body.request_principal
    try:
        if data is None or bytes(data[:2]) != PRINCIPAL_VERSION:
            raise DecodeError("no principal of version 0")
        principal = PRINCIPAL.decode(memoryview(data)[2:], 0)
    except (DecodeError, IndexError) as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from error
    try:
        host = str(_addresses().ip_address(bytes(body.client_host_address)))
    except ValueError as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    return f"{principal.type}:{principal.name}", host


def _addresses() -> Any:
    """Loaded on demand: a node alone starts without it."""
    return import_module("ipaddress")


def reply_parts(data: bytes) -> list[Part]:
    """A frame for the client from what came back."""
    return [len(data).to_bytes(SIZE_BYTES, "big"), data]


def reply_data(parts: list[Part]) -> memoryview:
    """What came back, from such a frame."""
    data = parts[1]
    assert isinstance(data, bytes)
    return memoryview(data)
