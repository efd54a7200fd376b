"""Records as an embedded log's users see them, and how keys choose partitions."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from duramen.model import NO_TIMESTAMP

LATEST = (1 << 63) - 2
"""The distance between two times of a batch has to be a signed number of 64 bits, and -1 may be one of them."""

Header = tuple[bytes, bytes | None] | tuple[str, bytes | None]


@dataclass(frozen=True, slots=True)
class Record:
    """A record to append. timestamp_ms None takes the time of the append; a None value is a tombstone."""

    value: bytes | None = None
    key: bytes | None = None
    headers: Sequence[Header] = field(default_factory=tuple)
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record as it lies in the log."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int


def check_records(rows: object) -> list[Record]:
    """The records as they are written. TypeError that says what is expected instead of what was given."""
    if isinstance(rows, Record):
        raise TypeError("append takes a list of records: append([record])")
    try:
        each = iter(rows)  # type: ignore[call-overload]
    except TypeError:
        raise TypeError(f"append takes a list of duramen.Record objects, not {type(rows).__name__}") from None
    return [check_record(row) for row in each]


def check_record(row: object) -> Record:
    """The record as it is written: views as the bytes they show. TypeError that names what is wrong with it."""
    if not isinstance(row, Record):
        raise TypeError(f"records are duramen.Record objects, not {type(row).__name__}")
    key, value = _bytes("a record's key", row.key), _bytes("a record's value", row.value)
    if row.timestamp_ms is not None:
        _check_time(row.timestamp_ms)
    if key is row.key and value is row.value and row.headers == ():
        return row
    return Record(value, key, tuple(map(_header, row.headers)), row.timestamp_ms)


def _header(header: object) -> Header:
    if not isinstance(header, tuple | list) or len(header) != 2 or not isinstance(header[0], str | bytes):
        raise TypeError(f"a header is a pair of a name and bytes, not {header!r:.80}")
    name, value = header
    return name, _bytes(f"the value of the header {name!r:.80}", value)


def _check_time(when: int) -> None:
    with suppress(TypeError):  # a whole number of another library's is one, too
        if NO_TIMESTAMP <= operator.index(when) <= LATEST:
            return
    raise TypeError(f"a record's timestamp_ms is milliseconds since 1970 or None, not {when!r:.80}")


def _bytes(what: str, content: object) -> bytes | None:
    """The length of a view counts its items, which may be wider than a byte, or not lie side by side."""
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"{what} is bytes or None, not {type(content).__name__}; encode it first")
