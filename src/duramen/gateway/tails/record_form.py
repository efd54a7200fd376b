"""Records with all that they have, each as a JSON object: what a line of NDJSON or an event is. Pure.

A value that is JSON stands in it byte for byte, but for line ends between its parts. What the encoding cannot show is
shown in another one, and the object says in which: so each record reads back as it was written.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final, Literal, NamedTuple

import msgspec

from duramen.dlsn import dlsn_at
from duramen.gateway.edge.problem import bad_request
from duramen.gateway.edge.report_response import NDJSON
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.tails import sse_frames
from duramen.wire.batch import Header

RecordEncoding = Literal["json", "string", "base64"]
_ENCODINGS: Final[tuple[RecordEncoding, ...]] = ("json", "string", "base64")

_ANY = msgspec.json.Decoder(msgspec.Raw)
_TEXT = msgspec.json.Encoder()
_NULL = msgspec.Raw(b"null")


class HeaderShown(msgspec.Struct, omit_defaults=True):
    """A header of a record. value: null for none; encoding: where it is not the one that was asked for."""

    name: str
    value: str | None
    encoding: RecordEncoding | None = None


class RecordShown(msgspec.Struct, omit_defaults=True):
    """A record. timestamp: ms since 1970; txid instead in topics with transaction ids.

    key_encoding, value_encoding: where they are not those that were asked for.
    """

    offset: int
    dlsn: str
    key: msgspec.Raw
    value: msgspec.Raw
    headers: list[HeaderShown]
    partition: int | None = None
    timestamp: int | None = None
    txid: int | None = None
    key_encoding: RecordEncoding | None = None
    value_encoding: RecordEncoding | None = None


class RecordForm(NamedTuple):
    """Objects with these encodings. names_txid: timestamps are transaction ids; partition: said, where it is not -1."""

    encoding: RecordEncoding
    names_txid: bool
    partition: int = -1

    @property
    def name(self) -> str:
        return f"ndjson-{self.encoding}"

    @property
    def media_type(self) -> str:
        return NDJSON

    @property
    def is_text(self) -> bool:
        return True

    @property
    def is_lines(self) -> bool:
        return True

    @property
    def is_kept(self) -> bool:
        return True

    def body(self, page: StreamPage) -> bytes:
        """A line for each record."""
        return _TEXT.encode_lines(list(self.objects(page)))

    def events(self, page: StreamPage) -> bytes:
        """One event with a line for each record; its id is the position after them."""
        return sse_frames.lines_event(self.body(page), page.event_id) if page.records else b""

    def objects(self, page: StreamPage) -> Iterator[RecordShown]:
        """Each record."""
        key_encoding: RecordEncoding = "base64" if self.encoding == "base64" else "string"
        for record, place in zip(page.records, page.places, strict=True):
            key, keyed = shown(record.key, key_encoding)
            value, valued = shown(record.value, self.encoding)
            yield RecordShown(
                record.offset,
                str(dlsn_at(record.offset, place.base_offset, max(0, place.leader_epoch))),
                key,
                value,
                [_header(each, key_encoding) for each in record.headers],
                None if self.partition < 0 else self.partition,
                None if self.names_txid else record.timestamp,
                record.timestamp if self.names_txid else None,
                None if keyed == key_encoding else keyed,
                None if valued == self.encoding else valued,
            )


def record_form(encoding: str | None, *, names_txid: bool, partition: int = -1) -> RecordForm:
    """The form that a request asks for; values are JSON if it says nothing. Problem 400."""
    for known in _ENCODINGS:
        if encoding in (known, None):
            return RecordForm(known, names_txid, partition)
    raise bad_request("encoding", "it is json, string or base64")


def shown(content: bytes | None, encoding: RecordEncoding) -> tuple[msgspec.Raw, RecordEncoding]:
    """A key or value in an encoding, or in another one that can show it."""
    if content is None:
        return _NULL, encoding
    if encoding != "base64":
        try:
            text = content.decode()
            if encoding == "string":
                return msgspec.Raw(_TEXT.encode(text)), encoding
            raw = bytes(_ANY.decode(content))
        except UnicodeDecodeError:
            encoding = "base64"
        except (msgspec.MsgspecError, RecursionError):
            encoding = "base64"
        else:
            if raw == b"null":  # which stands for none
                return msgspec.Raw(_TEXT.encode(text)), "string"
            # Strings of JSON hold no line ends: these lie between its parts.
            return msgspec.Raw(raw.replace(b"\r", b" ").replace(b"\n", b" ")), encoding
    return msgspec.Raw(b'"%b"' % base64.b64encode(content)), "base64"


def _header(header: Header, encoding: RecordEncoding) -> HeaderShown:
    name, value = header
    text = name.decode(errors="replace")
    if value is None:
        return HeaderShown(text, None)
    if encoding == "string":
        try:
            return HeaderShown(text, value.decode())
        except UnicodeDecodeError:
            return HeaderShown(text, base64.b64encode(value).decode(), "base64")
    return HeaderShown(text, base64.b64encode(value).decode())
