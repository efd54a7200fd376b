"""The cuts of every topic, at the node: a compacted topic of its own, whose key is the topic that people name.

The value is the whole chain, so that one record says all and a write can be repeated. Only Kafka's ordinary requests
are used: it works on any cluster. What is read is no older than the moment it was asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any, Final

from duramen.client import CONTROLLER, EARLIEST, Cluster, TopicMetadata
from duramen.errors import DuramenError, ErrorCode, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.swaps.cuts import Cut
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

SWAPS_TOPIC: Final = "__duramen_swaps"
_PLACE: Final = TopicPartition(SWAPS_TOPIC, 0)
_CREATE_TOPICS: Final = 19
_BATCH_BYTES_MAX: Final = 64 << 20
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


def existing(cluster: Cluster, topics: Sequence[str]) -> dict[str, TopicMetadata]:
    """Those of the topics that are there. KafkaError where the cluster cannot tell, for that is not the same."""
    while True:
        found = cluster.metadata(topics).topics
        unclear = [name for name, topic in found.items() if topic.error and topic.error not in _GONE]
        if not unclear:
            return {name: topic for name, topic in found.items() if not topic.error}
        cluster.partitions(unclear[0])  # asks again while that may help, and says why not


class SwapConflictError(DuramenError):
    """The node has other cuts of this topic: another pipeline writes it, or its folder was lost."""


class SwapLog:
    """The cuts that a cluster knows. Blocking, for one thread; errors are those of `client.Cluster`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._next: int | None = None
        self._cuts: dict[str, tuple[Cut, ...]] = {}

    def cuts(self, topic: str) -> tuple[Cut, ...]:
        """The chain of a topic, oldest first, as it is now; empty when it was never swapped."""
        self._refresh()
        return self._cuts.get(topic, ())

    def publish(self, topic: str, cuts: Sequence[Cut]) -> None:
        """Make this the chain of the topic; durable on return. Nothing where the node has it already.

        SwapConflictError unless what the node has is the beginning of it.
        """
        there = self.cuts(topic)
        wanted = tuple(cuts)
        if there == wanted:
            return
        if there != wanted[: len(there)]:
            raise SwapConflictError(
                f"the node has {len(there)} swaps of {topic} that are not the {len(wanted)} known here: does another "
                "pipeline write this topic? Give the stream another topic"
            )
        self._create()
        value = json.dumps([cut.to_json() for cut in wanted], separators=(",", ":")).encode()
        batch = build_batch([(topic.encode(), value, [], time.time_ns() // 1_000_000)])
        # The same value once more does no harm, so that a lost answer is asked for again.
        self._cluster.produce(_PLACE, batch, resend=True)

    def _create(self) -> None:
        message = API[_CREATE_TOPICS].request
        configs = [message.CreatableTopicConfig(name="cleanup.policy", value="compact")]
        topic = message.CreatableTopic(name=SWAPS_TOPIC, num_partitions=1, replication_factor=-1, configs=configs)
        request = message.new(topics=[topic], timeout_ms=15_000)

        def code_of(response: Any) -> int:
            return int(response.topics[0].error_code)

        code = code_of(self._cluster.call(CONTROLLER, _CREATE_TOPICS, request, code_of=code_of))
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise KafkaError(ErrorCode(code), f"topic {SWAPS_TOPIC}: {ErrorCode(code).name}")

    def _refresh(self) -> None:
        """Read what is new, up to the end that the node tells with it."""
        if self._next is None:
            if SWAPS_TOPIC not in existing(self._cluster, [SWAPS_TOPIC]):
                return
            self._next = 0
        while True:
            try:
                fetched = self._cluster.fetch(_PLACE, self._next, max_wait_ms=0)
            except KafkaError as error:
                if error.code in _GONE:
                    self._next = None
                    return
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                self._next = self._cluster.list_offsets({_PLACE: EARLIEST})[_PLACE].offset
                continue
            for position, header in batches(fetched.data):
                if not header.is_control:
                    for record in records(fetched.data[position:], header, max_bytes=_BATCH_BYTES_MAX):
                        self._take(record.key, record.value)
            self._next = fetched.next_offset
            if not fetched.data or self._next >= fetched.high_watermark:
                return

    def _take(self, key: bytes | None, value: bytes | None) -> None:
        try:
            topic = (key or b"").decode()
            found = json.loads(value or b"[]")
            self._cuts[topic] = tuple(Cut.from_json(cut) for cut in found)
        except (ValueError, TypeError) as error:
            raise StorageError(f"{SWAPS_TOPIC} holds a record that is no chain of cuts: {error}") from None
