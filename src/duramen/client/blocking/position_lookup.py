"""Positions of one partition, looked up with a `Cluster`."""

from __future__ import annotations

from duramen.client.blocking.cluster import Cluster
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.client.protocol.positions import LogPlace, OffsetQuestion, Position, Question, find_place
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicId, TopicPartition


def locate(cluster: Cluster, tp: TopicPartition, wanted: Position, topic_id: TopicId | None = None) -> LogPlace:
    """Where a position is; raises as `find_place`, and as the calls of `Cluster`."""
    lookup = find_place(wanted)
    question = next(lookup)
    while True:
        try:
            question = lookup.send(_answer(cluster, tp, question, topic_id))
        except StopIteration as found:
            place: LogPlace = found.value
            return place


def _answer(
    cluster: Cluster, tp: TopicPartition, question: Question, topic_id: TopicId | None
) -> ListedOffset | FetchedBytes | None:
    if isinstance(question, OffsetQuestion):
        return cluster.list_offsets({tp: question.timestamp})[tp]
    try:
        return cluster.fetch(tp, question.offset, 1, max_wait_ms=0, topic_id=topic_id)
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        raise
