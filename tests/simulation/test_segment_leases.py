"""DescribeSegments and its leases inside the simulator: in virtual time, through its network, over a power cut."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from duramen.client.loop.node_client import NodeClient, call
from duramen.errors import ErrorCode
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.sim.run.simulation import configuration
from duramen.sim.workload.scripts import Actor, Script
from duramen.sim.workload.workload import new_topic
from duramen.sim.world.disk import CrashDisk
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import SimNetwork, SimPort
from duramen.sim.world.node import WALL_START_MS, SimNode, node_address
from duramen.wire.batch import batches, build_batch

CONFIGS = {"internal.segment.bytes": "20000", "file.delete.delay.ms": "0"}
SETTINGS = {"log.retention.check.interval.ms": "1000", "log.flush.offset.checkpoint.interval.ms": "1000"}
LEASE_MS = 30_000


class Story:
    """One node and one client; what each script returns is kept."""

    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(Random(seed))
        network = SimNetwork(self.loop, Random(seed + 1))
        self.disk = CrashDisk(Random(seed + 2))
        self.node = SimNode(1, self.loop, network, Random(seed + 3), self.disk, self.boot, lambda line: None)
        people = Process("clients")
        self.clock = SimClock(self.loop, people, WALL_START_MS)
        self.client = NodeClient(SimPort(network, people), self.clock, *node_address(1), "c")
        self.node.start()

    def boot(self, world: World) -> Broker:
        return Broker(world, configuration(SETTINGS))

    def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        assert self.loop.run(condition, self.loop.now + seconds)

    def wait(self, seconds: float) -> None:
        self.loop.run(lambda: False, self.loop.now + seconds)

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """The answer to one request."""
        answers: list[Any] = []

        def script() -> Script:
            answers.append((yield call(name, version, **fields)))

        self.until(lambda: self.node.ready)
        actor = Actor(self.client, self.clock, script())
        self.until(lambda: actor.finished)
        return answers[0]

    def produce(self, value: bytes) -> None:
        kinds = call("Produce", 9).api.request
        batch = bytes(build_batch([(None, value, (), self.clock.wall_ms())]))
        data = kinds.PartitionProduceData(index=0, records=batch)
        topic = kinds.TopicProduceData(name="t", partition_data=[data])
        reply = self.ask("Produce", 9, acks=-1, timeout_ms=30_000, topic_data=[topic])
        assert reply.responses[0].partition_responses[0].error_code == 0

    def describe(self, start: int, lease_ms: int) -> Any:
        kinds = call("DescribeSegments", 0).api.request
        topic = kinds.WantedTopic(name="t", partitions=[kinds.WantedPartition(partition_index=0, start_offset=start)])
        return self.ask("DescribeSegments", 0, target_bytes=1, lease_ms=lease_ms, topics=[topic])

    def extend(self, lease_id: int) -> int:
        (answer,) = self.ask("ExtendSegmentLease", 0, lease_ids=[lease_id], lease_ms=LEASE_MS).leases
        return int(answer.error_code)

    def keep_one_byte(self) -> None:
        """From now on retention takes every segment but the last."""
        kinds = call("IncrementalAlterConfigs", 1).api.request
        config = kinds.AlterableConfig(name="retention.bytes", config_operation=0, value="1")
        resource = kinds.AlterConfigsResource(resource_type=2, resource_name="t", configs=[config])
        assert self.ask("IncrementalAlterConfigs", 1, resources=[resource]).responses[0].error_code == 0

    def files(self) -> dict[int, bytes]:
        """The topic's `.log` files by base offset."""
        return {
            int(path.rpartition("/")[2][:20]): content
            for path, content in self.disk.contents().items()
            if "/t-0/" in path and path.endswith(".log")
        }


@pytest.mark.parametrize("seed", [1, 22, 333])
def test_a_plan_holds_while_its_lease_does(seed: int) -> None:
    story = Story(seed)
    story.ask("CreateTopics", 7, topics=[new_topic("t", 1, CONFIGS)], timeout_ms=5000)
    values = Random(seed)
    for _ in range(20):
        story.produce(values.randbytes(5000))
    story.wait(3)
    reply = story.describe(5, LEASE_MS)
    (found,) = reply.topics[0].partitions
    planned = {segment.base_offset: segment.size_bytes for segment in found.segments if segment.is_sealed}
    assert len(planned) >= 4
    for segment in found.segments:
        starts = {at: header.base_offset for at, header in batches(story.files()[segment.base_offset])}
        assert segment.index
        assert all(starts[entry.position] == entry.offset for entry in segment.index)
    story.keep_one_byte()
    story.wait(10)
    files = story.files()
    assert 0 not in files, "retention takes what lies before the lease"
    assert {base: len(files[base]) for base in planned} == planned
    assert story.extend(reply.lease_id) == 0
    story.wait(LEASE_MS / 1000 - 2)
    assert planned.keys() <= story.files().keys()
    story.wait(6)
    assert not planned.keys() & story.files().keys(), "it ran out, and retention went on"
    assert story.extend(reply.lease_id) == ErrorCode.RESOURCE_NOT_FOUND


def test_a_power_cut_ends_leases() -> None:
    story = Story(7)
    story.ask("CreateTopics", 7, topics=[new_topic("t", 1, CONFIGS)], timeout_ms=5000)
    for _ in range(12):
        story.produce(bytes(5000))
    story.wait(3)
    reply = story.describe(-1, LEASE_MS)
    before = [s for s in reply.topics[0].partitions[0].segments if s.is_sealed]
    assert before
    assert reply.lease_id >= 0
    story.node.power_cut()
    story.client.drop()
    story.node.start()
    assert story.extend(reply.lease_id) == ErrorCode.RESOURCE_NOT_FOUND
    again = [s for s in story.describe(-1, 0).topics[0].partitions[0].segments if s.is_sealed]
    assert [(s.base_offset, s.size_bytes) for s in again[: len(before)]] == [
        (s.base_offset, s.size_bytes) for s in before
    ]
