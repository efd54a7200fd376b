"""Our own member beside confluent-kafka's in one group of a real node, which is killed between heartbeats."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import confluent_kafka
import pytest
from tests.worlds.served_node import Served

from duramen.client import CONTROLLER
from duramen.client.aio import AsyncCluster, AsyncGroupMember, AsyncGroupOffsets
from duramen.client.protocol.group_offsets import GroupOffset
from duramen.errors import KafkaError
from duramen.model import TopicPartition
from duramen.wire.messages import API

SETTINGS = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "200",
    "group.consumer.assignment.interval.ms": "100",
    "offsets.topic.num.partitions": "2",
}
CREATE_TOPICS = 19


class Reader:
    """Keeps what it is told, and commits a position of its own for what it gives up.

    Without metadata: confluent-kafka reads that up to a zero byte, which its own commits alone have, so other bytes of
    memory come along, and where they are no text `poll` raises UnicodeDecodeError.
    """

    def __init__(self) -> None:
        self.member: AsyncGroupMember | None = None
        self.told: list[str] = []

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append("assigned")

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append("revoked")
        assert self.member is not None
        await self.member.commit({tp: GroupOffset(tp.partition, 0) for tp in partitions})

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        self.told.append("lost")


class OtherMember(threading.Thread):
    """librdkafka's, which this thread alone calls: it keeps what is assigned, and what is committed of that."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        super().__init__()
        self.partitions: set[TopicPartition] = set()
        self.committed: list[tuple[int, int]] = []
        self._ends = threading.Event()
        config = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "log_level": 0}
        self._consumer = confluent_kafka.Consumer({**config, "enable.auto.commit": False})
        self._consumer.subscribe([topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked)

    def run(self) -> None:
        while not self._ends.is_set():
            self._consumer.poll(0.05)
        self._consumer.close()

    def _assigned(self, consumer: confluent_kafka.Consumer, new: list[confluent_kafka.TopicPartition]) -> None:
        found = consumer.committed(new, 10)
        self.committed += [(each.partition, each.offset) for each in found]
        self.partitions |= {TopicPartition(each.topic, each.partition) for each in new}

    def _revoked(self, consumer: confluent_kafka.Consumer, gone: list[confluent_kafka.TopicPartition]) -> None:
        self.partitions -= {TopicPartition(each.topic, each.partition) for each in gone}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self.join()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():
            await asyncio.sleep(0.02)


def test_a_group_of_two_clients_whose_node_is_killed(tmp_path: Path) -> None:
    node = Served(tmp_path, SETTINGS)
    node.start()
    everything = {TopicPartition("t", number) for number in range(4)}

    async def test(cluster: AsyncCluster) -> None:
        message = API[CREATE_TOPICS].request
        topic = message.CreatableTopic(name="t", num_partitions=4, replication_factor=1)
        await cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[topic], timeout_ms=10_000))
        outside = AsyncGroupOffsets(cluster, "g")
        await outside.commit({TopicPartition("t", 0): GroupOffset(0, -1, "before")})
        reader = Reader()
        async with AsyncGroupMember(cluster, "g", reader) as member:
            reader.member = member
            member.subscribe(pattern="t|other")
            await until(lambda: member.assignment == everything)
            with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
                await outside.commit({TopicPartition("t", 0): GroupOffset(1)})

            with OtherMember(node.bootstrap, "g", "t") as other:
                await until(lambda: len(member.assignment) == len(other.partitions) == 2)
                assert other.partitions | member.assignment == everything
                assert {each.partition for each in other.partitions} == {number for number, _ in other.committed}
                assert all(offset == number for number, offset in other.committed)

                had, epoch = member.assignment, member.epoch
                node.kill()
                commit = asyncio.create_task(member.commit(dict.fromkeys(had, GroupOffset(7, 1, "killed"))))
                await asyncio.sleep(0.5)
                await asyncio.to_thread(node.start)
                await commit
                assert member.assignment == had
                assert (member.epoch, reader.told) == (epoch, ["assigned", "revoked"])
            await until(lambda: member.assignment == everything)
            found_here = await member.committed(everything)
            assert {tp: found_here[tp] for tp in had} == dict.fromkeys(had, GroupOffset(7, 1, "killed"))
        await outside.commit({TopicPartition("t", 0): GroupOffset(3)})
        assert reader.told == ["assigned", "revoked", "assigned", "revoked"]

    async def with_client() -> None:
        async with AsyncCluster(node.bootstrap, timeout_s=20) as cluster:
            await test(cluster)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    try:
        asyncio.run(with_client())
    finally:
        node.kill()
