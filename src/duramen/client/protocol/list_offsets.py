"""ListOffsets: offsets by time, and the special ones, of many partitions at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from duramen.client.protocol.fetch import granted
from duramen.client.protocol.metadata import error_code
from duramen.errors import KafkaError
from duramen.model import TopicPartition
from duramen.wire.messages import API

LIST_OFFSETS: Final = 2

LATEST: Final = -1
"""After the last record that may be read: the high watermark, or the last stable offset for read_committed."""
EARLIEST: Final = -2
"""The log start."""
MAX_TIMESTAMP: Final = -3
"""The record with the greatest timestamp (KIP-734)."""


class ListedOffset(NamedTuple):
    """An offset that was asked for: its record's timestamp (ms, -1 where none was asked) and leader epoch (-1 unknown).

    offset is -1 when no record is that young, or there is none.
    """

    offset: int
    timestamp: int
    leader_epoch: int


class OffsetsWish(NamedTuple):
    """Which offsets are asked for: a time (ms since 1970) or a special one of each partition."""

    timestamps: Mapping[TopicPartition, int]
    isolation: int
    timeout_ms: int

    def request(self, tps: Iterable[TopicPartition]) -> Any:
        """As `request`, for a leader's share."""
        return request({tp: self.timestamps[tp] for tp in tps}, self.isolation, self.timeout_ms)

    def parsed(self, response: Any, _tps: Iterable[TopicPartition]) -> dict[TopicPartition, ListedOffset | KafkaError]:
        """As `parsed`."""
        return parsed(response)

    def granted(
        self, answers: Mapping[TopicPartition, ListedOffset | KafkaError]
    ) -> dict[TopicPartition, ListedOffset]:
        """The offsets; the first partition that was refused raises its KafkaError."""
        return {tp: granted(answers[tp]) for tp in self.timestamps}


def request(wanted: Mapping[TopicPartition, int], isolation: int, timeout_ms: int) -> Any:
    """A ListOffsets request for timestamps (ms) or special offsets."""
    message = API[LIST_OFFSETS].request
    topics: dict[str, Any] = {}
    for tp, timestamp in wanted.items():
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = message.ListOffsetsTopic(name=tp.topic)
        topic.partitions.append(message.ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamp))
    return message.new(replica_id=-1, isolation_level=isolation, topics=list(topics.values()), timeout_ms=timeout_ms)


def parsed(response: Any) -> dict[TopicPartition, ListedOffset | KafkaError]:
    """What the response says of each partition."""
    found: dict[TopicPartition, ListedOffset | KafkaError] = {}
    for topic in response.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            code = error_code(each.error_code)
            found[tp] = (
                KafkaError(code, f"{tp}: {code.name}")
                if code
                else ListedOffset(each.offset, each.timestamp, each.leader_epoch)
            )
    return found
