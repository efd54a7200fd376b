"""A transactional producer over one connection to a broker in this process, request by request."""

from __future__ import annotations

from typing import Any

from tests.worlds.broker_world import NOW, InProcess, Line

from duramen.machines.contract import ProducerEpoch
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

PRODUCE, FIND, INIT, ADD, ADD_OFFSETS, END, DESCRIBE, LIST = 0, 10, 22, 24, 25, 26, 65, 66
NOBODY = ProducerEpoch(-1, -1)


class TransactionClient:
    """See the module. `producer` is what the coordinator has told; its sequences are counted by topic."""

    def __init__(self, server: InProcess, transactional_id: str = "id", timeout_ms: int = 60_000) -> None:
        self.line: Line = server.connect()
        self.id = transactional_id
        self.timeout_ms = timeout_ms
        self.producer = NOBODY
        self.sequences: dict[str, int] = {}

    def init(self, version: int = 4, producer: ProducerEpoch = NOBODY) -> Any:
        """InitProducerId; what it answers."""
        own = {"producer_id": producer.id, "producer_epoch": producer.epoch} if version >= 3 else {}
        answer = self.line.call(INIT, version, transactional_id=self.id, transaction_timeout_ms=self.timeout_ms, **own)
        if answer.error_code == 0:
            self.producer = ProducerEpoch(answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        return answer

    def add(self, *partitions: tuple[str, int], version: int = 3, producer: ProducerEpoch | None = None) -> list[int]:
        """AddPartitionsToTxn as clients send it; the codes in order."""
        asked = self.producer if producer is None else producer
        request = API[ADD].request
        answer = self.line.call(
            ADD,
            version,
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=asked.id,
            v3_and_below_producer_epoch=asked.epoch,
            v3_and_below_topics=[
                request.AddPartitionsToTxnTopic(name=name, partitions=[index]) for name, index in partitions
            ],
        )
        codes = {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in answer.results_by_topic_v3_and_below
            for each in topic.results_by_partition
        }
        return [codes[each] for each in partitions]

    def add_by_broker(
        self, *partitions: tuple[str, int], verify_only: bool, version: int = 5, producer: ProducerEpoch | None = None
    ) -> list[int]:
        """The same as a leader asks."""
        asked = self.producer if producer is None else producer
        request = API[ADD].request
        entry = request.AddPartitionsToTxnTransaction(
            transactional_id=self.id,
            producer_id=asked.id,
            producer_epoch=asked.epoch,
            verify_only=verify_only,
            topics=[request.AddPartitionsToTxnTopic(name=name, partitions=[index]) for name, index in partitions],
        )
        answer = self.line.call(ADD, version, transactions=[entry])
        (result,) = answer.results_by_transaction
        codes = {
            (topic.name, each.partition_index): each.partition_error_code
            for topic in result.topic_results
            for each in topic.results_by_partition
        }
        return [codes[each] for each in partitions]

    def add_offsets(self, group_id: str, version: int = 3) -> int:
        """AddOffsetsToTxn; its code."""
        code: int = self.line.call(
            ADD_OFFSETS,
            version,
            transactional_id=self.id,
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            group_id=group_id,
        ).error_code
        return code

    def end(self, commit: bool, version: int = 3, producer: ProducerEpoch | None = None) -> int:
        """EndTxn; its code."""
        asked = self.producer if producer is None else producer
        answer = self.line.call(
            END,
            version,
            transactional_id=self.id,
            producer_id=asked.id,
            producer_epoch=asked.epoch,
            committed=commit,
        )
        if version >= 5 and answer.error_code == 0:
            self.producer = ProducerEpoch(answer.producer_id, answer.producer_epoch)
            self.sequences = {}
        code: int = answer.error_code
        return code

    def produce(self, topic: str, *values: bytes, version: int = 11) -> int:
        """A batch of the transaction into partition 0; the code."""
        sequence = self.sequences.get(topic, 0)
        batch = build_batch(
            [(None, value, (), NOW) for value in values],
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        request = API[PRODUCE].request
        data = request.PartitionProduceData(index=0, records=bytearray(batch))
        answer = self.line.call(
            PRODUCE,
            version,
            transactional_id=self.id,
            acks=-1,
            timeout_ms=30_000,
            topic_data=[request.TopicProduceData(name=topic, partition_data=[data])],
        )
        code: int = answer.responses[0].partition_responses[0].error_code
        if code == 0:
            self.sequences[topic] = sequence + len(values)
        return code

    def describe(self) -> Any:
        """DescribeTransactions of the id."""
        return self.line.call(DESCRIBE, 0, transactional_ids=[self.id]).transaction_states[0]

    def list(self, version: int = 2, **filters: Any) -> dict[str, str]:
        """ListTransactions: states by id."""
        answer = self.line.call(LIST, version, **filters)
        assert answer.error_code == 0
        return {each.transactional_id: each.transaction_state for each in answer.transaction_states}


def find(server: InProcess, *ids: str) -> list[tuple[int, int]]:
    """FindCoordinator for transactional ids: (code, node) of each."""
    answer = server.connect().call(FIND, 4, key_type=1, coordinator_keys=list(ids))
    return [(each.error_code, each.node_id) for each in answer.coordinators]
