"""Records of streams: as they are given, as they are read, and how stored batches become them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from duramen.dlsn import Dlsn, dlsn_at
from duramen.model import NO_TIMESTAMP
from duramen.streams.errors import TxidMissingError
from duramen.wire.aborted import AbortedTransaction, AbortedTransactions
from duramen.wire.batch import BatchHeader, batches, records
from duramen.wire.records.control import ControlType, type_of

MAX_INFLATED_BYTES: Final = 256 * 1024 * 1024

Row = tuple[bytes | None, bytes | None, list[tuple[bytes, bytes | None]], int]
"""Key, value, headers and timestamp (ms) of a record, as a batch is built from them."""


@dataclass(frozen=True, slots=True)
class NewStreamRecord:
    """A record to append. timestamp_ms: since 1970, None for the time of the append. txid: instead of it, in a stream
    whose application gives transaction ids.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int | None = None
    txid: int | None = None


class StreamRecord(NamedTuple):
    """A record as it is stored. offset: its number in the stream; dlsn: the same with its batch and leader epoch.

    timestamp_ms: milliseconds since 1970; in a stream with transaction ids it is the record's.
    """

    offset: int
    dlsn: Dlsn
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]

    @property
    def txid(self) -> int:
        """Its transaction id, in a stream that has them."""
        return self.timestamp_ms


class StoredBatch(NamedTuple):
    """Records of a stretch of log that readers see, the leader epoch that they were stored in, and whether the stream
    is closed after them.
    """

    leader_epoch: int
    records: Iterable[StreamRecord]
    closes: bool


class StreamSpot(NamedTuple):
    """Where to read on: `offset`, and the position that names the same; is_end: nothing was there yet.

    stream_id: of the stream that is meant, the id of its topic in hexadecimal; "" where it does not matter, or the
    cluster has no ids.
    """

    offset: int
    dlsn: Dlsn
    is_end: bool = False
    stream_id: str = ""


class Stretch(NamedTuple):
    """Batches from a spot on, none at the end, and the spot after them."""

    batches: Sequence[StoredBatch]
    next: StreamSpot


def rows_of(given: object, now_ms: int | None) -> list[Row]:
    """What `append` was given, as rows. now_ms: the timestamp of records without one; None where each needs its own,
    its transaction id: TxidMissingError. TypeError says what it takes, ValueError that there is nothing.
    """
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


def _row(given: object, now_ms: int | None) -> Row:
    if isinstance(given, bytes | bytearray | memoryview):
        return None, bytes(given), [], _needed(now_ms)
    if not isinstance(given, NewStreamRecord):
        raise TypeError(f"records of a stream are bytes or NewStreamRecord objects, not {type(given).__name__}")
    headers = [(name.encode(), _bytes(f"the header {name!r:.80}", content)) for name, content in given.headers]
    return _bytes("a key", given.key), _bytes("a value", given.value), headers, _when(given, now_ms)


def _when(given: NewStreamRecord, now_ms: int | None) -> int:
    if given.txid is not None:
        if given.timestamp_ms is not None:
            raise TypeError("a record has a txid or a timestamp_ms, not both: the txid is stored as its timestamp")
        return checked_txid(given.txid)
    when = _needed(now_ms) if given.timestamp_ms is None else given.timestamp_ms
    if not isinstance(when, int) or isinstance(when, bool) or not NO_TIMESTAMP <= when < 1 << 62:
        raise TypeError(f"timestamp_ms is milliseconds since 1970 or None, not {when!r:.80}")
    return when


def _needed(now_ms: int | None) -> int:
    if now_ms is None:
        raise TxidMissingError
    return now_ms


def checked_txid(txid: int) -> int:
    """TypeError for what is no transaction id."""
    if not isinstance(txid, int) or isinstance(txid, bool) or not 0 < txid < 1 << 63:
        raise TypeError(f"a txid is a whole number from 1 to 2^63 - 1, not {txid!r:.80}")
    return txid


def has_txid(given: object) -> bool:
    """Whether a record that is to be appended has a transaction id."""
    return isinstance(given, NewStreamRecord) and given.txid is not None


def _bytes(what: str, content: object) -> bytes | None:
    if content is None or isinstance(content, bytes):
        return content
    if isinstance(content, bytearray | memoryview):
        return bytes(content)
    raise TypeError(f"{what} is bytes or None, not {type(content).__name__}; encode it first")


def stretch_of(data: bytes | memoryview, aborted: Iterable[AbortedTransaction], spot: StreamSpot) -> Stretch:
    """The batches of a stretch of log from a spot on, without the records of what was rolled back."""
    rolled_back = AbortedTransactions(aborted)
    whole = memoryview(data)
    found = []
    next_spot = spot
    for position, header in batches(whole):
        if header.next_offset <= spot.offset:
            continue
        view = whole[position : position + header.size]
        hidden = rolled_back.hides(header, view)
        if header.is_control:
            found.append(StoredBatch(header.leader_epoch, (), type_of(view, header) == ControlType.STREAM_CLOSED))
        else:
            shown = () if hidden else _shown(view, header, spot.offset)
            found.append(StoredBatch(header.leader_epoch, shown, False))
        end = header.next_offset
        next_spot = StreamSpot(end, dlsn_at(end, header.base_offset, header.leader_epoch), stream_id=spot.stream_id)
    return Stretch(found, next_spot)


def _shown(view: memoryview, header: BatchHeader, start: int) -> Iterator[StreamRecord]:
    base, epoch = header.base_offset, header.leader_epoch
    for row in records(view, header, max_bytes=MAX_INFLATED_BYTES):
        if row.offset >= start:
            headers = tuple((str(bytes(name), "utf-8", "replace"), _plain(value)) for name, value in row.headers)
            dlsn = dlsn_at(row.offset, base, epoch)
            yield StreamRecord(row.offset, dlsn, row.timestamp, _plain(row.key), _plain(row.value), headers)


def _plain(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
