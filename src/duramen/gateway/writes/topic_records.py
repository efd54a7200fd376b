"""Records for a topic as JSON: a body is one record, `{"records": […]}`, or lines with a record each. Pure."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Generator
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from duramen.client.protocol.stream_defaults import APPEND_RECORDS_MAX
from duramen.gateway.edge.problem import bad_request
from duramen.gateway.edge.request_json import decoded_json
from duramen.wire.batch import NewRecord
from duramen.wire.key_partitions import partition_for

RECORDS_MAX: Final = 10_000
"""In one body."""

STICKY_BYTES: Final = 16_384
"""Records without a key go to the next partition after so many bytes: those that come together leave together."""

TIMESTAMP_MAX: Final = (1 << 63) - 1

TXID_MISSING: Final = "it is missing: the writers of this topic give transaction ids to their records (duramen.txid)"

Encoding = Literal["json", "string", "base64"]
_STEP_LINES: Final = 1000
_NULL: Final = b"null"
_MISSING: Final = b""
"""No JSON is so: the field is not there."""


def raw_null() -> msgspec.Raw:
    """Made anew for each: a default would have to stand in the schema, which Raw cannot."""
    return msgspec.Raw(_NULL)


class HeaderJson(msgspec.Struct, forbid_unknown_fields=True):
    """A header of a record; value null: none."""

    name: str
    value: str | None = None
    encoding: Literal["string", "base64"] = "string"


class RecordJson(msgspec.Struct, forbid_unknown_fields=True):
    """A record. timestamp: ms since 1970, without one the gateway's time; in a topic whose application gives
    transaction ids the id."""

    key: msgspec.Raw = msgspec.Raw(_NULL)
    value: msgspec.Raw = msgspec.Raw(_MISSING)
    headers: dict[str, str | None] | list[HeaderJson] = {}
    partition: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None = None
    timestamp: Annotated[int, msgspec.Meta(ge=0)] | None = None
    key_encoding: Encoding | None = None
    value_encoding: Encoding | None = None


class RecordsJson(msgspec.Struct, forbid_unknown_fields=True):
    """Several records. key_encoding, value_encoding: of those that name none."""

    records: list[RecordJson]
    key_encoding: Encoding | None = None
    value_encoding: Encoding | None = None


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ONE = msgspec.json.Decoder(RecordJson)
_MANY = msgspec.json.Decoder(RecordsJson)


class WantedRecord(NamedTuple):
    """A record and the partition that was named for it, if any."""

    record: NewRecord
    partition: int | None


def wanted_records(body: bytes, now_ms: int | None) -> list[WantedRecord]:
    """The records of a body, one or more. now_ms: their timestamp where they have none; None where each needs one,
    which is its transaction id. Problem 400 names the field.
    """
    is_list = "records" in decoded_json(body, _FIELDS, "body")
    many = decoded_json(body, _MANY, "body") if is_list else RecordsJson([decoded_json(body, _ONE, "body")])
    if not 1 <= len(many.records) <= RECORDS_MAX:
        raise bad_request("records", f"a body has 1 to {RECORDS_MAX} records, not {len(many.records)}")
    return [
        _wanted(f"records[{number}]." if is_list else "", each, many, now_ms)
        for number, each in enumerate(many.records)
    ]


def wanted_record(line: bytes, now_ms: int | None) -> WantedRecord:
    """The record of a line. Problem 400 names the field."""
    return _wanted("record.", decoded_json(line, _ONE, "record"), RecordsJson([]), now_ms)


def line_steps(body: bytes, now_ms: int | None, encoding: str | None) -> Generator[None, None, list[NewRecord]]:
    """The records of a body with one on each line, for one partition, in steps between which others get their turn.

    encoding: of values, and base64 of keys too, that
    name none. Problem 400 names the line and the field.
    """
    known: dict[str | None, Encoding] = {None: "json", "json": "json", "string": "string", "base64": "base64"}
    if encoding not in known:
        raise bad_request("encoding", "it is json, string or base64")
    of_all = RecordsJson([], "base64" if encoding == "base64" else "string", known[encoding])
    lines = [(number, line) for number, line in enumerate(body.split(b"\n"), 1) if line.strip()]
    if len(lines) > APPEND_RECORDS_MAX:
        raise bad_request("body", f"it has 1 to {APPEND_RECORDS_MAX} records, not {len(lines)}")
    found: list[NewRecord] = []
    for number, line in lines:
        if len(found) % _STEP_LINES == _STEP_LINES - 1:
            yield
        where = f"line {number}"
        record = _wanted(f"{where}.", decoded_json(line, _ONE, where), of_all, now_ms)
        if record.partition not in (None, 0):
            raise bad_request(f"{where}.partition", "a stream has the partition 0 alone")
        found.append(record.record)
    return found


def _wanted(where: str, given: RecordJson, many: RecordsJson, now_ms: int | None) -> WantedRecord:
    """where: what stands in front of the names of its fields."""
    key = _content(f"{where}key", bytes(given.key), given.key_encoding or many.key_encoding or "string")
    raw_value = bytes(given.value)
    if raw_value == _MISSING:
        raise bad_request(f"{where}value", "it is missing; null deletes the key")
    value = _content(f"{where}value", raw_value, given.value_encoding or many.value_encoding or "json")
    headers = given.headers
    listed = [HeaderJson(*each) for each in headers.items()] if isinstance(headers, dict) else headers
    found = [
        (
            each.name.encode(),
            None if each.value is None else decoded_text(f"{where}headers", each.value, each.encoding),
        )
        for each in listed
    ]
    timestamp = now_ms if given.timestamp is None else given.timestamp
    if timestamp is None:
        raise bad_request(f"{where}timestamp", TXID_MISSING)
    if timestamp > TIMESTAMP_MAX:
        raise bad_request(f"{where}timestamp", f"it is above {TIMESTAMP_MAX}")
    return WantedRecord((key, value, found, timestamp), given.partition)


def _content(where: str, raw: bytes, encoding: Encoding) -> bytes | None:
    """null is none in every encoding: a record without a key, a value that deletes its key in a compacted topic."""
    if raw == _NULL:
        return None
    if encoding == "json":
        return raw
    try:
        text = msgspec.json.decode(raw, type=str)
    except msgspec.MsgspecError:
        raise bad_request(where, f"with the encoding {encoding} it is a string or null") from None
    return decoded_text(where, text, encoding)


def decoded_text(where: str, text: str, encoding: Encoding) -> bytes:
    """The bytes that a text stands for. Problem 400 where it is no base64."""
    if encoding != "base64":
        return text.encode()
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise bad_request(where, "it is not base64 (the alphabet with + and /, padded with =)") from None


class TopicPlaces:
    """Partitions of the records for one topic, as Kafka's default partitioner has them.

    A key decides by its hash; records without one stay in a partition for about STICKY_BYTES.
    """

    def __init__(self) -> None:
        self._keyless = 0
        self._bytes = 0

    def partition(self, wanted: WantedRecord, size: int, count: int) -> int:
        """The partition, of `count`, of a record of `size` bytes; one that was named need not be there."""
        if wanted.partition is not None:
            return wanted.partition
        key = wanted.record[0]
        if key is not None:
            return partition_for(key, count)
        if self._bytes >= STICKY_BYTES:
            self._keyless, self._bytes = self._keyless + 1, 0
        self._bytes += size
        return self._keyless % count
