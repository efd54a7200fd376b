"""Asks coordinators and leaders about transactions, over plain connections: librdkafka cannot.

Works with Apache Kafka 3.0 and later, too: these are KIP-664's requests.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from duramen.client import Cluster
from duramen.client.protocol.metadata import error_code
from duramen.client.protocol.routes import TRANSACTION, CoordinatorKey
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.wire.messages import API

INIT_PRODUCER_ID, WRITE_MARKERS, DESCRIBE_PRODUCERS, DESCRIBE, LIST = 22, 27, 61, 65, 66
OPEN_STATES: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort"})
IDS_AT_ONCE: Final = 500
PARTITIONS_AT_ONCE: Final = 1_000
PAUSE_S: Final = 0.1


class Listed(NamedTuple):
    """A transactional id as its coordinator lists it. coordinator: the node."""

    transactional_id: str
    state: str
    producer_id: int
    coordinator: int


class Described(NamedTuple):
    """The same in full. started_ms: None where nothing is open; partitions: those that have no marker yet."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]
    coordinator: int


class ActiveProducer(NamedTuple):
    """What a partition knows of a producer. start_offset: of its open transaction there, None where none is."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    last_sequence: int
    written_ms: int
    start_offset: int | None


class OpenTransaction(NamedTuple):
    """What a partition knows of a transaction that is open there. written_ms: of its last batch there."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    written_ms: int


class ActiveThere(NamedTuple):
    """All that a partition knows of its producers; true also where there are none."""

    found: list[ActiveProducer]


class Hanging(NamedTuple):
    """One that no coordinator will end. transactional_id: of that producer, None where none has it."""

    open: OpenTransaction
    transactional_id: str | None


class TransactionLook:
    """Of one cluster."""

    def __init__(self, client: Cluster) -> None:
        self._client = client

    # ---- coordinators ----------------------------------------------------------------------------------------

    def listed(
        self,
        states: Iterable[str] = (),
        producer_ids: Iterable[int] = (),
        longer_than_ms: int = -1,
        pattern: str | None = None,
    ) -> list[Listed]:
        """What every coordinator knows of, by id; KafkaError where one refuses."""
        found = []
        fields: dict[str, Any] = {"state_filters": list(states), "producer_id_filters": list(producer_ids)}
        if longer_than_ms >= 0:
            fields["duration_filter"] = longer_than_ms
        if pattern:
            fields["transactional_id_pattern"] = pattern
        for node in sorted(self._client.metadata([]).nodes):
            answer = self._client.call(node, LIST, API[LIST].request.new(**fields), code_of=_top)
            if answer.error_code:
                raise KafkaError(error_code(answer.error_code), f"node {node}: {error_code(answer.error_code).name}")
            if answer.unknown_state_filters:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"no state is called {answer.unknown_state_filters[0]}")
            found += [
                Listed(each.transactional_id, each.transaction_state, each.producer_id, node)
                for each in answer.transaction_states
            ]
        return sorted(found)

    def described(self, transactional_id: str) -> Described:
        """What its coordinator says of it; KafkaError TRANSACTIONAL_ID_NOT_FOUND."""
        request = API[DESCRIBE].request.new(transactional_ids=[transactional_id])
        route = CoordinatorKey(transactional_id, TRANSACTION)
        answer = self._client.call(route, DESCRIBE, request, code_of=lambda response: _only(response).error_code)
        told = _only(answer)
        if told.error_code:
            code = error_code(told.error_code)
            if code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
                raise KafkaError(code, f"there is no transactional id {transactional_id}, or it has expired")
            raise KafkaError(code, f"{transactional_id}: {code.name}")
        return Described(
            told.transactional_id,
            told.transaction_state,
            told.producer_id,
            told.producer_epoch,
            told.transaction_timeout_ms,
            told.transaction_start_time_ms if told.transaction_state in OPEN_STATES else None,
            tuple(sorted(TopicPartition(topic.topic, index) for topic in told.topics for index in topic.partitions)),
            self._client.coordinator(route),
        )

    def started(self, rows: Iterable[Listed]) -> dict[str, int]:
        """Since when the transactions of these are open, of those where one still is."""
        asked: dict[int, list[str]] = {}
        for each in rows:
            if each.state in OPEN_STATES:
                asked.setdefault(each.coordinator, []).append(each.transactional_id)
        found: dict[str, int] = {}
        for node, ids in asked.items():
            for start in range(0, len(ids), IDS_AT_ONCE):
                request = API[DESCRIBE].request.new(transactional_ids=ids[start : start + IDS_AT_ONCE])
                for told in self._client.call(node, DESCRIBE, request).transaction_states:
                    if not told.error_code and told.transaction_state in OPEN_STATES:
                        found[told.transactional_id] = told.transaction_start_time_ms
        return found

    def abort(self, known: Described, timeout_s: float) -> Described:
        """Fence the id's producer, which aborts what is open; what became of it once its markers are written."""
        request = API[INIT_PRODUCER_ID].request.new(
            transactional_id=known.transactional_id, transaction_timeout_ms=known.timeout_ms
        )
        route = CoordinatorKey(known.transactional_id, TRANSACTION)
        answer = self._client.call(route, INIT_PRODUCER_ID, request, code_of=_but_concurrent)
        code = error_code(answer.error_code)
        if code not in (ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS):  # the latter: it is being aborted
            raise KafkaError(code, f"{known.transactional_id}: {code.name}")
        end = time.monotonic() + timeout_s
        while (now := self.described(known.transactional_id)).state in OPEN_STATES and time.monotonic() < end:
            time.sleep(PAUSE_S)
        return now

    # ---- partitions ------------------------------------------------------------------------------------------

    def partitions_of(self, topics: Iterable[str] | None) -> list[TopicPartition]:
        """The partitions of these topics (None: of all) that have a leader; KafkaError for one that is not there."""
        names = None if topics is None else list(topics)
        for name in names or ():
            self._client.partitions(name)
        told = self._client.metadata(names).topics
        return [
            TopicPartition(topic.name, partition.partition)
            for topic in told.values()
            for partition in topic.partitions.values()
            if partition.leader >= 0
        ]

    def open_in(self, partitions: Iterable[TopicPartition]) -> list[OpenTransaction]:
        """The transactions that are open there, as the leaders know them. KafkaError of the first that does not say."""
        return [
            OpenTransaction(
                tp, each.producer_id, each.producer_epoch, each.coordinator_epoch, each.start_offset, each.written_ms
            )
            for tp, producers in self.producers(partitions).items()
            for each in producers
            if each.start_offset is not None
        ]

    def producers(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, list[ActiveProducer]]:
        """The producers that the leaders know there. KafkaError of the first that does not say."""
        wanted = sorted(partitions)
        found: dict[TopicPartition, list[ActiveProducer]] = {}
        for start in range(0, len(wanted), PARTITIONS_AT_ONCE):
            answers = self._client.call_leaders(
                DESCRIBE_PRODUCERS, wanted[start : start + PARTITIONS_AT_ONCE], _producers_request, _producers_parsed
            )
            for tp, answer in sorted(answers.items()):
                if isinstance(answer, DuramenError):
                    raise answer
                found[tp] = answer.found
        return found

    def hanging(self, partitions: Iterable[TopicPartition], before_ms: int) -> list[Hanging]:
        """Open ones that nobody has written to since, and that no coordinator will end: none has their producer, or its
        transaction does not have the partition."""
        old = [each for each in self.open_in(partitions) if each.written_ms < before_ms]
        if not old:
            return []
        owners = {each.producer_id: each for each in self.listed(producer_ids={each.producer_id for each in old})}
        described: dict[str, Described] = {}
        found = []
        for each in old:
            owner = owners.get(each.producer_id)
            if owner is None:
                found.append(Hanging(each, None))
                continue
            if owner.transactional_id not in described:
                described[owner.transactional_id] = self.described(owner.transactional_id)
            told = described[owner.transactional_id]
            if told.state not in OPEN_STATES or each.partition not in told.partitions:
                found.append(Hanging(each, owner.transactional_id))
        return found

    def end_hanging(self, hanging: OpenTransaction) -> None:
        """Write the marker that aborts it into its partition; KafkaError."""
        tp = hanging.partition
        request = API[WRITE_MARKERS].request
        marker = request.WritableTxnMarker(
            producer_id=hanging.producer_id,
            producer_epoch=hanging.producer_epoch,
            transaction_result=False,
            topics=[request.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
            # A new producer's, until the first marker: less than any coordinator has.
            coordinator_epoch=max(hanging.coordinator_epoch, 0),
        )
        answer = self._client.call(tp, WRITE_MARKERS, request.new(markers=[marker]))
        for result in answer.markers:
            for topic in result.topics:
                for each in topic.partitions:
                    if each.error_code:
                        code = error_code(each.error_code)
                        raise KafkaError(code, f"{tp}: {code.name}")


def _top(response: Any) -> int:
    return int(response.error_code)


def _but_concurrent(response: Any) -> int:
    return 0 if response.error_code == ErrorCode.CONCURRENT_TRANSACTIONS else int(response.error_code)


def _only(response: Any) -> Any:
    (told,) = response.transaction_states
    return told


def _producers_request(tps: list[TopicPartition]) -> Any:
    request = API[DESCRIBE_PRODUCERS].request
    topics: dict[str, list[int]] = {}
    for topic, index in tps:
        topics.setdefault(topic, []).append(index)
    return request.new(
        topics=[request.TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics.items()]
    )


def _producers_parsed(response: Any, tps: list[TopicPartition]) -> dict[TopicPartition, ActiveThere | KafkaError]:
    found: dict[TopicPartition, ActiveThere | KafkaError] = {}
    for topic in response.topics:
        for each in topic.partitions:
            tp = TopicPartition(topic.name, each.partition_index)
            if each.error_code:
                code = error_code(each.error_code)
                found[tp] = KafkaError(code, f"{tp}: {code.name}")
                continue
            found[tp] = ActiveThere(
                [
                    ActiveProducer(
                        producer.producer_id,
                        producer.producer_epoch,
                        producer.coordinator_epoch,
                        producer.last_sequence,
                        producer.last_timestamp,
                        producer.current_txn_start_offset if producer.current_txn_start_offset >= 0 else None,
                    )
                    for producer in each.active_producers
                ]
            )
    return found
