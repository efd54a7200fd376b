"""DescribeSegments and ExtendSegmentLease (keys 10010, 10011, ours): segments and byte positions of logs. Version 0.

A plan is made of what the log knows in memory; only the batch boundaries that a caller asks for are looked up in files,
off the loop. The reply is bounded: a partition that did not fit says where to go on.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode, KafkaError, StorageError
from duramen.model import topic_id_from_text
from duramen.partition.replica.partition import READ_COMMITTED, Partition
from duramen.server.net.steps import STEP, Steps
from duramen.storage import Lease, Outline
from duramen.wire.messages.describe_segments import DescribeSegmentsResponse
from duramen.wire.messages.extend_segment_lease import ExtendSegmentLeaseResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

MOST_ENTRIES = 50_000
"""Segments and batch boundaries in one reply; each is less than 64 bytes."""

_Partition = DescribeSegmentsResponse.PartitionSegments
_Segment = DescribeSegmentsResponse.SegmentDescription
_Entry = DescribeSegmentsResponse.IndexEntry


def handle(request: Request) -> None:
    """Outline every partition, under one lease over all of them if the caller wants one."""
    plan = _Plan(request, max(1, min(request.body.max_entries, MOST_ENTRIES)))
    request.in_steps(_outlined(request, plan), partial(_look_up, request, plan))


def _outlined(request: Request, plan: _Plan) -> Steps:
    """What the reply says of the topics, but for what is still to be looked up."""
    topics = []
    done = 0
    try:
        for topic in request.body.topics:
            known = request.services.image.topic(topic.name)
            topic_id = bytes(16) if known is None else known.id
            entries: list[Any] = []
            topics.append(
                DescribeSegmentsResponse.TopicSegments(name=topic.name, topic_id=topic_id, partitions=entries)
            )
            for wanted in topic.partitions:
                entries.append(plan.take(topic.name, wanted))
                done += 1
                if done % STEP == 0:
                    yield
            done += 1
            if done % STEP == 0:
                yield
    except BaseException:  # the connection has ended, too
        plan.end_leases()
        raise
    return topics


def _look_up(request: Request, plan: _Plan, topics: list[Any]) -> None:
    lease_id, lease_ms = request.services.segments.grant(plan.leases, request.body.lease_ms)
    response = DescribeSegmentsResponse.new(
        lease_id=lease_id, lease_ms=lease_ms, directories=plan.directories(), topics=topics
    )
    if any(outline.needs_files for _, outline, _ in plan.outlines):
        request.services.world.executor.submit("lookups", plan.run, lambda failures, _: plan.finish(response, failures))
    else:
        plan.finish(response, plan.run())


class _Plan:
    """One request until it is answered."""

    def __init__(self, request: Request, room: int) -> None:
        self.request = request
        self.outlines: list[tuple[Any, Outline, Partition]] = []
        self.leases: list[Lease] = []
        """Over the sealed segments that the reply names, if the caller wants some; each from when it was looked at."""
        self._room = room
        self._ids = {
            directory.path: topic_id_from_text(directory.directory_id)
            for directory in request.services.store.directories
        }

    def take(self, name: str, wanted: Any) -> Any:
        """The entry of one partition; what it consists of is filled in by `finish`."""
        entry = _Partition(partition_index=wanted.partition_index)
        try:
            partition = self._led(name, wanted)
        except KafkaError as error:
            entry.error_code, entry.error_message = int(error.code), error.message
            return entry
        entry.leader_epoch = partition.leader_epoch
        entry.log_start_offset = partition.log_start_offset
        entry.high_watermark = partition.high_watermark
        entry.last_stable_offset = partition.last_stable_offset
        entry.directory_id = self._ids.get(posixpath.dirname(partition.log.path), bytes(16))
        start = max(wanted.start_offset, partition.log_start_offset)
        end = partition.bound(self.request.body.isolation_level)
        end = end if wanted.end_offset < 0 else min(end, wanted.end_offset)
        if start >= end:
            return entry
        if self._room <= 0:
            entry.next_offset = start
            return entry
        try:
            sealed_below = self._sealed_below(partition, start, end)
        except (OSError, StorageError) as error:
            entry.error_code, entry.error_message = int(ErrorCode.KAFKA_STORAGE_ERROR), str(error)
            return entry
        outline = Outline(partition.log, start, end, sealed_below, self.request.body.target_bytes, self._room)
        self._room -= outline.entries
        self.outlines.append((entry, outline, partition))
        if self.request.body.lease_ms > 0 and any(segment.is_sealed for segment in outline.segments):
            segments = self.request.services.segments
            self.leases.append(segments.lease(partition.log, outline.segments[0].base_offset))
        return entry

    def _sealed_below(self, partition: Partition, start: int, end: int) -> int:
        """Where segments that may be read without the broker end: they do not tell which transactions were aborted."""
        if self.request.body.isolation_level == READ_COMMITTED and partition.log.aborted(start, end):
            return start
        return partition.last_stable_offset

    def _led(self, name: str, wanted: Any) -> Partition:
        request = self.request
        if name in request.denied:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = request.services.partitions.at(name, wanted.partition_index, wanted.current_leader_epoch)
        if not partition.replication.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition

    def end_leases(self) -> None:
        """Nobody will be told of them."""
        for lease in self.leases:
            lease.release()

    def directories(self) -> list[Any]:
        """The log directories, as other processes of this machine find them."""
        working = self.request.services.segments.working_directory
        return [
            DescribeSegmentsResponse.SegmentDirectory(directory_id=each, path=posixpath.join(working, path))
            for path, each in self._ids.items()
        ]

    def run(self) -> list[BaseException | None]:
        """Off the loop: look up the boundaries; a partition whose disk fails, fails alone."""
        return [_failure(outline) for _, outline, _ in self.outlines]

    def finish(self, response: Any, failures: list[BaseException | None]) -> None:
        """Answer, with what the outlines say by now."""
        for (entry, outline, _), failure in zip(self.outlines, failures, strict=True):
            if failure is not None:
                entry.error_code, entry.error_message = int(ErrorCode.KAFKA_STORAGE_ERROR), str(failure)
                continue
            entry.next_offset = outline.next_offset
            entry.segments = list(_described(outline))
        self.request.reply(response)


def _failure(outline: Outline) -> BaseException | None:
    try:
        outline.run()
    except (OSError, DuramenError) as error:
        return error
    return None


def _described(outline: Outline) -> Iterator[Any]:
    for segment in outline.segments:
        yield _Segment(
            base_offset=segment.base_offset,
            end_offset=segment.end_offset,
            size_bytes=segment.size,
            first_timestamp=segment.first_timestamp,
            max_timestamp=segment.max_timestamp,
            is_sealed=segment.is_sealed,
            index=[_Entry(offset=offset, position=position) for offset, position in segment.boundaries],
        )


def handle_lease(request: Request) -> None:
    """Extend leases, or end them (`lease_ms` 0). Whoever knows a lease's id, 63 random bits, may do so."""
    request.reply_in_steps(_extended(request))


def _extended(request: Request) -> Steps:
    body = request.body
    answers = []
    for number, lease_id in enumerate(body.lease_ids, 1):
        if number % STEP == 0:
            yield
        granted = request.services.segments.extend(lease_id, body.lease_ms)
        code = ErrorCode.RESOURCE_NOT_FOUND if granted is None else ErrorCode.NONE
        answers.append(
            ExtendSegmentLeaseResponse.ExtendedLease(lease_id=lease_id, error_code=int(code), lease_ms=granted or 0)
        )
    return ExtendSegmentLeaseResponse.new(leases=answers)
