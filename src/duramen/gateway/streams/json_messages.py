"""Messages of JSON streams: a body is cut into messages, and messages are put together to a page, byte for byte.

Nothing is converted: integers of any size, decimals and the order of keys come back as they went in.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec

from duramen.client.protocol.stream_defaults import APPEND_RECORDS_MAX
from duramen.gateway.edge.request_json import decoded_json

_ARRAY = msgspec.json.Decoder(Annotated[list[msgspec.Raw], msgspec.Meta(max_length=APPEND_RECORDS_MAX)])
_VALUE = msgspec.json.Decoder(msgspec.Raw)


def split_messages(body: bytes) -> list[bytes]:
    """The messages of a body: the elements of an array (one level), else the one value that it is.

    Problem 400, with the position, where it is no JSON in UTF-8, nests too deeply or has more than APPEND_RECORDS_MAX.
    """
    text = body.strip(b" \t\r\n")
    if text.startswith(b"["):
        return [bytes(message) for message in decoded_json(text, _ARRAY, "body")]
    decoded_json(text, _VALUE, "body")
    return [text]


def join_messages(messages: Iterable[bytes]) -> bytes:
    """The array of the messages; each is JSON or what a Kafka client has written."""
    return b"[" + b",".join(map(shown, messages)) + b"]"


def shown(value: bytes) -> bytes:
    """A record's value as a message: null for none, and what is no JSON (a Kafka client wrote it) as base64."""
    if not value:
        return b"null"
    try:
        value.decode()
        _VALUE.decode(value)
    except (UnicodeDecodeError, msgspec.MsgspecError, RecursionError):
        return msgspec.json.encode({"not-json": value})
    return value
