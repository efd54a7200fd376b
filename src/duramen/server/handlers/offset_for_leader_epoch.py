"""OffsetForLeaderEpoch: where a leader epoch ends, for clients that check for truncation (KIP-101, KIP-320). v2-4."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.offset_lookup import epoch_end
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.offset_for_leader_epoch import OffsetForLeaderEpochResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """The end offset of the largest epoch not above the one asked for, per partition."""
    request.reply_in_steps(_response(request))


def _response(request: Request) -> Steps:
    topics = []
    done = 0
    for topic in request.body.topics:
        denied = request.deny_topics([topic.topic])
        entries = []
        for wanted in topic.partitions:
            entry = OffsetForLeaderEpochResponse.EpochEndOffset(partition=wanted.partition)
            try:
                _look_up(request, topic.topic, bool(denied), wanted, entry)
            except KafkaError as error:
                entry.error_code = int(error.code)
            entries.append(entry)
            done += 1
            if done % STEP == 0:
                yield
        done += 1
        if done % STEP == 0:
            yield
        topics.append(OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(topic=topic.topic, partitions=entries))
    return OffsetForLeaderEpochResponse.new(topics=topics)


def _look_up(request: Request, name: str, denied: bool, wanted: Any, entry: Any) -> None:
    if denied:
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = request.services.partitions.at(name, wanted.partition, wanted.current_leader_epoch)
    entry.leader_epoch, entry.end_offset = epoch_end(partition, wanted.leader_epoch)
