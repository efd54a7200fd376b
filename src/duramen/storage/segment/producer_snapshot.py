"""Producer state on disk: Kafka's `.snapshot` with one batch per producer, and our `.producers` with five.

Both are named after the offset up to which they speak. Ours is read first; Kafka's is what remains in a directory
that Kafka wrote, and what Kafka finds in ours. Either can be deleted: the state is then rebuilt from the log. Ours says
whose it is: what a file system puts in its place is sound, too, but of another log, and retries would be stored twice.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from duramen.model import TopicId, is_named
from duramen.storage.segment.producer_state import NO_TRANSACTION, Producer, ProducerStates
from duramen.storage.segment.stream_state import ExclusiveWriter, StreamState
from duramen.wire.checksum import crc32c

_HEAD = struct.Struct(">hI")  # version, CRC32C of everything behind it
_COUNT = struct.Struct(">i")
_BASE = struct.Struct(">q")
_KAFKA_ENTRY = struct.Struct(">qhiqiqiq")
_OUR_MAGIC = b"DPR3"
_STREAM_MAGIC = b"DPR4"
"""The same with a stream's state; of most logs there is none."""
_OLD_MAGIC = b"DPR2"
"""Did not say whose it is."""
_HOME = struct.Struct(">16siq")
_SIZE = struct.Struct(">i")
_OUR_ENTRY = struct.Struct(">qhiqqb")
_OUR_BATCH = struct.Struct(">iiqqq")
_STREAM = struct.Struct(">qqhqH")
"""Close offset, then of the exclusive writer: producer id, epoch, offset, bytes of its name. -1 for none."""
_KAFKA_VERSION = 1


class SnapshotHome(NamedTuple):
    """Which file it is: of which log, up to which offset."""

    topic_id: TopicId
    partition: int
    offset: int


def encode_kafka(states: ProducerStates) -> bytes:
    """A `.snapshot` file (ProducerSnapshot, version 1)."""
    producers = list(states.active())
    body = bytearray(_COUNT.pack(len(producers)))
    for producer in producers:
        last = producer.batches[-1] if producer.batches else None
        body += _KAFKA_ENTRY.pack(
            producer.id,
            producer.epoch,
            last[1] if last else -1,
            last[3] if last else -1,
            last[3] - last[2] if last else 0,
            producer.last_timestamp,
            producer.coordinator_epoch,
            producer.transaction_start,
        )
    return _HEAD.pack(_KAFKA_VERSION, crc32c(body)) + bytes(body)


def decode_kafka(data: bytes) -> list[Producer] | None:
    """The producers in a `.snapshot` file; None when it is damaged or of another version."""
    try:
        version, crc = _HEAD.unpack_from(data)
        if version != _KAFKA_VERSION or crc32c(data[_HEAD.size :]) != crc:
            return None
        (count,) = _COUNT.unpack_from(data, _HEAD.size)
        start = _HEAD.size + _COUNT.size
        if len(data) != start + count * _KAFKA_ENTRY.size:
            return None
        entries = list(_KAFKA_ENTRY.iter_unpack(data[start:]))
    except struct.error:
        return None
    producers = []
    for id, epoch, sequence, offset, delta, timestamp, coordinator, transaction in entries:
        producer = Producer(id)
        producer.epoch = epoch
        producer.last_timestamp = timestamp
        producer.coordinator_epoch = coordinator
        producer.transaction_start = transaction if transaction >= 0 else NO_TRANSACTION
        if sequence >= 0:
            first = sequence if is_named(id) else (sequence - delta) & 0x7FFFFFFF
            producer.batches = ((first, sequence, offset - delta, offset, timestamp),)
        producers.append(producer)
    return producers


def encode_ours(states: ProducerStates, home: SnapshotHome, aborted: Sequence[int] = ()) -> bytes:
    """A `.producers` file. aborted: base offsets of the segments that have a `.txnindex`, so that a lost one shows."""
    body = bytearray()
    count = 0
    for producer in states.active():
        count += 1
        body += _OUR_ENTRY.pack(
            producer.id,
            producer.epoch,
            producer.coordinator_epoch,
            producer.last_timestamp,
            producer.transaction_start,
            len(producer.batches),
        )
        for batch in producer.batches:
            body += _OUR_BATCH.pack(*batch)
    body += _COUNT.pack(len(aborted)) + b"".join(map(_BASE.pack, aborted)) + _HOME.pack(*home)
    if states.stream is not None:
        body += _encode_stream(states.stream)
    head = (_OUR_MAGIC if states.stream is None else _STREAM_MAGIC) + _COUNT.pack(count)
    return head + bytes(body) + crc32c(head + body).to_bytes(4, "big")


def decode_ours(data: bytes, home: SnapshotHome | None = None) -> list[Producer] | None:
    """The producers in a `.producers` file; None when it is damaged, or another one than `home`."""
    found = _decode_ours(data, home)
    return None if found is None else found[0]


def decode_aborted(data: bytes, home: SnapshotHome) -> list[int] | None:
    """Base offsets of the segments that had a `.txnindex` when this file was written; None as `decode_ours`."""
    found = _decode_ours(data, home)
    return None if found is None else found[1]


def decode_stream(data: bytes) -> StreamState | None:
    """The state of the stream in a sound `.producers` file; None where there is none."""
    if data[:4] != _STREAM_MAGIC:
        return None
    (size,) = _SIZE.unpack_from(data, len(data) - 4 - _SIZE.size)
    part = data[len(data) - 4 - _SIZE.size - size :]
    closed_at, producer_id, epoch, offset, length = _STREAM.unpack_from(part)
    writer = None
    if producer_id >= 0:
        name = part[_STREAM.size : _STREAM.size + length].decode()
        writer = ExclusiveWriter(producer_id, epoch, name, offset)
    return StreamState(None if closed_at < 0 else closed_at, writer)


def _encode_stream(stream: StreamState) -> bytes:
    """With its size behind it."""
    writer = ExclusiveWriter(-1, -1, "", -1) if stream.writer is None else stream.writer
    name = writer.name.encode()
    closed_at = -1 if stream.closed_at is None else stream.closed_at
    part = _STREAM.pack(closed_at, writer.producer_id, writer.epoch, writer.offset, len(name)) + name
    return part + _SIZE.pack(len(part))


def _decode_ours(data: bytes, home: SnapshotHome | None) -> tuple[list[Producer], list[int]] | None:
    if len(data) < 12 or crc32c(data[:-4]).to_bytes(4, "big") != data[-4:]:
        return None
    magic = data[:4]
    if magic not in (_OUR_MAGIC, _OLD_MAGIC, _STREAM_MAGIC):
        return None
    stop = len(data) - 4
    if magic == _STREAM_MAGIC:
        stop -= _SIZE.size
        stop -= _SIZE.unpack_from(data, stop)[0]
    end = stop - (0 if magic == _OLD_MAGIC else _HOME.size)
    (count,) = _COUNT.unpack_from(data, 4)
    position = 8
    producers = []
    try:
        for _ in range(count):
            id, epoch, coordinator, timestamp, transaction, batches = _OUR_ENTRY.unpack_from(data, position)
            position += _OUR_ENTRY.size
            producer = Producer(id)
            producer.epoch = epoch
            producer.coordinator_epoch = coordinator
            producer.last_timestamp = timestamp
            producer.transaction_start = transaction
            stored = []
            for _ in range(batches):
                stored.append(_OUR_BATCH.unpack_from(data, position))
                position += _OUR_BATCH.size
            producer.batches = tuple(stored)
            producers.append(producer)
        (segments,) = _COUNT.unpack_from(data, position)
        position += _COUNT.size
    except struct.error:
        return None
    if position + segments * _BASE.size != end:
        return None
    if home is not None and end < stop and _HOME.unpack_from(data, end) != home:
        return None
    return producers, [base for (base,) in _BASE.iter_unpack(data[position:end])]
