"""A sink against a real node that is killed at any moment: what was committed is read once and in order."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

from tests.worlds.served_node import Served

from duramen.client import CONTROLLER, Cluster, CoordinatorKey
from duramen.model import TopicPartition
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.run.cluster import PipelineNode
from duramen.wire.batch import batches, build_batch, records
from duramen.wire.messages import API

TIME = 1_760_000_000_000
CREATE_TOPICS, CLAIM, STAGE, COMMIT = 19, 10000, 10001, 10002
SINK = CoordinatorKey("sink", 100)
TOPIC = "sunk"
KILLS = 6
MOVED = 100


def batch(values: list[bytes]) -> bytes:
    return bytes(build_batch([(b"k", value, (), TIME) for value in values]))


class Driver:
    """One run, which retries whatever may be retried."""

    def __init__(self, cluster: Cluster, run: int) -> None:
        self.cluster = cluster
        claimed = self.call(CLAIM, run_id=f"run-{run}", ephemeral=False)
        assert claimed.error_code == 0, claimed
        self.epoch = claimed.epoch

    def call(self, key: int, **fields: Any) -> Any:
        request = API[key].request.new(sink_id=SINK.key, **fields)
        return self.cluster.call(SINK, key, request, code_of=lambda reply: reply.error_code, wait_s=5)

    def stage(self, batch_id: int, partition: int, data: bytes) -> int | None:
        """The handle; None when the batch is committed."""
        request = API[STAGE].request
        piece = request.StagePartition(index=partition, records=data)
        topics = [request.StageTopic(name=TOPIC, partitions=[piece])]
        while True:
            reply = self.call(STAGE, epoch=self.epoch, batch_id=batch_id, task="t", timeout_ms=5000, topics=topics)
            assert reply.error_code == 0, reply
            if reply.already_committed:
                return None
            entry = reply.topics[0].partitions[0]
            if entry.error_code == 0:
                return int(entry.handle)
            time.sleep(0.02)  # its topic's partitions are still being opened

    def commit(self, batch_id: int, handles: list[int]) -> Any:
        reply = self.call(COMMIT, epoch=self.epoch, batch_id=batch_id, handles=handles, metadata=None, timeout_ms=5000)
        assert (reply.error_code, reply.state) == (0, 2), reply
        return reply


def create(cluster: Cluster) -> None:
    message = API[CREATE_TOPICS].request
    wanted = message.CreatableTopic(name=TOPIC, num_partitions=2, replication_factor=1)
    reply = cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[wanted], timeout_ms=10_000))
    assert reply.topics[0].error_code == 0, reply


def everything(cluster: Cluster, partition: int) -> list[bytes]:
    found: list[bytes] = []
    offset = 0
    while True:
        part = cluster.fetch(TopicPartition(TOPIC, partition), offset, max_wait_ms=10)
        for position, header in batches(part.data):
            for record in records(part.data[position : position + header.size], max_bytes=16 << 20):
                found.append(bytes(record.value or b"")[:20].rstrip(b"."))
        if part.next_offset >= part.high_watermark:
            return found
        offset = part.next_offset


def test_whether_all_of_a_batch_can_be_read_is_told_behind_a_kill(tmp_path: Path) -> None:
    """Ends of topics that are asked for when nothing is on its way are those that a cut may take."""
    node = Served(tmp_path)
    node.start()
    with Cluster(node.bootstrap, timeout_s=60) as cluster:
        create(cluster)
        driver = Driver(cluster, 1)
        handles = [driver.stage(0, number % 2, batch([bytes(900_000)])) for number in range(MOVED)]
        request = API[COMMIT].request.new(
            sink_id=SINK.key, epoch=driver.epoch, batch_id=0, handles=handles, metadata=None, timeout_ms=1
        )
        while cluster.call(SINK, COMMIT, request, wait_s=5).state == 0:
            pass
    node.kill()
    node.start()
    asked = PipelineNode(node.bootstrap)
    while asked.unread(SINK.key) is not None:
        time.sleep(0.05)
    assert asked.ends(TOPIC) == Offsets({(TOPIC, 0): MOVED // 2, (TOPIC, 1): MOVED // 2})
    assert asked.unread("nobody's") is None
    node.stop()


def test_batches_are_there_once_whenever_the_node_is_killed(tmp_path: Path) -> None:
    chance = random.Random(7)
    node = Served(tmp_path)
    node.start()
    expected: list[list[bytes]] = [[], []]
    finished = threading.Event()
    killed: list[float] = []

    def kill() -> None:
        moments = random.Random(8)
        while len(killed) < KILLS and not finished.wait(moments.uniform(0.05, 0.6)):
            node.kill()
            killed.append(time.monotonic())
            node.start()

    killer = threading.Thread(target=kill)
    run = 1
    with Cluster(node.bootstrap, timeout_s=60) as cluster:
        create(cluster)
        driver = Driver(cluster, run)
        killer.start()
        batch_id = 0
        while len(killed) < KILLS or batch_id < 20:
            attempt: list[list[bytes]] = [[], []]
            handles: list[int] = []
            for task in range(4):
                partition = task % 2
                # Every eighth batch is large enough to go around the journal.
                padding = 300_000 if batch_id % 8 == 0 else 100
                values = [f"{batch_id}:{task}:{number}".encode() for number in range(4)]
                handle = driver.stage(
                    batch_id, partition, batch([value.ljust(padding, b".") for value in values[:2]]) + batch(values[2:])
                )
                if handle is not None:
                    handles.append(handle)
                attempt[partition] += values
            if chance.random() < 0.2:  # this driver dies; the next one does it all again
                run += 1
                driver = Driver(cluster, run)
                continue
            driver.commit(batch_id, handles)
            if chance.random() < 0.2:
                assert driver.commit(batch_id, handles).already_committed
            for partition in range(2):
                expected[partition] += attempt[partition]
            batch_id += 1
        finished.set()
        killer.join(30)
        assert [everything(cluster, partition) for partition in range(2)] == expected
    assert len(killed) == KILLS
    node.stop()
