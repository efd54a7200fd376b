"""The cuts of every topic, at the node: a compacted topic of its own, whose key is the topic that people name.

The value is the whole chain, so that one record says all and a write can be repeated. Only Kafka's ordinary requests
are used: it works on any cluster. What is read is no older than the moment it was asked for.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from duramen.client import CONTROLLER, EARLIEST, READ_COMMITTED, Cluster, TopicMetadata
from duramen.client.protocol.metadata import error_code, only
from duramen.errors import DuramenError, ErrorCode, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.swaps.cut_overs import CutOver
from duramen.wire.aborted import AbortedTransactions
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

SWAPS_TOPIC: Final = "__duramen_swaps"
_PLACE: Final = TopicPartition(SWAPS_TOPIC, 0)
_CREATE_TOPICS: Final = 19
_DESCRIBE_CONFIGS: Final = 32
_INCREMENTAL_ALTER_CONFIGS: Final = 44
_A_TOPIC: Final = 2
_SET: Final = 0
_BATCH_BYTES_MAX: Final = 64 << 20
"""A chain is one record: a cut takes some 40 bytes for each partition."""
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
        self._cuts: dict[str, tuple[CutOver, ...]] = {}
        self._last: dict[str, tuple[CutOver, ...]] = {}
        """What the last record of a topic says: it may be one that came second, and does not count."""

    def cuts(self, topic: str) -> tuple[CutOver, ...]:
        """The chain of a topic, oldest first, as it is now; empty when it was never swapped."""
        self._refresh()
        return self._cuts.get(topic, ())

    def chains(self) -> Mapping[str, tuple[CutOver, ...]]:
        """The chain of every topic that was swapped."""
        self._refresh()
        return {topic: cuts for topic, cuts in self._cuts.items() if cuts}

    def publish(self, topic: str, cuts: Sequence[CutOver]) -> None:
        """Make this the chain of the topic; durable on return. Nothing where the node has it already.

        SwapConflictError unless what the node has is the beginning of it.
        """
        there = self.cuts(topic)
        self._restore(topic)
        wanted = tuple(cuts)
        _check_begins(topic, there, wanted)
        if not wanted or (not self._prepare() and there == wanted):
            return
        self._write(topic, wanted)
        # Somebody else may have written between the question and our record: who came first has swapped.
        first = self.cuts(topic) or wanted
        self._restore(topic)
        _check_begins(topic, first, wanted)

    def _restore(self, topic: str) -> None:
        """Write the chain that counts once more where the last record is another one: compaction would keep that."""
        if self._last.get(topic, ()) != (counts := self._cuts.get(topic, ())):
            self._write(topic, counts)

    def _write(self, topic: str, cuts: Sequence[CutOver]) -> None:
        value = json.dumps([cut.to_json() for cut in cuts], separators=(",", ":")).encode()
        batch = build_batch([(topic.encode(), value, [], time.time_ns() // 1_000_000)])
        # The same value once more does no harm, so that a lost answer is asked for again.
        self._cluster.produce(_PLACE, batch, resend=True)

    def _prepare(self) -> bool:
        """See to it that the topic is there and keeps what it acknowledges. Whether anything had to be done."""
        wanted = {"cleanup.policy": "compact", "max.message.bytes": str(_BATCH_BYTES_MAX)}
        if self._cluster.api_versions().is_duramen:  # whose own default may be the page cache
            wanted["duramen.ack.durability"] = "stable"
        if self._create(wanted):
            return True
        different = {name: value for name, value in wanted.items() if self._settings().get(name) != value}
        if different:
            self._alter(different)
        return bool(different)

    def _create(self, settings: Mapping[str, str]) -> bool:
        """Whether the topic was not there."""
        message = API[_CREATE_TOPICS].request
        configs = [message.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        topic = message.CreatableTopic(name=SWAPS_TOPIC, num_partitions=1, replication_factor=-1, configs=configs)
        request = message.new(topics=[topic], timeout_ms=15_000)
        return not self._ask(_CREATE_TOPICS, request, "topics", ErrorCode.TOPIC_ALREADY_EXISTS).error_code

    def _settings(self) -> dict[str, str]:
        message = API[_DESCRIBE_CONFIGS].request
        resource = message.DescribeConfigsResource(
            resource_type=_A_TOPIC, resource_name=SWAPS_TOPIC, configuration_keys=None
        )
        found = self._ask(_DESCRIBE_CONFIGS, message.new(resources=[resource]), "results")
        return {config.name: config.value for config in found.configs}

    def _alter(self, settings: Mapping[str, str]) -> None:
        message = API[_INCREMENTAL_ALTER_CONFIGS].request
        configs = [
            message.AlterableConfig(name=name, config_operation=_SET, value=value) for name, value in settings.items()
        ]
        resource = message.AlterConfigsResource(resource_type=_A_TOPIC, resource_name=SWAPS_TOPIC, configs=configs)
        self._ask(_INCREMENTAL_ALTER_CONFIGS, message.new(resources=[resource]), "responses")

    def _ask(self, key: int, request: Any, answers: str, *accepted: ErrorCode) -> Any:
        """What the controller answers for the topic."""

        def answer(response: Any) -> Any:
            return only(getattr(response, answers), f"topic {SWAPS_TOPIC}")

        found = answer(self._cluster.call(CONTROLLER, key, request, code_of=lambda told: int(answer(told).error_code)))
        code = error_code(found.error_code)
        if code and code not in accepted:
            raise KafkaError(code, f"topic {SWAPS_TOPIC}: {found.error_message or code.name}")
        return found

    def _refresh(self) -> None:
        """Read what is new, up to the end that the node tells with it."""
        if self._next is None:
            if SWAPS_TOPIC not in existing(self._cluster, [SWAPS_TOPIC]):
                return
            self._next = 0
        while True:
            try:
                fetched = self._cluster.fetch(_PLACE, self._next, isolation=READ_COMMITTED, max_wait_ms=0)
            except KafkaError as error:
                if error.code in _GONE:
                    self._next, self._cuts, self._last = None, {}, {}
                    return
                if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise
                self._next = self._cluster.list_offsets({_PLACE: EARLIEST})[_PLACE].offset
                continue
            aborted = AbortedTransactions(fetched.aborted)
            for position, header in batches(fetched.data):
                batch = fetched.data[position:]
                if not aborted.hides(header, batch) and not header.is_control:
                    for record in records(batch, header, max_bytes=_BATCH_BYTES_MAX):
                        self._take(*_chain(record.key, record.value))
            self._next = fetched.next_offset
            if not fetched.data or self._next >= fetched.last_stable_offset:
                return

    def _take(self, topic: str, chain: tuple[CutOver, ...]) -> None:
        """A chain only grows. One that does not go on with what was there came second, and its writer was killed before
        it put that right; nothing at all is an operator's word."""
        self._last[topic] = chain
        there = self._cuts.get(topic, ())
        if not chain or chain[: len(there)] == there:
            self._cuts[topic] = chain


def _chain(key: bytes | None, value: bytes | None) -> tuple[str, tuple[CutOver, ...]]:
    try:
        return (key or b"").decode(), tuple(CutOver.from_json(cut) for cut in json.loads(value or b"[]"))
    except (ValueError, TypeError) as error:
        raise StorageError(f"{SWAPS_TOPIC} holds a record that is no chain of cuts: {error}") from None


def _check_begins(topic: str, there: Sequence[CutOver], wanted: Sequence[CutOver]) -> None:
    if there != wanted[: len(there)]:
        raise SwapConflictError(
            f"the node has {len(there)} swaps of {topic} that are not the {len(wanted)} known here: does another "
            "pipeline write this topic? Give the stream another topic"
        )
