"""DescribeProducers: the idempotent producers a partition remembers (KIP-664). Version 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode
from duramen.machines.metadata.topics import name_problem
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.describe_producers import DescribeProducersResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Last sequence, timestamp and open transaction of each producer, per partition."""
    request.reply_in_steps(_response(request))


def _response(request: Request) -> Steps:
    topics = []
    done = 0
    told: dict[str, set[int]] = {}
    for topic in request.body.topics:
        # Once each: the request may repeat a partition for four bytes, the reply for thousands.
        before = told.setdefault(topic.name, set())
        indexes = [index for index in dict.fromkeys(topic.partition_indexes) if index not in before]
        before.update(indexes)
        partitions = []
        for index in indexes:
            partitions.append((yield from _partition(request, topic.name, index)))
            done += 1
            if done >= STEP:
                done = 0
                yield
        done += 1
        if done >= STEP:
            done = 0
            yield
        topics.append(DescribeProducersResponse.TopicResponse(name=topic.name, partitions=partitions))
    return DescribeProducersResponse.new(topics=topics)


def _partition(request: Request, name: str, index: int) -> Steps:
    entry = DescribeProducersResponse.PartitionResponse(partition_index=index, active_producers=[])
    partition = request.services.partitions.find(name, index)
    if name_problem(name) is not None:
        entry.error_code = int(ErrorCode.INVALID_TOPIC_EXCEPTION)
    elif name in request.denied:
        entry.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    elif partition is None:
        entry.error_code = int(request.services.partitions.absence(name, index))
    elif not partition.replication.is_leader:
        entry.error_code = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    elif not partition.log.is_whole:  # behind a truncation they are read again
        entry.error_code = int(ErrorCode.KAFKA_STORAGE_ERROR)
    else:
        stream = partition.log.producers.stream
        if stream is not None and stream.writer is not None and stream.writer.producer_id >= 0:
            entry.writer_name, entry.writer_offset = stream.writer.name, stream.writer.offset
        for producer in partition.log.producers.active():
            entry.active_producers.append(
                DescribeProducersResponse.ProducerState(
                    producer_id=producer.id,
                    producer_epoch=producer.epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_txn_start_offset=producer.transaction_start,
                )
            )
            if len(entry.active_producers) % STEP == 0:
                yield
    return entry
