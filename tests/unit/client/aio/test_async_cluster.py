"""What the asyncio client tries again: leaders that move, nodes that hang up, batches that may be stored already."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.async_node import TOPIC_ID, Asked, AsyncNode, a_batch, async_node, fetched, metadata, produced

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.fetch import FetchedBytes
from duramen.errors import DeadlineError, ErrorCode, KafkaError, OutcomeUnknownError
from duramen.model import TopicPartition
from duramen.wire.messages import API

TP = TopicPartition("t", 0)
PRODUCE, FETCH, METADATA = 0, 1, 3


class Cluster:
    """Two nodes; the test moves the leader and says what becomes of each append. The other node refuses."""

    def __init__(self) -> None:
        self.leader = 0
        self.nodes: list[AsyncNode] = []
        self.stored: list[int] = []
        """Nodes that took an append."""
        self.lost: list[str] = []
        """What becomes of the next ones: hang up before, hang up after, or the name of a code."""

    def behave(self, asked: Asked) -> None:
        if asked.key == METADATA:
            asked.answer(metadata(asked, *(node.port for node in self.nodes), leader=self.leader))
            return
        me = self.nodes.index(asked.node)
        code = ErrorCode.NONE if me == self.leader else ErrorCode.NOT_LEADER_OR_FOLLOWER
        if asked.key == FETCH:
            asked.answer(fetched(a_batch(b"v") if not code else b"", code))
            return
        fate = self.lost.pop(0) if self.lost and not code else ""
        if not code and fate != "before":
            self.stored.append(me)
        if fate in ("before", "after"):
            asked.hang_up()
        elif fate:
            asked.answer(produced(-1, ErrorCode[fate]))
        else:
            asked.answer(produced(len(self.stored) - 1, code))


def run(test: Callable[[Cluster, AsyncCluster], Any]) -> None:
    async def with_nodes() -> None:
        world = Cluster()
        async with asyncio.timeout(30), async_node(world.behave) as first, async_node(world.behave) as second:
            world.nodes = [first, second]
            async with AsyncCluster(f"{first.bootstrap},{second.bootstrap}", timeout_s=10) as cluster:
                await test(world, cluster)

    asyncio.run(with_nodes())


def test_a_leader_that_moved_is_found() -> None:
    async def test(world: Cluster, cluster: AsyncCluster) -> None:
        await cluster.produce(TP, a_batch(b"v"))
        for leader in (1, 0):
            world.leader = leader
            await asyncio.gather(*(cluster.produce(TP, a_batch(b"v")) for _ in range(5)))
            assert await cluster.leader(TP) == leader
            assert (await cluster.fetch(TP, 0, max_wait_ms=0)).next_offset == 1
            assert (await cluster.fetch(TP, 0, max_wait_ms=10)).next_offset == 1
        assert world.stored == [0] + [1] * 5 + [0] * 5

    run(test)


@pytest.mark.parametrize("fate", ["before", "after", "REQUEST_TIMED_OUT", "NOT_ENOUGH_REPLICAS_AFTER_APPEND"])
def test_a_batch_that_may_be_stored_is_sent_again_only_when_the_partition_knows_it(fate: str) -> None:
    async def test(world: Cluster, cluster: AsyncCluster) -> None:
        world.lost = [fate]
        with pytest.raises(OutcomeUnknownError):
            await cluster.produce(TP, a_batch(b"v"))
        world.lost = [fate]
        stored = len(world.stored)
        await cluster.produce(TP, a_batch(b"v", producer_id=4, base_sequence=0))
        assert len(world.stored) == stored + (1 if fate == "before" else 2)

    run(test)


def test_a_batch_that_was_refused_or_never_sent_is_sent_again() -> None:
    async def test(world: Cluster, cluster: AsyncCluster) -> None:
        world.lost = ["NOT_ENOUGH_REPLICAS"]
        await cluster.produce(TP, a_batch(b"v"))
        world.nodes[0].hang_up()
        await asyncio.sleep(0.02)
        await cluster.produce(TP, a_batch(b"v"))
        world.lost = ["MESSAGE_TOO_LARGE"]
        with pytest.raises(KafkaError) as refused:
            await cluster.produce(TP, a_batch(b"v"))
        assert refused.value.code == ErrorCode.MESSAGE_TOO_LARGE

    run(test)


def test_a_partition_without_a_leader_ends_with_the_time_limit() -> None:
    async def test(world: Cluster, cluster: AsyncCluster) -> None:
        world.leader = -1
        with pytest.raises(DeadlineError) as late:
            await cluster.fetch(TP, 0, timeout_s=0.2)
        assert isinstance(late.value.last, KafkaError)
        assert late.value.last.code == ErrorCode.LEADER_NOT_AVAILABLE

    run(test)


def two_partitions(asked: Asked, leaders: list[int]) -> None:
    """Partition 0 has a record, partition 1 is refused by the node."""
    if asked.key == METADATA:
        found = metadata(asked)
        found.topics[0].partitions = [
            API[METADATA].response.MetadataResponsePartition(error_code=0, partition_index=index, leader_id=leader)
            for index, leader in enumerate(leaders)
        ]
        asked.answer(found)
        return
    message = API[FETCH].response
    numbers = [each.partition for each in asked.request.topics[0].partitions]
    partitions = [
        message.PartitionData(
            partition_index=number,
            error_code=int(ErrorCode.NOT_LEADER_OR_FOLLOWER) if number else 0,
            high_watermark=9,
            records=b"" if number else a_batch(b"v"),
        )
        for number in numbers
    ]
    asked.answer(message.new(responses=[message.FetchableTopicResponse(topic_id=TOPIC_ID, partitions=partitions)]))


@pytest.mark.parametrize(
    ("leaders", "code"),
    [([0, 0], ErrorCode.NOT_LEADER_OR_FOLLOWER), ([0, -1], ErrorCode.LEADER_NOT_AVAILABLE)],
)
def test_what_is_available_is_answered_beside_a_partition_that_is_away(leaders: list[int], code: ErrorCode) -> None:
    other = TopicPartition("t", 1)

    async def test() -> None:
        async with (
            asyncio.timeout(30),
            async_node(lambda asked: two_partitions(asked, leaders)) as node,
            AsyncCluster(node.bootstrap) as cluster,
        ):
            found = await cluster.fetch_available({other: 0, TP: 0}, max_wait_ms=0)
            answer, refusal = found[TP], found[other]
            assert isinstance(answer, FetchedBytes)
            assert answer.next_offset == 1
            assert isinstance(refusal, KafkaError)
            assert refusal.code == code
            with pytest.raises(DeadlineError):
                await cluster.fetch_many({other: 0, TP: 0}, max_wait_ms=0, timeout_s=0.1)
            with pytest.raises(DeadlineError):
                await cluster.fetch_available({other: 0}, max_wait_ms=0, timeout_s=0.1)

    asyncio.run(test())
