"""ListOffsets: offsets by time, and the special ones. Versions 1-11.

-1 latest · -2 earliest · v7 -3 greatest timestamp (KIP-734) · v8 -4 earliest local (KIP-405) · v9 -5 last tiered
(KIP-1005) · v11 -6 earliest pending upload (KIP-1023). Nothing is tiered here, so -5 and -6 find nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode, KafkaError, StorageError
from duramen.partition.positions import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Found,
    is_lookup,
    list_offset,
    lookup,
)
from duramen.storage.times import TimeLookup, Timestamped
from duramen.wire.messages.list_offsets import ListOffsetsResponse

if TYPE_CHECKING:
    from duramen.server.request import Request

FIRST_VERSION = {
    LATEST: 0,
    EARLIEST: 0,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
_PartitionResponse = ListOffsetsResponse.ListOffsetsPartitionResponse


def handle(request: Request) -> None:
    """Look up every partition; each fails alone."""
    seen: dict[tuple[str, int], int] = {}
    for topic in request.body.topics:
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            seen[key] = seen.get(key, 0) + 1
    topics = []
    lookups: list[tuple[Any, TimeLookup]] = []
    for topic in request.body.topics:
        entries = []
        for wanted in topic.partitions:
            entry = _PartitionResponse(partition_index=wanted.partition_index)
            try:
                if seen[(topic.name, wanted.partition_index)] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
                found = _look_up(request, topic.name, wanted)
                if isinstance(found, Found):
                    _fill(request, entry, found)
                else:
                    lookups.append((entry, found))
            except (KafkaError, OSError, StorageError) as error:
                _refuse(entry, error)
            entries.append(entry)
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=entries))
    response = ListOffsetsResponse.new(topics=topics)
    if not lookups:
        request.reply(response)
        return

    def looked_up(results: list[Timestamped | Exception | None] | None, error: BaseException | None) -> None:
        for number, (entry, _) in enumerate(lookups):
            result = error if results is None else results[number]
            if isinstance(result, BaseException):
                _refuse(entry, result)
            elif result is not None:
                _fill(request, entry, Found(*result))
        request.reply(response)

    jobs = [job for _, job in lookups]
    request.broker.world.executor.submit("lookups", lambda: [_run(job) for job in jobs], looked_up)


def _run(job: TimeLookup) -> Timestamped | Exception | None:
    try:
        return job.run()
    except (KafkaError, OSError, StorageError) as error:
        return error


def _refuse(entry: Any, error: BaseException) -> None:
    entry.error_code = int(error.code if isinstance(error, DuramenError) else ErrorCode.KAFKA_STORAGE_ERROR)


def _fill(request: Request, entry: Any, found: Found) -> None:
    entry.offset = found.offset
    entry.timestamp = found.timestamp
    if request.version >= 4:
        entry.leader_epoch = found.leader_epoch


def _look_up(request: Request, name: str, wanted: Any) -> Found | TimeLookup:
    """The position, or the job that finds it; KafkaError when there is none to be found."""
    if name in request.denied:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if wanted.timestamp < 0 and request.version < FIRST_VERSION.get(wanted.timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    partition = request.broker.partition_at(name, wanted.partition_index, wanted.current_leader_epoch)
    if is_lookup(wanted.timestamp):
        return lookup(partition, wanted.timestamp, request.body.isolation_level)
    return list_offset(partition, wanted.timestamp, request.body.isolation_level)
