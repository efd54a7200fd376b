"""Records as version 3 of the API has them, one JSON object each, and the reports on what became of them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import msgspec

from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.request_json import decoded_json
from duramen.gateway.writes.topic_records import TXID_MISSING, WantedRecord, decoded_text, raw_null
from duramen.wire.batch import NewRecord

_NULL: Final = b"null"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_WITH_SCHEMA: Final = ("AVRO", "JSONSCHEMA", "PROTOBUF")


class RecordData(msgspec.Struct, forbid_unknown_fields=True):
    """A key or a value. type: BINARY (base64), JSON or STRING; data null: none. The rest is for schemas."""

    type: str | None = None
    data: msgspec.Raw = msgspec.field(default_factory=raw_null)
    subject: str | None = None
    subject_name_strategy: str | None = None
    schema_id: int | None = None
    schema_version: int | None = None
    schema: str | None = None


class RecordHeader(msgspec.Struct, forbid_unknown_fields=True):
    """value: base64; null: none."""

    name: str
    value: str | None = None


class ProducedRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record to be written. timestamp: RFC 3339; without one the gateway's time."""

    partition_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None
    headers: list[RecordHeader] | None = None
    key: RecordData | None = None
    value: RecordData | None = None
    timestamp: str | None = None


class DataReport(msgspec.Struct):
    """A key or a value that was stored. size: bytes."""

    type: str
    size: int


class RecordReport(msgspec.Struct, omit_defaults=True):
    """A record that was stored, and where. timestamp: the record's own."""

    error_code: int
    cluster_id: str
    topic_name: str
    partition_id: int
    offset: int
    timestamp: str
    key: DataReport | None = None
    value: DataReport | None = None


class WantedReport(msgspec.Struct):
    """A record that is wanted, and the types of its key and value for the report."""

    wanted: WantedRecord
    key_type: str | None
    value_type: str | None


_RECORD: Final = msgspec.json.Decoder(ProducedRecord)
_STRING: Final = msgspec.json.Decoder(str)


def produced_record(text: bytes, now_ms: int | None) -> WantedReport:
    """The record of a JSON object. now_ms: as of `wanted_records`. Problem 400, 422 names the field."""
    given = decoded_json(text, _RECORD, "body")
    key, key_type = _content("key", given.key)
    value, value_type = _content("value", given.value)
    headers = [
        (each.name.encode(), None if each.value is None else decoded_text("headers.value", each.value, "base64"))
        for each in given.headers or ()
    ]
    timestamp = now_ms if given.timestamp is None else _ms(given.timestamp)
    if timestamp is None:
        raise bad_request("timestamp", TXID_MISSING)
    record: NewRecord = (key, value, headers, timestamp)
    return WantedReport(WantedRecord(record, given.partition_id), key_type, value_type)


def record_report(cluster_id: str, topic: str, given: WantedReport, partition: int, offset: int) -> RecordReport:
    """The report on a record that was stored."""
    key, value, _, timestamp = given.wanted.record
    return RecordReport(
        200,
        cluster_id,
        topic,
        partition,
        offset,
        _text(timestamp),
        None if given.key_type is None else DataReport(given.key_type, len(key or b"")),
        None if given.value_type is None else DataReport(given.value_type, len(value or b"")),
    )


def _content(where: str, given: RecordData | None) -> tuple[bytes | None, str | None]:
    """The bytes, and the type; None where there is none."""
    if given is None:
        return None, None
    raw = bytes(given.data)
    if given.type in _WITH_SCHEMA or (given.type is None and raw != _NULL) or _names_schema(given):
        raise ProblemError(
            422,
            f"{where}-schema-needed",
            f"{where}.type: BINARY, JSON and STRING are served; other types need a schema, and there is no registry",
        )
    if given.type not in ("BINARY", "JSON", "STRING", None):
        raise bad_request(f"{where}.type", f"it is BINARY, JSON or STRING, not {given.type[:80]!r}")
    if raw == _NULL:
        return None, given.type
    if given.type == "JSON":
        return raw, given.type
    text = decoded_json(raw, _STRING, f"{where}.data")
    return decoded_text(f"{where}.data", text, "base64" if given.type == "BINARY" else "string"), given.type


def _names_schema(given: RecordData) -> bool:
    named = (given.subject, given.subject_name_strategy, given.schema_id, given.schema_version, given.schema)
    return any(each is not None for each in named)


def _ms(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or moment < _EPOCH:
        raise bad_request("timestamp", "it is a time since 1970 with its zone, such as 2026-01-31T12:00:00.250Z")
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _text(timestamp_ms: int) -> str:
    moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
