"""Frames: the size prefix and the headers around every request and response, in both directions.

A frame on the socket is an i32 size and that many bytes: header, then message. Requests carry header v1 (key, version,
correlation id, client id) or, in flexible versions, v2 (v1 and tagged fields); responses carry header v0 (correlation
id) or v1 (v0 and tagged fields). ApiVersions responses have header v0 in every version, because their reader does not
know yet which versions the other side speaks (KIP-511).
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct as Packing
from typing import Any, Final, NamedTuple

from duramen.ports import FileSpan, Part
from duramen.wire import messages
from duramen.wire.errors import DecodeError, EncodeError, UnsupportedVersionError
from duramen.wire.messages import ApiMessage
from duramen.wire.runtime import skip_tags

API_VERSIONS: Final = 18

SIZE_BYTES: Final = 4
"""Bytes of the size prefix, which does not count itself."""

JOINED_BYTES: Final = 4096
"""A body's first part is copied behind the header up to this size, which saves the transport a piece."""

_SIZE = Packing(">i")
_REQUEST = Packing(">hhih")
_REQUEST_FRAME = Packing(">ihhih")
_RESPONSE_V0 = Packing(">ii")
_RESPONSE_V1 = Packing(">iix")


class RequestHeader(NamedTuple):
    """A request's header; the message starts at `body_position` of the frame."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None
    body_position: int


def check_frame_size(size: int, max_bytes: int) -> int:
    """`size` as announced by a frame's prefix; DecodeError when it is negative or over the limit in bytes."""
    if not 0 <= size <= max_bytes:
        raise DecodeError(f"a frame of {size} bytes; {max_bytes} are allowed")
    return size


def read_frame_size(view: memoryview, position: int, max_bytes: int) -> int:
    """The size announced by the four bytes at `position`, checked against the limit."""
    (size,) = _SIZE.unpack_from(view, position)
    return check_frame_size(size, max_bytes)


def parse_request_header(view: memoryview) -> RequestHeader:
    """The header of a request frame (without its size prefix).

    Raises UnsupportedVersionError for keys and versions that are not declared, after which nothing more can be
    understood on the connection. ApiVersions is the exception: with an unknown version its header is returned (and its
    body is not to be read), for the answer is UNSUPPORTED_VERSION in the format of version 0 (KIP-511).
    """
    if len(view) < _REQUEST.size:
        raise DecodeError(f"a request of {len(view)} bytes has no header")
    key, version, correlation_id, length = _REQUEST.unpack_from(view)
    api = messages.API.get(key)
    if api is None:
        raise UnsupportedVersionError(f"API key {key} is not known")
    if not api.min_version <= version <= api.max_version:
        if key == API_VERSIONS:
            return RequestHeader(key, version, correlation_id, None, len(view))
        raise UnsupportedVersionError(f"{api.name} has versions {api.min_version} to {api.max_version}, not {version}")
    position = _REQUEST.size
    client_id = None
    if length >= 0:
        end = position + length
        if end > len(view):
            raise DecodeError(f"a client id of {length} bytes in a request of {len(view)}")
        try:
            client_id = str(view[position:end], "utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"client id: {error}") from error
        position = end
    elif length != -1:
        raise DecodeError(f"a client id of {length} bytes")
    if api.flexible_from is not None and version >= api.flexible_from:
        try:
            position = skip_tags(view, position)
        except IndexError as error:
            raise DecodeError("the request header is truncated") from error
    return RequestHeader(key, version, correlation_id, client_id, position)


def part_size(part: Part) -> int:
    """Bytes that a part puts on the wire."""
    if isinstance(part, FileSpan):
        return part.length
    return part.nbytes if isinstance(part, memoryview) else len(part)


def _has_response_tags(api: ApiMessage, version: int) -> bool:
    return api.flexible_from is not None and version >= api.flexible_from and api.key != API_VERSIONS


def _framed(head: Packing, arguments: Sequence[int], tail: bytes, body: Sequence[Part]) -> list[Part]:
    """Size prefix and header (its packing without the size) before the body's parts."""
    size = head.size - SIZE_BYTES + len(tail) + sum(map(part_size, body))
    if size > 0x7FFFFFFF:
        raise EncodeError(f"a frame of {size} bytes; its size field ends at 2147483647")
    prefix = head.pack(size, *arguments) + tail
    if body and isinstance(body[0], bytes) and len(body[0]) <= JOINED_BYTES:
        return [prefix + body[0], *body[1:]]
    return [prefix, *body]


def frame_response(api: ApiMessage, version: int, correlation_id: int, body: Sequence[Part]) -> list[Part]:
    """A complete response frame around the parts of an encoded message; the parts are not copied."""
    head = _RESPONSE_V1 if _has_response_tags(api, version) else _RESPONSE_V0
    return _framed(head, (correlation_id,), b"", body)


def encode_response(api: ApiMessage, version: int, correlation_id: int, response: Any) -> list[Part]:
    """A complete response frame for a message object."""
    return frame_response(api, version, correlation_id, api.response.encode_parts(response, version))


def encode_request(
    api: ApiMessage, version: int, correlation_id: int, client_id: str | None, request: Any
) -> list[Part]:
    """A complete request frame, as a client sends it."""
    name = b"" if client_id is None else client_id.encode()
    if len(name) > 0x7FFF:
        raise EncodeError(f"a client id of {len(name)} bytes; 32767 are allowed")
    body = api.request.encode_parts(request, version)
    tail = name + b"\0" if api.request.is_flexible(version) else name
    length = -1 if client_id is None else len(name)
    return _framed(_REQUEST_FRAME, (api.key, version, correlation_id, length), tail, body)


def parse_response_header(api: ApiMessage, version: int, view: memoryview) -> tuple[int, int]:
    """(correlation id, position of the message) of a response frame without its size prefix."""
    if len(view) < SIZE_BYTES:
        raise DecodeError(f"a response of {len(view)} bytes has no header")
    (correlation_id,) = _SIZE.unpack_from(view)
    position = SIZE_BYTES
    if _has_response_tags(api, version):
        try:
            position = skip_tags(view, position)
        except IndexError as error:
            raise DecodeError("the response header is truncated") from error
    return correlation_id, position


def parse_response(api: ApiMessage, version: int, view: memoryview) -> tuple[int, Any]:
    """(correlation id, message) of a response frame without its size prefix.

    An ApiVersions response of a broker that does not know `version` comes in version 0: it is recognised by its error
    code UNSUPPORTED_VERSION, which leads every version of that message.
    """
    correlation_id, position = parse_response_header(api, version, view)
    if api.key == API_VERSIONS and bytes(view[position : position + 2]) == b"\0\x23":
        version = 0
    return correlation_id, api.response.decode(view, version, position)
