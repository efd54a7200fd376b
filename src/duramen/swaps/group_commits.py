"""A group's commits, read and written by one of its members: librdkafka's consumer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from duramen.client import Cluster
from duramen.swaps.cut_overs import Committed, CutOver, Where, topics_of
from duramen.swaps.swap_log import existing

ANSWER_SECONDS_MAX: Final = 15.0


def read_commits(consumer: Consumer, cluster: Cluster, topic: str, cuts: Sequence[CutOver]) -> dict[Where, Committed]:
    """What the group has committed in the topics of a chain; KafkaException or KafkaError where that is not known."""
    there = existing(cluster, topics_of(topic, cuts))
    places = {(name, partition) for name, found in there.items() for partition in found.partitions}
    places |= {(cut.old, partition) for cut in cuts for partition in cut.until}
    places |= {(cut.new, partition) for cut in cuts for partition in cut.start}
    asked = [TopicPartition(*place) for place in sorted(places)]
    answers = consumer.committed(asked, timeout=ANSWER_SECONDS_MAX) if asked else []
    _refuse(answers)
    return {
        (answer.topic, answer.partition): Committed.told_by(answer.offset, answer.metadata)
        for answer in answers
        if answer.offset >= 0
    }


def write_commits(consumer: Consumer, offsets: Mapping[Where, Committed], needed: Collection[Where]) -> None:
    """Commit these; durable on return. KafkaException, but for partitions that are gone and not needed."""
    if not offsets:
        return
    asked = [TopicPartition(*where, told.offset, told.metadata) for where, told in offsets.items()]
    try:
        answers: Any = consumer.commit(offsets=asked, asynchronous=False)
    except KafkaException as error:
        # librdkafka does not say which partition it was.
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or offsets.keys() <= set(needed):
            raise
        write_commits(consumer, {where: told for where, told in offsets.items() if where in needed}, needed)
    else:
        _refuse(answers)


def _refuse(answers: Iterable[TopicPartition]) -> None:
    for answer in answers:
        if answer.error is not None:
            raise KafkaException(answer.error)
