"""Records written to the partitions of any topic: where each goes, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.protocol import described_settings
from duramen.client.protocol.described_settings import APPLICATION_TXIDS, DESCRIBE_CONFIGS, TXID
from duramen.client.protocol.metadata import TopicMetadata
from duramen.client.protocol.routes import ANY
from duramen.client.protocol.stream_names import OUR_OWN
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.streams.receipt_header import ReceiptBody, receipt
from duramen.gateway.writes.partition_writes import PartitionWrites, record_size
from duramen.gateway.writes.topic_records import TopicPlaces, WantedRecord
from duramen.gateway.writes.write_queue import BATCH_MAX_BYTES
from duramen.model import TopicPartition
from duramen.wire.batch import NewRecord

_FRESH_S: Final = 2.0
_KNOWN_MAX: Final = 10_000


class PartitionReceipt(NamedTuple):
    """Where a record went."""

    partition: int
    receipt: ReceiptBody


class KnownTopic(NamedTuple):
    """A topic as it was at a moment, and where its next records go. has_own_txids: its application gives each record
    its transaction id, as the timestamp.
    """

    at_s: float
    metadata: TopicMetadata
    places: TopicPlaces
    has_own_txids: bool

    def now_ms(self, clock: GatewayClock) -> int | None:
        """The timestamp of records that have none; None where each needs its own."""
        return None if self.has_own_txids else clock.now_ms()


class TopicWrites:
    """Writes records to topics, through the batches that all requests share."""

    def __init__(
        self, cluster: AsyncCluster, writes: PartitionWrites, clock: GatewayClock, metrics: GatewayMetrics
    ) -> None:
        self._cluster = cluster
        self._writes = writes
        self._clock = clock
        self._metrics = metrics
        self._known: dict[str, KnownTopic] = {}

    async def write(self, known: KnownTopic, wanted: Sequence[WantedRecord]) -> list[PartitionReceipt | ProblemError]:
        """What became of each record."""
        outcomes: dict[int, PartitionReceipt | ProblemError] = {}
        partitions = known.metadata.partitions
        shares: dict[int, list[tuple[int, NewRecord]]] = {}
        for number, each in enumerate(wanted):
            partition = known.places.partition(each, record_size(each.record), len(partitions))
            if partition in partitions:
                shares.setdefault(partition, []).append((number, each.record))
            else:
                outcomes[number] = bad_request("partition", f"the topic has {len(partitions)}, numbered from 0")
        writes = [self._write_share(known.metadata, *share, outcomes) for share in shares.items()]
        if len(writes) == 1:
            await writes[0]
        else:
            await asyncio.gather(*writes)
        self._metrics.records_written.inc(sum(isinstance(each, PartitionReceipt) for each in outcomes.values()))
        return [outcomes[number] for number in range(len(wanted))]

    async def _write_share(
        self,
        topic: TopicMetadata,
        partition: int,
        share: Sequence[tuple[int, NewRecord]],
        outcomes: dict[int, PartitionReceipt | ProblemError],
    ) -> None:
        """What becomes of the records of one partition, which are appended in their order."""
        tp = TopicPartition(topic.name, partition)
        parts = _parts(share)
        while parts:
            part = parts.pop(0)
            try:
                written = await self._writes.write(tp, topic.topic_id, [record for _, record in part])
            except ProblemError as problem:
                if problem.code == "record-too-large" and len(part) > 1:  # together, for a topic that takes less
                    middle = len(part) // 2
                    parts[:0] = [part[:middle], part[middle:]]
                    continue
                if problem.code == "no-such-stream":
                    self._known.pop(topic.name, None)
                    problem = no_such_topic(topic.name)
                outcomes.update((number, problem) for number, _ in part)
            else:
                for offset, (number, record) in enumerate(part, written.first):
                    outcomes[number] = PartitionReceipt(partition, receipt(written.batch, offset, record[3]))

    async def topic(self, topic: str) -> KnownTopic:
        """The topic, as it was a moment ago at the earliest. Problem 404, 403."""
        if topic.startswith(OUR_OWN):
            raise ProblemError(403, "not-allowed", f"topics that begin with {OUR_OWN} are written by the system")
        now_s = self._clock.monotonic_s()
        known = self._known.get(topic)
        if known is not None and now_s - known.at_s < _FRESH_S:
            return known
        found = (await self._cluster.metadata([topic])).topics.get(topic)
        if found is None or found.error in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION):
            self._known.pop(topic, None)
            raise no_such_topic(topic)
        if found.error:
            raise problem_of(KafkaError(found.error, f"{topic}: {found.error.name}"))
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        places = TopicPlaces() if known is None else known.places
        if known is None or known.metadata.topic_id != found.topic_id:
            has_own_txids = await self._has_own_txids(topic)
        else:
            has_own_txids = known.has_own_txids  # for good: `duramen.txid` is given to new topics alone
        self._known[topic] = known = KnownTopic(now_s, found, places, has_own_txids)
        return known

    async def _has_own_txids(self, topic: str) -> bool:
        request = described_settings.request([topic], [TXID])
        response = await self._cluster.call(ANY, DESCRIBE_CONFIGS, request, code_of=described_settings.code_of)
        return described_settings.parsed(response).get(topic, {}).get(TXID) == APPLICATION_TXIDS


def _parts(share: Sequence[tuple[int, NewRecord]]) -> list[list[tuple[int, NewRecord]]]:
    """The records of one partition in parts that a batch takes; a larger record is a part of its own."""
    parts: list[list[tuple[int, NewRecord]]] = []
    room = -1
    for each in share:
        size = record_size(each[1])
        if size > room:
            parts.append([])
            room = BATCH_MAX_BYTES
        parts[-1].append(each)
        room -= size
    return parts


def no_such_topic(topic: str) -> ProblemError:
    """404."""
    return ProblemError(404, "no-such-topic", f"there is no topic {topic}")
