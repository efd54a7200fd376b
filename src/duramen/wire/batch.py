"""Record batches of magic 2 as stored bytes: their 61-byte header, its checks and the two fields a leader stamps.

A batch stays bytes from the producer to the consumer. What the broker needs is in the header; only time look-ups,
compaction and our own clients open the records (`wire/records_codec.py`). The CRC covers everything from the
attributes on, so base offset and leader epoch can be set without touching it. Layout: Kafka's message format, KIP-98.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from crc32c import crc32c

from duramen.errors import ErrorCode, KafkaError

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

MAX_SEQUENCE: Final = 2**31 - 1

HEADER = struct.Struct(">qiibIhiqqqhii")
_PLACE = struct.Struct(">qii")
_EPOCH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
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
        """Sequence of the last record; sequences go on at 0 behind 2**31 - 1. -1 without a producer id."""
        if self.base_sequence < 0:
            return self.base_sequence
        return (self.base_sequence + self.last_offset_delta) & MAX_SEQUENCE

    def __repr__(self) -> str:
        return (
            f"BatchHeader(offsets {self.base_offset}..{self.last_offset}, epoch {self.leader_epoch}, {self.size} bytes, "
            f"{self.count} records, producer {self.producer_id}/{self.producer_epoch}/{self.base_sequence})"
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

    max_bytes is the topic's `max.message.bytes`. Raises KafkaError as Kafka 4.3 answers: INVALID_RECORD (none or
    several batches, another magic, counts, attributes or sequences that cannot be, a control batch), CORRUPT_MESSAGE
    (length, CRC), MESSAGE_TOO_LARGE, INVALID_TIMESTAMP, UNSUPPORTED_COMPRESSION_TYPE.
    """
    total = len(view)
    if total < HEADER_SIZE:
        if total > 16 and view[16] != MAGIC:
            raise _invalid(f"Produce needs record batches of magic {MAGIC}, this is {view[16]}")
        raise _corrupt(f"{total} bytes cannot hold a record batch") if total else _invalid("no record batch")
    if view[16] != MAGIC:
        raise _invalid(f"Produce needs record batches of magic {MAGIC}, this is {view[16]}")
    header = parse_header(view)
    size = header.size
    if size != total:
        if size > total:
            raise _corrupt(f"a batch of {size} bytes in a record set of {total}")
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
    if attributes or header.producer_id >= 0 or header.max_timestamp < header.base_timestamp:
        _check_details(header)
    return header


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
    if header.max_timestamp < header.base_timestamp:
        raise KafkaError(
            ErrorCode.INVALID_TIMESTAMP,
            f"greatest timestamp {header.max_timestamp} below the first, {header.base_timestamp}",
        )
    if header.producer_id >= 0:
        if header.base_sequence < 0 or header.producer_epoch < 0:
            raise _invalid(
                f"producer {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}"
            )
    elif attributes & TRANSACTIONAL:
        raise _invalid("a transactional batch needs a producer id")


def check_crc(view: _Buffer, header: BatchHeader) -> bool:
    """Whether the CRC matches; `view` starts at the batch and may go on behind it."""
    size = header.size
    if len(view) < size:
        return False
    return bool(crc32c(memoryview(view)[CRC_START:size]) == header.crc)


def stamp(view: memoryview | bytearray, base_offset: int, leader_epoch: int) -> None:
    """Give the batch its place in the log. Both fields lie outside the CRC."""
    _OFFSET.pack_into(view, 0, base_offset)
    _EPOCH.pack_into(view, LOG_OVERHEAD, leader_epoch)


def stamp_append_time(view: memoryview | bytearray, now_ms: int) -> None:
    """Make `now_ms` the timestamp of every record in the batch (LogAppendTime) and renew the CRC."""
    (attributes,) = _ATTRIBUTES.unpack_from(view, CRC_START)
    _ATTRIBUTES.pack_into(view, CRC_START, attributes | APPEND_TIME)
    _OFFSET.pack_into(view, 35, now_ms)
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
