"""ListOffsets: offsets by time, and the special ones. Versions 1-11.

-1 latest · -2 earliest · v7 -3 greatest timestamp (KIP-734) · v8 -4 earliest local (KIP-405) · v9 -5 last tiered
(KIP-1005) · v11 -6 earliest pending upload (KIP-1023). Nothing is tiered here, so -5 and -6 find nothing. Behind a
change of leader what an earlier one acknowledged may be above the high watermark for a moment: -1, -3 and times that
find nothing are OFFSET_NOT_AVAILABLE then.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from duramen.errors import CorruptLogError, DuramenError, ErrorCode, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.partition.replica.offset_lookup import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    OffsetAnswer,
    check_end_known,
    is_lookup,
    list_offset,
    lookup,
)
from duramen.server.net.steps import STEP, Steps
from duramen.storage import TimeLookup, Timestamped
from duramen.wire.messages.list_offsets import ListOffsetsResponse

if TYPE_CHECKING:
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.request import Request

LOOKUPS_AT_ONCE = 16
"""Of one request: each has some files open until it has run."""

OFFSET_NOT_AVAILABLE_VERSION = 5
"""From here on clients know that error (KIP-207); earlier ones are told another one at which they ask again."""

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
    request.in_steps(_entries(request), _Lookups.go_on)


def _entries(request: Request) -> Steps:
    """What needs no look-up, and the look-ups that are to be made for the rest."""
    seen: dict[tuple[str, int], int] = {}
    done = 0
    for topic in request.body.topics:
        done += 1
        if done % STEP == 0:
            yield
        for wanted in topic.partitions:
            key = (topic.name, wanted.partition_index)
            seen[key] = seen.get(key, 0) + 1
            done += 1
            if done % STEP == 0:
                yield
    topics = []
    lookups: deque[_Wanted] = deque()
    for topic in request.body.topics:
        entries = []
        done += 1
        if done % STEP == 0:
            yield
        for wanted in topic.partitions:
            done += 1
            if done % STEP == 0:
                yield
            entry = _PartitionResponse(partition_index=wanted.partition_index)
            entries.append(entry)
            try:
                if seen[(topic.name, wanted.partition_index)] > 1:
                    raise KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named twice")
                partition = _partition(request, topic.name, wanted)
                if is_lookup(wanted.timestamp):
                    if wanted.timestamp == MAX_TIMESTAMP:
                        check_end_known(partition)
                    lookups.append(_Wanted(topic.name, wanted, entry, -1))
                else:
                    _fill(request, entry, list_offset(partition, wanted.timestamp, request.body.isolation_level))
            except (KafkaError, OSError, StorageError) as error:
                _refuse(request, entry, error)
        topics.append(ListOffsetsResponse.ListOffsetsTopicResponse(name=topic.name, partitions=entries))
    return _Lookups(request, ListOffsetsResponse.new(topics=topics), lookups)


class _Wanted(NamedTuple):
    """A look-up that is to be made. start: see `lookup`."""

    topic: str
    asked: Any
    entry: Any
    start: int


class _Lookups:
    """The look-ups of one request: not all at a time, for each has files open."""

    def __init__(self, request: Request, response: Any, waiting: deque[_Wanted]) -> None:
        self._request = request
        self._response = response
        self._waiting = waiting

    def go_on(self) -> None:
        """Begin the next ones, or reply."""
        request = self._request
        begun: list[tuple[_Wanted, TimeLookup]] = []
        while self._waiting and len(begun) < LOOKUPS_AT_ONCE:
            wanted = self._waiting.popleft()
            try:
                partition = _partition(request, wanted.topic, wanted.asked)
                job = lookup(partition, wanted.asked.timestamp, request.body.isolation_level, wanted.start)
                begun.append((wanted, job))
            except (KafkaError, OSError, StorageError) as error:
                self._failed(wanted, error)
        if not begun:
            request.reply(self._response)
            return
        jobs = [job for _, job in begun]
        request.services.world.executor.submit(
            "lookups", lambda: [_run(job) for job in jobs], partial(self._done, begun)
        )

    def _done(
        self,
        begun: list[tuple[_Wanted, TimeLookup]],
        results: list[Timestamped | Exception | None] | None,
        error: BaseException | None,
    ) -> None:
        for number, (wanted, job) in enumerate(begun):
            result = error if results is None else results[number]
            if isinstance(result, BaseException):
                self._failed(wanted, result)
            elif result is not None:
                _fill(self._request, wanted.entry, OffsetAnswer(*result))
            elif job.rest >= 0:
                self._waiting.append(wanted._replace(start=job.rest))
            else:
                self._found_none(wanted)
        begun.clear()
        self.go_on()

    def _found_none(self, wanted: _Wanted) -> None:
        """No record below the high watermark is so young; one that is committed may be, where that is behind."""
        try:
            check_end_known(_partition(self._request, wanted.topic, wanted.asked))
        except KafkaError as error:
            self._failed(wanted, error)

    def _failed(self, wanted: _Wanted, error: BaseException) -> None:
        if isinstance(error, CorruptLogError):
            place = TopicPartition(wanted.topic, wanted.asked.partition_index)
            self._request.services.store.found_damage(place, error)
        _refuse(self._request, wanted.entry, error)


def _run(job: TimeLookup) -> Timestamped | Exception | None:
    try:
        return job.run()
    except (KafkaError, OSError, StorageError) as error:
        return error


def _refuse(request: Request, entry: Any, error: BaseException) -> None:
    code = error.code if isinstance(error, DuramenError) else ErrorCode.KAFKA_STORAGE_ERROR
    if code is ErrorCode.OFFSET_NOT_AVAILABLE and request.version < OFFSET_NOT_AVAILABLE_VERSION:
        code = ErrorCode.LEADER_NOT_AVAILABLE
    entry.error_code = int(code)


def _fill(request: Request, entry: Any, found: OffsetAnswer) -> None:
    entry.offset = found.offset
    entry.timestamp = found.timestamp
    if request.version >= 4:
        entry.leader_epoch = found.leader_epoch


def _partition(request: Request, name: str, wanted: Any) -> Partition:
    """Where to look; KafkaError when it is not to be looked at, or not for this."""
    if name in request.denied:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    if wanted.timestamp < 0 and request.version < FIRST_VERSION.get(wanted.timestamp, 1 << 15):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    return request.services.partitions.at(name, wanted.partition_index, wanted.current_leader_epoch)
