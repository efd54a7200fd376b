"""A group's commits, read and written by one of its members: librdkafka's consumer."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from duramen.client import GROUP, Cluster, CoordinatorKey
from duramen.client.protocol import metadata
from duramen.client.protocol.group_descriptions import OFFSET_FETCH
from duramen.client.protocol.group_offsets import OffsetsExchange
from duramen.errors import DuramenError, ErrorCode
from duramen.errors import KafkaError as KafkaRefusal
from duramen.librdkafka import LibraryConsumer
from duramen.model import TopicPartition as Partition
from duramen.swaps.cut_overs import Committed, CutOver, Where, topics_of
from duramen.swaps.swap_log import existing

ANSWER_SECONDS: Final = 15.0


class PendingCommitsError(DuramenError):
    """A transaction that is open has offsets of the group, so what it has committed is not known."""

    code = ErrorCode.UNSTABLE_OFFSET_COMMIT

    def __init__(self, group: str) -> None:
        super().__init__(
            f"the offsets of group {group} are pending in an open transaction; "
            "`duramen transaction list --state Ongoing` shows it"
        )


def read_commits(
    consumer: LibraryConsumer, cluster: Cluster, group: str, topic: str, cuts: Sequence[CutOver], seconds: float
) -> dict[Where, Committed]:
    """What the group has committed in the topics of a chain.

    PendingCommitsError, KafkaException or KafkaError where that is not known after so many seconds.
    """
    there = existing(cluster, topics_of(topic, cuts))
    places = {(name, partition) for name, found in there.items() for partition in found.partitions}
    places |= {(cut.old, partition) for cut in cuts for partition in cut.until}
    places |= {(cut.new, partition) for cut in cuts for partition in cut.start}
    asked = [TopicPartition(*place) for place in sorted(places)]
    try:
        answers = consumer.committed(asked, timeout=seconds) if asked else []
    except KafkaException as error:  # librdkafka asks again for as long as some are pending, and does not say so
        if error.args[0].code() == KafkaError._TIMED_OUT and pending_of(cluster, group, places):
            raise PendingCommitsError(group) from None
        raise
    _refuse(answers)
    return {
        (answer.topic, answer.partition): Committed.told_by(answer.offset, answer.metadata)
        for answer in answers
        if answer.offset >= 0
    }


def pending_of(cluster: Cluster, group: str, places: Iterable[Where]) -> frozenset[Where]:
    """Those of the partitions whose offset an open transaction may change; errors as of `Cluster.call`."""
    wanted = [Partition(*place) for place in places]
    if not wanted:
        return frozenset()
    exchange = OffsetsExchange(group)
    request = exchange.fetch(wanted)
    answer = cluster.call(CoordinatorKey(group, GROUP), OFFSET_FETCH, request, highest=exchange.highest(wanted))
    told = metadata.only(answer.groups, f"offsets of group {group}")
    if told.error_code:
        code = metadata.error_code(told.error_code)
        raise KafkaRefusal(code, f"offsets of group {group}: {code.name}")
    return frozenset(
        (topic.name, partition.partition_index)
        for topic in told.topics
        for partition in topic.partitions
        if partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
    )


def write_commits(
    consumer: LibraryConsumer,
    offsets: Mapping[Where, Committed],
    needed: Collection[Where],
    seconds: float = math.inf,
) -> None:
    """Commit these; durable on return. KafkaException, but for partitions that are gone and not needed.

    seconds: to wait for an answer; behind it the commit may be made all the same.
    """
    if not offsets:
        return
    asked = [TopicPartition(*where, told.offset, told.metadata) for where, told in offsets.items()]
    try:
        answers = consumer.commit_within(asked, seconds)
    except KafkaException as error:
        # librdkafka does not say which partition it was.
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or offsets.keys() <= set(needed):
            raise
        write_commits(consumer, {where: told for where, told in offsets.items() if where in needed}, needed, seconds)
    else:
        _refuse(answers)


def _refuse(answers: Iterable[TopicPartition]) -> None:
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
