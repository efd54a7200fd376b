"""How long a plan over 1,000 partitions takes: what Spark's driver asks of a node before each batch.

    python -m benchmarks.planning [--partitions 1000] [--rounds 15]

A fresh node, one small batch in each partition. Each figure is the wall time of one call of `duramen.client` on an open
connection (median and least of the rounds, after one to warm up), and the processor time of this process in it. What
a plan costs depends on partitions and on the boundaries asked for, not on how much history there is.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.duramen_broker import DuramenBroker
from duramen.client import CONTROLLER, LATEST, Cluster
from duramen.client.segments import describe_segments, release_leases
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

CREATE_TOPICS = 19
TOPIC = "planned"


def fill(cluster: Cluster, partitions: int) -> list[TopicPartition]:
    """Create the topic and give every partition a batch."""
    message = API[CREATE_TOPICS].request
    kept = message.CreatableTopicConfig(name="retention.ms", value="-1")  # the records below are old
    wanted = message.CreatableTopic(name=TOPIC, num_partitions=partitions, replication_factor=1, configs=[kept])
    request = message.new(topics=[wanted], timeout_ms=120_000)
    reply = cluster.call(CONTROLLER, CREATE_TOPICS, request, wait_s=120, timeout_s=150, resend=False)
    assert reply.topics[0].error_code == 0, reply
    tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
    for tp in tps:
        cluster.produce(tp, build_batch([(None, bytes(1000), (), 1_760_000_000_000)] * 10))
    return tps


def measure(name: str, rounds: int, call: Callable[[], object]) -> None:
    """Print one line: median and least wall time, and the processor time of this process."""
    call()
    walls, own = [], []
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        call()
        own.append(time.process_time() - processor)
        walls.append(time.perf_counter() - wall)
    median, least, mine = (1000 * value for value in (statistics.median(walls), min(walls), statistics.median(own)))
    print(f"{name:34} {median:7.1f} ms median {least:7.1f} ms least {mine:7.1f} ms processor here")


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        broker = DuramenBroker(Path(folder) / "duramen")
        broker.prepare()
        broker.start()
        try:
            with Cluster(broker.bootstrap) as cluster:
                tps = fill(cluster, options.partitions)
                everything = dict.fromkeys(tps, (-1, -1))

                def plan() -> None:
                    cluster.partitions(TOPIC)
                    describe_segments(cluster, everything)

                def leased() -> None:
                    found = describe_segments(cluster, everything, target_bytes=64 << 20, lease_ms=60_000)
                    release_leases(cluster, found.leases)

                measure("metadata", options.rounds, lambda: cluster.partitions(TOPIC))
                measure("latest offsets", options.rounds, lambda: cluster.list_offsets(dict.fromkeys(tps, LATEST)))
                measure("metadata and segments", options.rounds, plan)
                measure("segments, boundaries and a lease", options.rounds, leased)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
