"""What PUT and POST of a stream ask for. Pure."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Mapping
from typing import Final

import msgspec

from duramen.client.protocol.described_settings import APPLICATION_TXIDS
from duramen.client.protocol.namespaces import check_defaults
from duramen.dlsn import Dlsn
from duramen.errors import ConfigError
from duramen.gateway.edge import media_type
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.report_response import NDJSON
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.streams.json_messages import split_messages
from duramen.gateway.streams.stream_appends import AppendWish
from duramen.gateway.streams.stream_expiry import requested_expiry
from duramen.gateway.streams.stream_position import BEGINNING, START, parse_position
from duramen.gateway.streams.stream_topics import NO_TXIDS, StreamInfo, StreamSettings
from duramen.gateway.streams.writer_headers import OpenedWriter, named_writer, opened_writer
from duramen.gateway.writes.topic_records import line_steps
from duramen.wire.batch import NewRecord

CLOSED: Final = "stream-closed"
EXCLUSIVE: Final = "stream-exclusive"
TXID: Final = "stream-txid"
SETTINGS: Final = "stream-settings"
TRUE: Final = "true"

_SETTINGS: Final = msgspec.json.Decoder(dict[str, str])
_TXID_KINDS: Final = ("none", APPLICATION_TXIDS, "assigned")
_TXID: Final = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_TXID_MAX: Final = (1 << 63) - 1


def wanted_settings(headers: Mapping[str, str], now_ms: int) -> StreamSettings:
    """The settings of a PUT. Problem 400."""
    content_type = media_type.checked(headers.get("content-type") or media_type.DEFAULT)
    expiry = requested_expiry(headers.get("stream-ttl"), headers.get("stream-expires-at"), now_ms)
    txid = headers.get(TXID, "").strip().lower() or None
    if txid not in (None, *_TXID_KINDS):
        raise bad_request("Stream-Txid", f"it is none of {', '.join(_TXID_KINDS)}")
    exclusive = headers.get(EXCLUSIVE, "").strip().lower()
    if exclusive not in ("", TRUE, "false"):
        raise bad_request("Stream-Exclusive", "it is neither true nor false")
    return StreamSettings(
        content_type, expiry, txid, exclusive == TRUE if exclusive else None, _topic_settings(headers.get(SETTINGS))
    )


def check_first_records(wanted: StreamSettings, *, closes: bool, has_body: bool) -> None:
    """Problem 400 where a new stream with these settings can be neither closed nor written to yet."""
    if wanted.exclusive and (has_body or closes):
        raise bad_request("Stream-Exclusive", "its writer alone appends and closes: PUT it empty, then .writer")
    if wanted.txid == APPLICATION_TXIDS and has_body:
        raise bad_request("Stream-Txid", "each record has its own transaction id: PUT it empty, then POST with the id")


def check_takes_body(info: StreamInfo) -> None:
    """Problem 400 where the records of a PUT would need transaction ids, as its namespace or its settings say."""
    if info.txid == APPLICATION_TXIDS:
        raise bad_request("Stream-Txid", "each record has its own transaction id: the stream is made; POST with the id")


def check_same(info: StreamInfo, wanted: StreamSettings) -> None:
    """Problem 409 where a stream that is there is another one than is asked for."""
    if media_type.essence(info.content_type) != media_type.essence(wanted.content_type):
        raise ProblemError(409, "exists", f"the stream is there, with the type {info.content_type}")
    if not wanted.expiry.same_as(info.expiry):
        raise ProblemError(409, "exists", "the stream is there, with another Stream-TTL or Stream-Expires-At")
    if wanted.txid not in (None, info.txid):
        raise ProblemError(409, "exists", f"the stream is there, with Stream-Txid: {info.txid}")
    if wanted.exclusive not in (None, info.exclusive):
        raise ProblemError(409, "exists", "the stream is there, with another Stream-Exclusive")


def append_steps(
    info: StreamInfo, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now_ms: int
) -> Generator[None, None, AppendWish]:
    """What a POST asks for, read in steps between which others get their turn. Problem 400; 409 `exists` for a body of
    another type.
    """
    closing = is_closing(headers)
    writer = opened_writer(headers, has_records=bool(body)) or named_writer(headers)
    if isinstance(writer, OpenedWriter) and not info.exclusive:
        raise bad_request("Stream-Writer", "the stream takes records of anybody, and has no writer")
    expected = _expected(headers.get("stream-expected-offset"))
    if not body:
        if not closing:
            raise bad_request("body", "it is empty, and there is no Stream-Closed: true")
        return AppendWish([], True, expected, None, writer)
    given = headers.get("content-type")
    if not given:
        raise bad_request("Content-Type", "it is missing")
    form, encoding = asked_form(query)
    essence = media_type.essence(media_type.checked(given))
    txid = None
    if form:
        if essence != NDJSON:
            raise bad_request("Content-Type", f"with format=ndjson it is {NDJSON}")
        if TXID in headers:
            raise bad_request("Stream-Txid", "with format=ndjson each record has its own, as `timestamp`")
        has_own_txids = info.txid == APPLICATION_TXIDS
        records = yield from line_steps(body, None if has_own_txids else now_ms, encoding)
        txid = records[0][3] if has_own_txids and records else None
    elif essence != media_type.essence(info.content_type):
        raise ProblemError(409, "exists", f"Content-Type: the stream's is {info.content_type}")
    else:
        messages = messages_of(body, info.content_type)
        txid = txid_of(info, headers) if messages else None
        records = new_records(messages, now_ms if txid is None else txid)
    if not records:
        raise bad_request("body", "it has no record to append")
    sequence = headers.get("stream-seq")
    return AppendWish(
        records,
        closing,
        expected,
        None if sequence is None else sequence.encode("latin-1"),
        writer,
        txid,
    )


def txid_of(info: StreamInfo, headers: Mapping[str, str]) -> int | None:
    """The transaction id of a body's records, where the application gives them. Problem 400."""
    given = headers.get(TXID)
    if info.txid != APPLICATION_TXIDS:
        if given is not None:
            who = "has no transaction ids" if info.txid == NO_TXIDS else "gives its records transaction ids itself"
            raise bad_request(
                "Stream-Txid", f"the stream {who}; leave it out, or PUT one with Stream-Txid: application"
            )
        return None
    if given is None:
        raise bad_request("Stream-Txid", "it is missing: the stream's writers give transaction ids to their records")
    if not _TXID.fullmatch(given) or int(given) > _TXID_MAX:
        raise bad_request("Stream-Txid", f"it is no whole number from 1 to {_TXID_MAX}")
    return int(given)


def messages_of(body: bytes, content_type: str) -> list[bytes]:
    """The records that a body is. Problem 400."""
    return split_messages(body) if media_type.is_json(content_type) else [body]


def new_records(messages: Iterable[bytes], timestamp: int) -> list[NewRecord]:
    """Messages as records with this timestamp."""
    return [(None, message, (), timestamp) for message in messages]


def asked_form(query: Mapping[str, str]) -> tuple[str, str | None]:
    """In which form records are sent or asked for, `ndjson` or "" (the stream's own), and the encoding. Problem 400."""
    form = query.get("format", "")
    if form not in ("", "ndjson"):
        raise bad_request("format", "it is ndjson, or left out: then records are as the stream's type has them")
    encoding = query.get("encoding")
    if encoding is not None and not form:
        raise bad_request("encoding", "it goes with format=ndjson")
    return form, encoding


def _topic_settings(text: str | None) -> Mapping[str, str]:
    found = decoded_json(text, _SETTINGS, "Stream-Settings", '{"retention.ms": "…"}') if text else {}
    try:
        check_defaults(found)
    except ConfigError as error:
        raise bad_request("Stream-Settings", str(error)) from None
    return found


def is_closing(headers: Mapping[str, str]) -> bool:
    """Whether the stream is to be closed."""
    return headers.get(CLOSED, "").strip().lower() == TRUE


def _expected(given: str | None) -> Dlsn | None:
    if given is None:
        return None
    return START if given == BEGINNING else parse_position(given, "Stream-Expected-Offset")
