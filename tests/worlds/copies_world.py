"""Three brokers of one simulated world, with a topic `t` of which each has a copy, and clients that produce to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.worlds.partition_world import joined
from tests.worlds.quorum_world import PORT, QuorumWorld

from duramen.client.loop.node_client import NodeClient, NodeRequest, call
from duramen.client.loop.peer_channels import Purpose
from duramen.errors import ErrorCode
from duramen.machines.metadata.image import PartitionImage
from duramen.model import TopicPartition
from duramen.partition.replica.partition import Partition
from duramen.sim.world.node import WALL_START_MS
from duramen.wire.batch import build_batch
from duramen.wire.messages import delete_records, delete_topics, incremental_alter_configs, produce

TOPIC = "t"


class CopiesWorld(QuorumWorld):
    """All have joined, and the topic is there."""

    def __init__(
        self, seed: int = 1, partitions: int = 1, settings: dict[str, str] | None = None, **configs: str
    ) -> None:
        given = {"min_insync_replicas": "2", "replica_lag_time_max_ms": "3000", **(settings or {})}
        super().__init__(seed, 3, **given)
        for node_id in self.hosts:
            self.join(node_id)
        self.clients: dict[int, NodeClient] = {}
        self.create(TOPIC, partitions, **configs)

    def create(self, name: str, partitions: int = 1, **configs: str) -> None:
        """A topic with three copies, which everybody has."""
        client, answers = self.brokers[1].controller_client, []
        settings = tuple((key.replace("_", "."), value) for key, value in configs.items())
        topic = client.new_topic(name)._replace(partitions=partitions, replication_factor=3, configs=settings)
        client.create([topic], answers.append)
        assert self.until(lambda: bool(answers))
        assert answers[0][0].result.error is ErrorCode.NONE, answers
        assert self.until(lambda: all(self.is_settled(name, index) for index in range(partitions)))

    # ---- who has what --------------------------------------------------------------------------------------------

    def is_settled(self, name: str = TOPIC, index: int = 0) -> bool:
        """Whether everybody who runs has the partition, and knows the same leader."""
        found = [self.brokers[each].store.partitions.get(TopicPartition(name, index)) for each in self.running]
        epochs = {each.leader_epoch for each in found if each is not None}
        leads = [each for each in found if each is not None and each.replication.is_leader]
        return None not in found and len(epochs) == len(leads) == 1

    def partition(self, node_id: int, index: int = 0) -> Partition:
        return self.brokers[node_id].store.partitions[TopicPartition(TOPIC, index)]

    def partitions(self, index: int = 0) -> list[Partition]:
        """Of those who run."""
        return [self.partition(each, index) for each in self.running]

    def image(self, index: int = 0) -> PartitionImage:
        """As the node has it that knows most."""
        newest = max((self.brokers[each].image for each in self.running), key=lambda image: image.next_offset)
        return newest.topics[TOPIC].partitions[index]

    def leader(self, index: int = 0) -> int:
        """Who leads, once all that run agree."""
        assert self.until(lambda: self.is_settled(TOPIC, index)), self.events[-20:]
        return next(each for each in self.running if self.partition(each, index).replication.is_leader)

    def followers(self, index: int = 0) -> list[int]:
        leader = self.leader(index)
        return [each for each in self.running if each != leader]

    def in_sync(self, *node_ids: int, index: int = 0) -> bool:
        """Whether these come to be the in-sync replicas, as everybody knows."""
        return self.until(
            lambda: all(
                set(self.brokers[each].image.topics[TOPIC].partitions[index].isr) == set(node_ids)
                for each in self.running
            )
        )

    def purposes(self, node_id: int) -> set[Purpose]:
        """By which fetchers it follows."""
        fetchers = self.brokers[node_id].followed.fetchers
        return set() if fetchers is None else {each.purpose for each in fetchers.fetchers}

    def told(self, event: str) -> list[int]:
        """Nodes that reported it."""
        return [node_id for node_id, name, _ in self.events if name == event]

    def bytes_of(self, node_id: int, index: int = 0, start: int = 0) -> bytes:
        """Everything that is in its log."""
        log = self.partition(node_id, index).log
        begin = max(start, log.start_offset)
        if begin >= log.end_offset:
            return b""
        return joined(log.read(begin, 1 << 30, log.end_offset, at_least_one=True).parts)

    def are_equal(self, index: int = 0) -> bool:
        """Whether the logs of all that run are the same, and all of it is committed everywhere."""
        found = self.partitions(index)
        ends = {(each.log_end_offset, each.high_watermark, each.log_start_offset) for each in found}
        if len(ends) != 1 or found[0].log_end_offset != found[0].high_watermark:
            return False
        return len({self.bytes_of(each, index) for each in self.running}) == 1

    # ---- clients ---------------------------------------------------------------------------------------------

    def client(self, node_id: int) -> NodeClient:
        if node_id not in self.clients:
            self.clients[node_id] = NodeClient(self.port, self.clock, self.hosts[node_id], PORT, "c")
        return self.clients[node_id]

    def ask_broker(self, node_id: int, request: NodeRequest, on_reply: Callable[[Any], None]) -> None:
        self.client(node_id).send(request, on_reply)

    def send(  # type: ignore[override]
        self, node_id: int, *values: bytes, index: int = 0, acks: int = -1, topic: str = TOPIC, **fields: Any
    ) -> list[Any]:
        """Produce; the list gets the partition's part of the answer, or None."""
        answers: list[Any] = []
        request = produce.ProduceRequest
        records = build_batch([(b"k", value, (), WALL_START_MS) for value in values], **fields)
        data = request.TopicProduceData(
            name=topic, partition_data=[request.PartitionProduceData(index=index, records=records)]
        )
        wanted = call("Produce", 9, acks=acks, timeout_ms=5000, topic_data=[data])
        self.client(node_id).send(
            wanted, lambda got: answers.append(None if got is None else got.responses[0].partition_responses[0])
        )
        return answers

    def send_and_wait(self, node_id: int, *values: bytes, **fields: Any) -> Any:
        """Produce; the partition's part of the answer, or None."""
        answers = self.send(node_id, *values, **fields)
        assert self.until(lambda: bool(answers))
        return answers[0]

    def ask_broker_of(self, node_id: int, request: NodeRequest) -> Any:
        """The answer on the listener for clients."""
        answers: list[Any] = []
        self.ask_broker(node_id, request, answers.append)
        assert self.until(lambda: bool(answers))
        return answers[0]

    def produce(self, *values: bytes, index: int = 0, **fields: Any) -> int:
        """Have it acknowledged by whoever leads; its offset."""
        for _ in range(200):
            answers = self.send(self.leader(index), *values, index=index, **fields)
            assert self.until(lambda answers=answers: bool(answers))
            if answers[0] is not None and not answers[0].error_code:
                return int(answers[0].base_offset)
            self.run(0.1)
        raise AssertionError(f"never acknowledged: {answers[0]}")

    def delete_before(self, offset: int) -> None:
        """DeleteRecords."""
        request = delete_records.DeleteRecordsRequest
        part = request.DeleteRecordsPartition(partition_index=0, offset=offset)
        topics = [request.DeleteRecordsTopic(name=TOPIC, partitions=[part])]
        answers: list[Any] = []
        self.ask_broker(self.leader(), call("DeleteRecords", 2, topics=topics, timeout_ms=5000), answers.append)
        assert self.until(lambda: bool(answers))
        assert answers[0].topics[0].partitions[0].error_code == 0

    def alter(self, key: str, value: str) -> list[Any]:
        """Set one of the topic's settings."""
        request = incremental_alter_configs.IncrementalAlterConfigsRequest
        config = request.AlterableConfig(name=key, config_operation=0, value=value)
        resources = [request.AlterConfigsResource(resource_type=2, resource_name=TOPIC, configs=[config])]
        answers: list[Any] = []
        self.ask_broker(self.leader(), call("IncrementalAlterConfigs", 1, resources=resources), answers.append)
        return answers

    def delete(self) -> list[Any]:
        """Delete the topic."""
        answers: list[Any] = []
        request = delete_topics.DeleteTopicsRequest
        topics = [request.DeleteTopicState(name=TOPIC)]
        self.ask_broker(self.leader(), call("DeleteTopics", 6, topics=topics, timeout_ms=5000), answers.append)
        return answers
