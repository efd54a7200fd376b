"""Positions of one partition, looked up with an `AsyncCluster`."""

from __future__ import annotations

from duramen.client.aio.async_cluster import AsyncCluster
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.client.protocol.positions import LogPlace, OffsetQuestion, Position, Question, find_place
from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicId, TopicPartition


async def locate(
    cluster: AsyncCluster, tp: TopicPartition, wanted: Position, topic_id: TopicId | None = None
) -> LogPlace:
    """Where a position is; raises as `find_place`, and as the calls of `AsyncCluster`."""
    lookup = find_place(wanted)
    question = next(lookup)
    while True:
        answer = await _answer(cluster, tp, question, topic_id)
        try:
            question = lookup.send(answer)
        except StopIteration as found:
            place: LogPlace = found.value
            return place


async def _answer(
    cluster: AsyncCluster, tp: TopicPartition, question: Question, topic_id: TopicId | None
) -> ListedOffset | FetchedBytes | None:
    if isinstance(question, OffsetQuestion):
        return (await cluster.list_offsets({tp: question.timestamp}))[tp]
    try:
        return await cluster.fetch(tp, question.offset, 1, max_wait_ms=0, topic_id=topic_id)
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return None
        raise
