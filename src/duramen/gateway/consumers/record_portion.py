"""What one read of a consumer is answered with: committed records of what was fetched, in its format. Pure."""

from __future__ import annotations

import base64
from collections.abc import Generator, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from duramen.client.protocol.fetch import FetchedBytes
from duramen.gateway.confluent.v2_media_types import Embedded
from duramen.gateway.consumers.consumer_bodies import ConsumedRecord
from duramen.gateway.edge.json_fault import json_fault
from duramen.gateway.streams.stream_page import INFLATED_MAX, STEP_RECORDS
from duramen.model import TopicPartition
from duramen.wire.aborted import AbortedTransactions
from duramen.wire.batch import Record, batches, records

RECORDS_MAX: Final = 5_000
"""Of one answer: what a record is beside its key and value counts for nothing else."""

_ANY: Final = msgspec.json.Decoder(msgspec.Raw)
_NULL: Final = msgspec.Raw(b"null")


class UnfitRecord(NamedTuple):
    """A record that the format cannot show, and why."""

    partition: TopicPartition
    offset: int
    why: str


class RecordPortion(NamedTuple):
    """Records, their bytes of keys and values, and the position after them in each partition that it moves in.

    unfit: the record in front of which it ends, where nothing comes before that one.
    """

    records: list[ConsumedRecord]
    size: int
    moved: Mapping[TopicPartition, int]
    unfit: UnfitRecord | None = None


def portion_steps(
    fetched: Mapping[TopicPartition, FetchedBytes], embedded: Embedded, max_bytes: int
) -> Generator[None, None, RecordPortion]:
    """Take records, partition by partition, until the next one would make more than max_bytes; one is always taken.

    In front of a record that the format cannot show a partition ends. It yields where others may have their turn.
    """
    found: list[ConsumedRecord] = []
    moved: dict[TopicPartition, int] = {}
    size = looked_at = 0
    for tp, answer in fetched.items():
        position = answer.offset
        for record in _committed(answer):
            looked_at += 1
            if not looked_at % STEP_RECORDS:
                yield
            more = len(record.key or b"") + len(record.value or b"")
            if found and (size + more > max_bytes or len(found) >= RECORDS_MAX):
                return RecordPortion(found, size, moved)
            try:
                key, value = _shown(record.key, embedded), _shown(record.value, embedded)
            except ValueError as error:
                if not found:
                    return RecordPortion(found, size, moved, UnfitRecord(tp, record.offset, str(error)))
                break
            found.append(ConsumedRecord(tp.topic, key, value, tp.partition, record.offset))
            size += more
            position = moved[tp] = record.offset + 1
        else:
            if answer.next_offset > position:  # markers, records of aborted transactions, and what was compacted
                moved[tp] = answer.next_offset
    return RecordPortion(found, size, moved)


def portion_of(fetched: Mapping[TopicPartition, FetchedBytes], embedded: Embedded, max_bytes: int) -> RecordPortion:
    """The same, at once."""
    steps = portion_steps(fetched, embedded, max_bytes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            portion: RecordPortion = end.value
            return portion


def _committed(fetched: FetchedBytes) -> Iterator[Record]:
    """The committed records at and after the offset that was asked for."""
    aborted = AbortedTransactions(fetched.aborted)
    for start, header in batches(fetched.data):
        batch = fetched.data[start : start + header.size]
        if not aborted.hides(header, batch) and not header.is_control:
            for record in records(batch, header, max_bytes=INFLATED_MAX):
                if record.offset >= fetched.offset:
                    yield record


def _shown(content: bytes | None, embedded: Embedded) -> msgspec.Raw:
    """A key or value in the format. ValueError for what is not JSON."""
    if content is None:
        return _NULL
    if embedded == "binary":
        return msgspec.Raw(b'"%b"' % base64.b64encode(content))
    try:
        content.decode()
        return msgspec.Raw(bytes(_ANY.decode(content)))
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 at byte {error.start}") from None
    except msgspec.MsgspecError as error:
        raise ValueError(json_fault(error, content, _ANY.type).why) from None
    except RecursionError:
        raise ValueError("it nests too deeply") from None
