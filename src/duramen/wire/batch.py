"""Record batches of magic 2 as stored bytes: their 61-byte header, its checks and the two fields a leader stamps.

A batch stays bytes from the producer to the consumer. What the broker needs is in the header; only time look-ups,
compaction and our own clients open the records. The CRC covers everything from the
attributes on, so base offset and leader epoch can be set without touching it. Layout: Kafka's message format, KIP-98.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.model import FIRST_SINK_PRODUCER_ID, is_named
from duramen.wire.checksum import crc32c
from duramen.wire.compression import compress, decompress

HEADER_SIZE: Final = 61
"""Bytes before the first record."""
LOG_OVERHEAD: Final = 12
"""Bytes before the part that the batch's own length counts."""
CRC_START: Final = 21
"""First byte that the CRC covers."""
MAGIC: Final = 2

COMPRESSION_MASK: Final = 0x07
APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
CLIENT_ATTRIBUTES: Final = 0x1F

ABORT: Final = 0
COMMIT: Final = 1

LEAST_RECORD_BYTES: Final = 7
"""Of a record without key, value and headers: seven numbers of a byte each."""
MAX_INFLATED_BYTES: Final = 64 << 20
INFLATION: Final = 16
"""A produced batch may inflate to this many times `max.message.bytes`, or to MAX_INFLATED_BYTES if that is more;
beyond, it is a decompression bomb and not data."""

MAX_SEQUENCE: Final = 2**31 - 1
GREATEST: Final = 2**63 - 1
"""Of a field of eight bytes: an offset, a timestamp."""

HEADER = struct.Struct(">qiibIhiqqqhii")
_PLACE = struct.Struct(">qii")
_EPOCH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_PRODUCER = struct.Struct(">qhi")
_unpack = HEADER.unpack_from

_Buffer = bytes | bytearray | memoryview


class BatchHeader:
    """The header's fields, by their names in the format; `size` is the whole batch in bytes, `count` its records."""

    __slots__ = (
        "attributes",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "count",
        "crc",
        "last_offset_delta",
        "leader_epoch",
        "magic",
        "max_timestamp",
        "producer_epoch",
        "producer_id",
        "size",
    )

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """Offset of the first record behind this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> int:
        """Codec number, `wire/compression.py`."""
        return self.attributes & COMPRESSION_MASK

    @property
    def timestamp_type(self) -> int:
        """0: set by the producer; 1: set at the append."""
        return (self.attributes & APPEND_TIME) >> 3

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def last_sequence(self) -> int:
        """Sequence of the last record; sequences go on at 0 behind 2**31 - 1. -1 without a producer id.

        A named writer's batch has one.
        """
        if self.base_sequence < 0 or is_named(self.producer_id):
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    def __repr__(self) -> str:
        return (
            f"BatchHeader(offsets {self.base_offset}..{self.last_offset}, epoch {self.leader_epoch}, "
            f"{self.size} bytes, {self.count} records, "
            f"producer {self.producer_id}/{self.producer_epoch}/{self.base_sequence})"
        )


def parse_header(buffer: _Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. The records behind it need not be there.

    Raises KafkaError CORRUPT_MESSAGE when there are too few bytes or its length, magic or offset cannot be true.
    """
    header = BatchHeader()
    try:
        (
            header.base_offset,
            length,
            header.leader_epoch,
            header.magic,
            header.crc,
            header.attributes,
            header.last_offset_delta,
            header.base_timestamp,
            header.max_timestamp,
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            header.count,
        ) = _unpack(buffer, position)
    except struct.error:
        raise _corrupt(f"{len(buffer) - position} bytes cannot hold a batch header") from None
    header.size = length + LOG_OVERHEAD
    if length < HEADER_SIZE - LOG_OVERHEAD or header.magic != MAGIC or header.base_offset < 0:
        raise _corrupt(_insane(header))
    return header


def _insane(header: BatchHeader) -> str:
    if header.magic != MAGIC:
        return f"record format (magic) {header.magic} is not served; it must be {MAGIC}"
    if header.base_offset < 0:
        return f"base offset {header.base_offset} is negative"
    return f"a batch cannot be {header.size} bytes long"


def _corrupt(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, reason)


def _invalid(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, reason)


def check_produced(view: memoryview, max_bytes: int) -> BatchHeader:
    """The header of a produced record set, which must be exactly one batch that a client may write.

    The records are not looked at; but there are no more of them than there is room for: each count takes offsets.
    max_bytes is the topic's `max.message.bytes`. Raises KafkaError as Kafka 4.3 answers: INVALID_RECORD (none, one that
    is cut off, or several; another magic, counts, attributes or sequences that cannot be, a control batch),
    CORRUPT_MESSAGE (a length that cannot be, CRC), MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE.
    """
    total = len(view)
    if total < HEADER_SIZE:
        if total > 16 and view[16] != MAGIC:
            raise _invalid(f"Produce needs record batches of magic {MAGIC}, this is {view[16]}")
        raise _invalid(f"{total} bytes hold no record batch")
    if view[16] != MAGIC:
        raise _invalid(f"Produce needs record batches of magic {MAGIC}, this is {view[16]}")
    header = parse_header(view)
    size = header.size
    if size != total:
        if size > total:
            raise _invalid(f"a batch of {size} bytes, cut off after {total}")
        raise _invalid("Produce takes exactly one record batch for a partition")
    if header.base_offset != 0:
        raise _invalid(f"the base offset of a produced batch must be 0, not {header.base_offset}")
    if size > max_bytes:
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes; the topic takes {max_bytes}")
    if crc32c(view[CRC_START:]) != header.crc:
        raise _corrupt("the batch's CRC does not match its bytes")
    count = header.count
    if count <= 0 or header.last_offset_delta != count - 1:
        raise _invalid(f"{count} records but a last offset delta of {header.last_offset_delta}")
    attributes = header.attributes
    if count * LEAST_RECORD_BYTES > size - HEADER_SIZE:
        inflated = most_inflated(max_bytes) if attributes & COMPRESSION_MASK else size - HEADER_SIZE
        if count * LEAST_RECORD_BYTES > inflated:
            raise _invalid(f"{count} records cannot be in a batch of {size} bytes")
    if attributes or header.producer_id >= 0:
        _check_details(header)
    return header


def most_inflated(max_message_bytes: int) -> int:
    """Most bytes that the records of a batch may take uncompressed, where they have to be looked at."""
    return max(MAX_INFLATED_BYTES, INFLATION * max_message_bytes)


def _check_details(header: BatchHeader) -> None:
    attributes = header.attributes
    if attributes & CONTROL:
        raise _invalid("clients must not write control batches")
    if attributes & ~CLIENT_ATTRIBUTES:
        raise _invalid(f"unknown batch attributes {attributes & 0xFFFF:#06x}")
    if attributes & COMPRESSION_MASK > 4:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown compression codec {attributes & COMPRESSION_MASK}"
        )
    if attributes & APPEND_TIME:
        raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "a producer must not set the timestamp type LogAppendTime")
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"producer {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}"
            )
        if header.producer_id >= FIRST_SINK_PRODUCER_ID:
            raise _invalid(f"producer id {header.producer_id} is a sink's, which only its coordinator writes with")
        if attributes & TRANSACTIONAL and is_named(header.producer_id):
            raise _invalid(f"producer id {header.producer_id} is a named writer's, which has no transactions")
    elif attributes & TRANSACTIONAL:
        raise _invalid("a transactional batch needs a producer id")


def codec_of(view: memoryview) -> int:
    """Compression codec of the batch at the start of the view; 0 where not even its attributes are there."""
    low = CRC_START + 1  # of the two bytes of attributes
    return view[low] & COMPRESSION_MASK if len(view) > low else 0


def transactional_producer(view: memoryview) -> tuple[int, int, int] | None:
    """Producer id, epoch and base sequence of the transactional batch that the view seems to begin with; unchecked."""
    if len(view) < HEADER_SIZE or view[16] != MAGIC or not view[CRC_START + 1] & TRANSACTIONAL:
        return None
    producer: tuple[int, int, int] = _PRODUCER.unpack_from(view, 43)
    return producer if producer[0] >= 0 else None


def check_crc(view: _Buffer, header: BatchHeader) -> bool:
    """Whether the CRC matches; `view` starts at the batch and may go on behind it."""
    size = header.size
    if len(view) < size:
        return False
    return bool(crc32c(memoryview(view)[CRC_START:size]) == header.crc)


def place(view: memoryview, header: BatchHeader, base_offset: int, leader_epoch: int) -> None:
    """`stamp`, for a batch whose header was parsed: the header gets them, too."""
    header.base_offset = base_offset
    header.leader_epoch = leader_epoch
    _PLACE.pack_into(view, 0, base_offset, header.size - LOG_OVERHEAD, leader_epoch)


def stamp(view: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place in the log. Both fields lie outside the CRC."""
    _OFFSET.pack_into(view, 0, base_offset)
    _EPOCH.pack_into(view, LOG_OVERHEAD, leader_epoch)


def stamp_append_time(view: memoryview | bytearray, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record in the batch (LogAppendTime) and renew the CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(view, CRC_START)
    _ATTRIBUTES.pack_into(view, CRC_START, attributes | APPEND_TIME)
    stamp_max_timestamp(view, now_ms)


def stamp_max_timestamp(view: memoryview | bytearray, max_ms: int) -> None:
    """Say that `max_ms` is the greatest timestamp of the batch's records, and renew the CRC."""
    _OFFSET.pack_into(view, 35, max_ms)
    (length,) = _EPOCH.unpack_from(view, 8)
    _CRC.pack_into(view, 17, crc32c(memoryview(view)[CRC_START : length + LOG_OVERHEAD]))


def stamp_producer(view: memoryview | bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Make the batch one of this producer's, with `base_sequence` for its first record, and renew the CRC."""
    _PRODUCER.pack_into(view, 43, producer_id, producer_epoch, base_sequence)
    (length,) = _EPOCH.unpack_from(view, 8)
    _CRC.pack_into(view, 17, crc32c(memoryview(view)[CRC_START : length + LOG_OVERHEAD]))


def batches(view: _Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each whole batch, front to back; a partial one at the end is left out.

    Raises KafkaError CORRUPT_MESSAGE at a header that cannot be true. CRCs are not checked.
    """
    position = 0
    total = len(view)
    while position + HEADER_SIZE <= total:
        header = parse_header(view, position)
        if position + header.size > total:
            return
        yield position, header
        position += header.size


Header = tuple[bytes, bytes | None]
"""One record header: key (UTF-8) and value."""

NewRecord = tuple[bytes | None, bytes | None, Sequence[Header], int]
"""What goes into a batch: key, value, headers, timestamp in ms."""


class Record:
    """One record read from a batch. timestamp is in ms; key and value are None where the record has none."""

    __slots__ = ("headers", "key", "offset", "timestamp", "value")

    def __init__(
        self, offset: int, timestamp: int, key: bytes | None, value: bytes | None, headers: list[Header]
    ) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers

    def __repr__(self) -> str:
        return f"Record(offset={self.offset}, timestamp={self.timestamp}, key={self.key!r}, value={self.value!r})"


def records(view: _Buffer, header: BatchHeader | None = None, *, max_bytes: int) -> Iterator[Record]:
    """The records of the batch at the start of `view`; max_bytes bounds what its compressed part may inflate to.

    Raises KafkaError INVALID_RECORD when they are not what the header says, MESSAGE_TOO_LARGE beyond max_bytes,
    CORRUPT_MESSAGE for a bad header. The CRC is not checked here.
    """
    if header is None:
        header = parse_header(view)
    if header.size > len(view):
        raise _corrupt(f"a batch of {header.size} bytes in a buffer of {len(view)}")
    payload: _Buffer = memoryview(view)[HEADER_SIZE : header.size]
    if header.compression:
        payload = decompress(header.compression, payload, max_bytes)
    yield from payload_records(bytes(payload), header)


def payload_records(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records of a batch whose uncompressed payload is `data`. Raises KafkaError INVALID_RECORD as `records`."""
    position = 0
    for _ in range(header.count):
        record, position = _read_record(data, position, header)
        yield record
    if position != len(data):
        raise _invalid(f"{len(data) - position} bytes behind the last record")


def _read_record(data: bytes, position: int, header: BatchHeader) -> tuple[Record, int]:
    length, position = _varint(data, position)
    end = position + length
    if length < 0 or end > len(data):
        raise _invalid("a record is longer than its batch")
    position += 1  # record attributes: none are defined
    timestamp_delta, position = _varint(data, position)
    offset_delta, position = _varint(data, position)
    key, position = _nullable(data, position, end)
    value, position = _nullable(data, position, end)
    count, position = _varint(data, position)
    if not 0 <= count <= end - position:
        raise _invalid(f"a record with {count} headers")
    headers: list[Header] = []
    for _ in range(count):
        name, position = _nullable(data, position, end)
        if name is None:
            raise _invalid("a record header without a key")
        content, position = _nullable(data, position, end)
        headers.append((name, content))
    if position != end:
        raise _invalid(f"a record's fields end at byte {position}, its length says {end}")
    if not 0 <= offset_delta <= header.last_offset_delta:
        raise _invalid(f"a record's offset delta {offset_delta} is outside the batch")
    timestamp = header.max_timestamp if header.attributes & APPEND_TIME else header.base_timestamp + timestamp_delta
    if not -GREATEST <= timestamp <= GREATEST:
        timestamp = wrapped(timestamp)
    return Record(header.base_offset + offset_delta, timestamp, key, value, headers), position


def wrapped(number: int) -> int:
    """What Kafka's readers make of a sum that needs more than eight bytes: a record's delta may say anything."""
    return (number + GREATEST + 1) % (2 * GREATEST + 2) - GREATEST - 1


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number of at most 64 bits and the position behind it."""
    result = shift = 0
    try:
        while True:
            byte = data[position]
            position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (result >> 1) ^ -(result & 1), position
            shift += 7
            if shift > 63:
                raise _invalid("a number of more than ten bytes")
    except IndexError:
        raise _invalid("the records end inside a number") from None


def _nullable(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = _varint(data, position)
    if length < 0:
        return None, position
    stop = position + length
    if stop > end:
        raise _invalid("a field is longer than its record")
    return data[position:stop], stop


def _put_varint(out: bytearray, number: int) -> None:
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def _put_nullable(out: bytearray, data: bytes | None) -> None:
    if data is None:
        out.append(1)
        return
    _put_varint(out, len(data))
    out += data


def build_batch(
    new: Sequence[NewRecord],
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
    compression: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
) -> bytearray:
    """One batch of the given records, which get consecutive offsets from `base_offset`, with a valid CRC.

    Raises ValueError for no records, KafkaError UNSUPPORTED_COMPRESSION_TYPE for an unknown codec.
    """
    if not new:
        raise ValueError("a batch holds at least one record")
    base_timestamp = new[0][3]
    body = bytearray()
    record = bytearray()
    for delta, (key, value, headers, timestamp) in enumerate(new):
        record.clear()
        record.append(0)
        _put_varint(record, timestamp - base_timestamp)
        _put_varint(record, delta)
        _put_nullable(record, key)
        _put_nullable(record, value)
        _put_varint(record, len(headers))
        for name, content in headers:
            _put_nullable(record, name)
            _put_nullable(record, content)
        _put_varint(body, len(record))
        body += record
    attributes = compression | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    payload: _Buffer = compress(compression, body) if compression else body
    out = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        out,
        0,
        base_offset,
        HEADER_SIZE - LOG_OVERHEAD + len(payload),
        leader_epoch,
        MAGIC,
        0,
        attributes,
        len(new) - 1,
        base_timestamp,
        max(entry[3] for entry in new),
        producer_id,
        producer_epoch,
        base_sequence,
        len(new),
    )
    out += payload
    _CRC.pack_into(out, 17, crc32c(memoryview(out)[CRC_START:]))
    return out


def replace_payload(batch: bytes | bytearray, codec: int, payload: bytes) -> bytearray:
    """The batch with the same records compressed otherwise: new length, codec and CRC, all else as it was."""
    out = bytearray(batch[:HEADER_SIZE])
    out += payload
    _EPOCH.pack_into(out, 8, len(out) - LOG_OVERHEAD)
    (attributes,) = _ATTRIBUTES.unpack_from(out, CRC_START)
    _ATTRIBUTES.pack_into(out, CRC_START, attributes & ~COMPRESSION_MASK | codec)
    _CRC.pack_into(out, 17, crc32c(memoryview(out)[CRC_START:]))
    return out


class Marker(NamedTuple):
    """What an end-transaction marker says: ABORT or COMMIT, and by which coordinator epoch."""

    type: int
    coordinator_epoch: int


_MARKER_KEY = struct.Struct(">hh")
_MARKER_VALUE = struct.Struct(">hi")


def marker_record(type: int, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """Key and value of an end-transaction marker."""
    return _MARKER_KEY.pack(0, type), _MARKER_VALUE.pack(0, coordinator_epoch)


def build_marker(
    producer_id: int,
    producer_epoch: int,
    type: int,
    coordinator_epoch: int,
    timestamp_ms: int,
    *,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    """The control batch that ends a producer's transaction; `type` is ABORT or COMMIT (KIP-98)."""
    record: NewRecord = (*marker_record(type, coordinator_epoch), (), timestamp_ms)
    return build_batch(
        [record],
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=True,
        control=True,
    )


def read_marker(view: _Buffer, header: BatchHeader) -> Marker | None:
    """The marker in a control batch, None when it is another kind of control record (a leader change, ...).

    Raises KafkaError INVALID_RECORD when the record cannot be read.
    """
    for record in records(view, header, max_bytes=len(view)):
        return marker_of(record.key, record.value)
    return None


def marker_of(key: bytes | None, value: bytes | None) -> Marker | None:
    """The marker that a control record is, None when it is of another kind; INVALID_RECORD as `read_marker`."""
    if key is None or len(key) < _MARKER_KEY.size:
        raise _invalid("a control record without a type")
    _, kind = _MARKER_KEY.unpack_from(key)
    if kind not in (ABORT, COMMIT):
        return None
    if value is None or len(value) < _MARKER_VALUE.size:
        raise _invalid("a transaction marker without its coordinator's epoch")
    return Marker(kind, _MARKER_VALUE.unpack_from(value)[1])
