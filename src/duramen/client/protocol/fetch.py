"""Fetch requests for raw batches, and what came back: whole batches as one view, and where the log stands."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from duramen.client.protocol.metadata import error_code
from duramen.errors import CorruptLogError, ErrorCode, KafkaError, TopicReplacedError
from duramen.model import NO_TOPIC_ID, TopicId, TopicPartition
from duramen.wire.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC
from duramen.wire.messages import API

FETCH: Final = 1
LAST_BY_NAME: Final = 12
"""Last version that names topics; later ones go by topic id (KIP-516)."""
DEFAULT_MAX_BYTES: Final = 32 << 20

_PLACE = struct.Struct(">qiib")
_DELTA = struct.Struct(">i")
_T = TypeVar("_T")


class FetchedBytes(NamedTuple):
    """Whole record batches of one partition, and where its log stood.

    offset: what was asked for; `data` begins with the batch that holds it, so its first records may lie before.
    next_offset: after the last batch of `data`; `offset` when there is none. Offsets may be missing in between
    (markers, compaction). aborted: (producer id, first offset) of rolled-back transactions in `data`, for readers of
    what is committed; empty otherwise.
    """

    tp: TopicPartition
    offset: int
    data: memoryview
    next_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]]


class FetchOptions(NamedTuple):
    """How much to wait for, and how much to take.

    max_bytes: of all partitions together; the first batch comes whatever its size (KIP-74).
    """

    max_bytes: int
    partition_max_bytes: int
    isolation: int
    max_wait_ms: int
    min_bytes: int


class FetchWish(NamedTuple):
    """What is fetched: offsets by partition, how much, and the ids that the topics have to have."""

    offsets: Mapping[TopicPartition, int]
    options: FetchOptions
    topic_ids: Mapping[str, TopicId]

    def request(self, tps: Iterable[TopicPartition], found: Mapping[str, TopicId]) -> tuple[Any, int | None]:
        """As `request`, for a leader's share; found: the topics' ids. TopicReplacedError for another one."""
        check_topics(found, self.topic_ids)
        return request([(tp, self.offsets[tp]) for tp in tps], found, self.options)

    def parsed(
        self, response: Any, tps: Iterable[TopicPartition], found: Mapping[str, TopicId]
    ) -> dict[TopicPartition, FetchedBytes | KafkaError]:
        """As `parsed`, of the same share."""
        return parsed(response, {tp: self.offsets[tp] for tp in tps}, found)


def request(
    wanted: Iterable[tuple[TopicPartition, int]], topic_ids: Mapping[str, TopicId], options: FetchOptions
) -> tuple[Any, int | None]:
    """A Fetch outside of any session for (partition, offset), and the highest version it can be sent in."""
    message = API[FETCH].request
    topics: dict[str, Any] = {}
    highest = None
    for tp, offset in wanted:
        topic = topics.get(tp.topic)
        if topic is None:
            topic_id = topic_ids.get(tp.topic, NO_TOPIC_ID)
            if topic_id == NO_TOPIC_ID:
                highest = LAST_BY_NAME
            topic = topics[tp.topic] = message.FetchTopic(topic=tp.topic, topic_id=topic_id)
        topic.partitions.append(
            message.FetchPartition(
                partition=tp.partition, fetch_offset=offset, partition_max_bytes=options.partition_max_bytes
            )
        )
    fetch = message.new(
        max_wait_ms=options.max_wait_ms,
        min_bytes=options.min_bytes,
        max_bytes=options.max_bytes,
        isolation_level=options.isolation,
        topics=list(topics.values()),
    )
    return fetch, highest


def parsed(
    response: Any, wanted: Mapping[TopicPartition, int], topic_ids: Mapping[str, TopicId]
) -> dict[TopicPartition, FetchedBytes | KafkaError]:
    """What the response says of each partition; those it leaves out are missing."""
    if response.error_code:
        raise KafkaError(error_code(response.error_code), "fetch")
    names = {topic_id: name for name, topic_id in topic_ids.items()}
    found: dict[TopicPartition, FetchedBytes | KafkaError] = {}
    for topic in response.responses:
        name = topic.topic or names.get(bytes(topic.topic_id))
        for data in topic.partitions:
            tp = TopicPartition(name or "", data.partition_index)
            if tp not in wanted:
                continue
            code = error_code(data.error_code)
            if code:
                found[tp] = KafkaError(code, f"{tp} at offset {wanted[tp]}: {code.name}")
            else:
                found[tp] = _fetched(tp, wanted[tp], data)
    return found


def _fetched(tp: TopicPartition, offset: int, data: Any) -> FetchedBytes:
    records = memoryview(b"" if data.records is None else data.records)
    length, next_offset = whole_batches(records, str(tp))
    return FetchedBytes(
        tp,
        offset,
        records[:length],
        max(offset, next_offset),
        data.high_watermark,
        data.last_stable_offset,
        data.log_start_offset,
        [(each.producer_id, each.first_offset) for each in data.aborted_transactions or ()],
    )


def whole_batches(records: memoryview, what: str, limit: int = 1 << 62) -> tuple[int, int]:
    """(bytes of the whole batches in front, offset after the last of them); a partial batch at the end is left out.

    limit: batches that begin at this position or later are left out, too. (0, -1) without one. CorruptLogError when
    something in between is no batch.
    """
    position = 0
    next_offset = -1
    end = len(records)
    while position + _PLACE.size <= end and position < limit:
        base, length, _, magic = _PLACE.unpack_from(records, position)
        size = length + LOG_OVERHEAD
        if magic != MAGIC or size < HEADER_SIZE or base < next_offset:
            raise CorruptLogError(what, position, end, "no record batch of magic 2", max(next_offset, 0))
        if position + size > end:
            break
        (delta,) = _DELTA.unpack_from(records, position + 23)
        position += size
        next_offset = base + delta + 1
    return position, next_offset


def check_topics(found: Mapping[str, TopicId], wanted: Mapping[str, TopicId]) -> None:
    """TopicReplacedError unless the topics are those that are meant, as far as the cluster tells ids."""
    for name, topic_id in wanted.items():
        if found.get(name, NO_TOPIC_ID) not in (NO_TOPIC_ID, topic_id):
            raise TopicReplacedError(f"topic {name} was deleted and made anew")


def missing(tp: TopicPartition) -> KafkaError:
    """The error for a partition that a response does not speak of."""
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"{tp}: the node's answer leaves it out")


def granted(answer: _T | KafkaError) -> _T:
    """A partition's answer; its refusal is raised."""
    if isinstance(answer, KafkaError):
        raise answer
    return answer
