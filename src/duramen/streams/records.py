"""Records of streams: as they are given, as they are read, and how stored batches become them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from duramen.dlsn import Dlsn, dlsn_at
from duramen.model import NO_TIMESTAMP
from duramen.wire.aborted import AbortedTransaction, AbortedTransactions
from duramen.wire.batch import BatchHeader, batches, records
from duramen.wire.records.control import ControlType, type_of

MAX_INFLATED_BYTES: Final = 256 * 1024 * 1024

Row = tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]], int]
"""Key, value, headers and timestamp (ms) of a record, as a batch is built from them."""


@dataclass(frozen=True, slots=True)
class NewStreamRecord:
    """A record to append. timestamp_ms: since 1970, None for the time of the append."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None


class StreamRecord(NamedTuple):
    """A record as it is stored. offset: its number in the stream; dlsn: the same with its batch and leader epoch.

    timestamp_ms: milliseconds since 1970.
    """

    offset: int
    dlsn: Dlsn
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class StoredBatch(NamedTuple):
    """A batch of a stretch of log: its header, its records that readers see, and whether it closes the stream."""

    header: BatchHeader
    records: Iterable[StreamRecord]
    closes: bool


def rows_of(given: object, now_ms: int) -> list[Row]:
    """What `append` was given, as rows. TypeError says what it takes, ValueError that there is nothing."""
    many: Iterable[Any] = (
        [given] if isinstance(given, bytes | bytearray | memoryview | NewStreamRecord) else _each(given)
    )
    rows = [_row(each, now_ms) for each in many]
    if not rows:
        raise ValueError("an append has at least one record")
    return rows


def _each(given: object) -> Iterable[Any]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"append takes bytes, a NewStreamRecord or several of them, not {type(given).__name__}")
    return given


def _row(given: object, now_ms: int) -> Row:
    if isinstance(given, bytes | bytearray | memoryview):
        return None, bytes(given), [], now_ms
    if not isinstance(given, NewStreamRecord):
        raise TypeError(f"records of a stream are bytes or NewStreamRecord objects, not {type(given).__name__}")
    headers = [(name.encode(), _bytes(f"the header {name!r:.80}", content)) for name, content in given.headers]
    when = now_ms if given.timestamp_ms is None else given.timestamp_ms
    if not isinstance(when, int) or not NO_TIMESTAMP <= when < 1 << 62:
        raise TypeError(f"timestamp_ms is milliseconds since 1970 or None, not {when!r:.80}")
    return _bytes("a key", given.key), _bytes("a value", given.value), headers, when


def _bytes(what: str, content: object) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"{what} is bytes or None, not {type(content).__name__}; encode it first")


def stored_batches(
    data: bytes | memoryview, aborted: Iterable[AbortedTransaction], start: int
) -> Iterator[StoredBatch]:
    """The batches of a stretch of log from `start` on, without the records of what was rolled back."""
    rolled_back = AbortedTransactions(aborted)
    whole = memoryview(data)
    for position, header in batches(whole):
        if header.next_offset <= start:
            continue
        view = whole[position : position + header.size]
        hidden = rolled_back.hides(header, view)
        if header.is_control:
            yield StoredBatch(header, (), type_of(view, header) == ControlType.STREAM_CLOSED)
        else:
            yield StoredBatch(header, () if hidden else _shown(view, header, start), False)


def _shown(view: memoryview, header: BatchHeader, start: int) -> Iterator[StreamRecord]:
    base, epoch = header.base_offset, header.leader_epoch
    for row in records(view, header, max_bytes=MAX_INFLATED_BYTES):
        if row.offset >= start:
            headers = tuple((str(bytes(name), "utf-8", "replace"), _plain(value)) for name, value in row.headers)
            dlsn = dlsn_at(row.offset, base, epoch)
            yield StreamRecord(row.offset, dlsn, row.timestamp, _plain(row.key), _plain(row.value), headers)


def _plain(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
