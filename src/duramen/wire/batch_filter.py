"""Leaving records out of a stored batch, as compaction does: the ones that stay keep their bytes and their offsets.

A rewritten batch keeps its first and last offset, leader epoch, producer id, epoch and first sequence, because offsets
never change and a producer's sequence is read from them. A batch with a *delete horizon* (KIP-534) has attribute bit 6
set and that moment as its base timestamp: from then on its tombstones may go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.wire.batch import (
    APPEND_TIME,
    COMPRESSION_MASK,
    DELETE_HORIZON,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    BatchHeader,
    wrapped,
)
from duramen.wire.checksum import crc32c
from duramen.wire.compression import compress

LATEST_HORIZON: Final = 2**63 - 1


class Span(NamedTuple):
    """One record of an uncompressed payload: its bytes are `start`..`end`, the timestamp delta ends at `rest`."""

    start: int
    rest: int
    end: int
    timestamp_delta: int
    offset_delta: int
    key: bytes | None
    is_tombstone: bool


def delete_horizon(header: BatchHeader) -> int | None:
    """When (ms) the batch's tombstones or its marker may go; None when no pass has set that yet."""
    return header.base_timestamp if header.attributes & DELETE_HORIZON else None


def spans(payload: bytes, header: BatchHeader) -> Iterator[Span]:
    """The records in `payload`, in order, without their values. Raises KafkaError INVALID_RECORD for a broken one."""
    position = 0
    size = len(payload)
    last_delta = header.last_offset_delta
    try:
        for _ in range(header.count):
            start = position
            length, position = _varint(payload, position)
            end = position + length
            timestamp_delta, rest = _varint(payload, position + 1)
            offset_delta, position = _varint(payload, rest)
            key_length, position = _varint(payload, position)
            key = None
            if key_length >= 0:
                key = payload[position : position + key_length]
                position += key_length
            value_length, position = _varint(payload, position)
            if length < 0 or position + max(0, value_length) > end or end > size or not 0 <= offset_delta <= last_delta:
                raise _broken(header)
            yield Span(start, rest, end, timestamp_delta, offset_delta, key, value_length < 0)
            position = end
    except IndexError:
        raise _broken(header) from None
    if position != size:
        raise _broken(header)


def _broken(header: BatchHeader) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, f"the batch at offset {header.base_offset} holds a broken record")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A zigzag number and the position behind it; IndexError at the end of the data."""
    byte = data[position]
    position += 1
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position
    result = byte & 0x7F
    shift = 7
    while shift < 70:
        byte = data[position]
        position += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), position
        shift += 7
    raise IndexError("a number of more than ten bytes")


def _put_varint(out: bytearray, number: int) -> None:
    number = (number << 1) ^ (number >> 63)
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)


def empty_batch(header: BatchHeader) -> bytearray:
    """The batch without any record: what remains says which offsets and sequences it had (61 bytes)."""
    attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON)
    base_timestamp = -1 if header.attributes & DELETE_HORIZON else header.base_timestamp
    return _assemble(header, attributes, base_timestamp, header.max_timestamp, 0, b"")


def lost_batch(first: int, last: int, leader_epoch: int) -> bytearray:
    """A batch without any record that covers the offsets first..last: behind it every reader goes on (61 bytes)."""
    out = bytearray(HEADER_SIZE)
    size = HEADER_SIZE - LOG_OVERHEAD
    HEADER.pack_into(out, 0, first, size, leader_epoch, MAGIC, 0, 0, last - first, -1, -1, -1, -1, -1, 0)
    out[17:21] = crc32c(memoryview(out)[21:]).to_bytes(4, "big")
    return out


def filtered_batch(header: BatchHeader, payload: bytes, kept: Sequence[Span], horizon: int | None) -> bytearray:
    """The batch with only the records in `kept` (at least one), compressed by its own codec.

    payload: the uncompressed records. horizon: the delete horizon (ms) to set; None leaves the batch's own, or none.
    """
    base = header.base_timestamp
    attributes = header.attributes
    if horizon is None:
        body = b"".join([payload[span.start : span.end] for span in kept])
    else:
        body = _rebased(payload, kept, base - horizon)
        attributes |= DELETE_HORIZON
    greatest = header.max_timestamp
    if not attributes & APPEND_TIME:
        greatest = max(wrapped(base + span.timestamp_delta) for span in kept)
    codec = attributes & COMPRESSION_MASK
    packed = compress(codec, body) if codec else body
    return _assemble(header, attributes, base if horizon is None else horizon, greatest, len(kept), packed)


def _rebased(payload: bytes, kept: Sequence[Span], shift: int) -> bytes:
    """The records with `shift` added to their timestamp deltas, which count from another moment now."""
    out = bytearray()
    record = bytearray()
    for span in kept:
        record.clear()
        record.append(0)
        _put_varint(record, wrapped(span.timestamp_delta + shift))
        record += payload[span.rest : span.end]
        _put_varint(out, len(record))
        out += record
    return bytes(out)


def _assemble(
    header: BatchHeader, attributes: int, base_timestamp: int, max_timestamp: int, count: int, packed: bytes
) -> bytearray:
    out = bytearray(HEADER_SIZE)
    HEADER.pack_into(
        out,
        0,
        header.base_offset,
        HEADER_SIZE - LOG_OVERHEAD + len(packed),
        header.leader_epoch,
        MAGIC,
        0,
        attributes,
        header.last_offset_delta,
        base_timestamp,
        max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        count,
    )
    out += packed
    out[17:21] = crc32c(memoryview(out)[21:]).to_bytes(4, "big")
    return out
