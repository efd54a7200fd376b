"""How long a plan over 1,000 partitions takes: what Spark's driver asks of a node before each batch.

    python -m benchmarks.planning [--partitions 1000] [--rounds 15]

A fresh node, one small batch in each partition. Each figure is the wall time of one call of `duramen.client` on an open
connection (median and least of the rounds, after one to warm up), and the processor time of this process and of the
node in it. The last two are the whole plans of a batch query and of a micro-batch in which every partition has
something, as Spark asks for them: all that planning adds to Spark's own. What a plan costs depends on partitions and on
the boundaries asked for, not on how much history there is.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BinaryType, StructField, StructType

from benchmarks.duramen_broker import DuramenBroker
from benchmarks.topics import KEEPS_OLD_RECORDS, create_topic
from duramen.client import LATEST, Cluster
from duramen.client.blocking.segment_plans import describe_segments, release_leases
from duramen.model import TopicPartition
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.stream_reader import DuramenStreamReader
from duramen.wire.batch import build_batch

TOPIC = "planned"
SCHEMA = StructType([StructField("value", BinaryType())])


def fill(cluster: Cluster, partitions: int) -> list[TopicPartition]:
    """Create the topic and give every partition a batch."""
    create_topic(cluster, TOPIC, partitions, KEEPS_OLD_RECORDS)
    tps = [TopicPartition(TOPIC, number) for number in range(partitions)]
    for tp in tps:
        cluster.produce(tp, build_batch([(None, bytes(1000), (), 1_760_000_000_000)] * 10))
    return tps


def measure(broker: DuramenBroker, name: str, rounds: int, call: Callable[[], object]) -> None:
    """Print one line: median and least wall time, and the processor time of this process and of the node."""
    call()
    walls, own = [], []
    before = broker.cpu_seconds()
    for _ in range(rounds):
        wall, processor = time.perf_counter(), time.process_time()
        call()
        own.append(time.process_time() - processor)
        walls.append(time.perf_counter() - wall)
    node = (broker.cpu_seconds() - before) / rounds
    figures = statistics.median(walls), min(walls), statistics.median(own), node
    median, least, mine, its = (1000 * value for value in figures)
    print(f"{name:34} {median:7.1f} ms median {least:7.1f} ms least {mine:7.1f} ms processor {its:5.1f} ms the node's")


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

                given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": TOPIC}
                batch, stream = DuramenReader(given, SCHEMA), DuramenStreamReader(given, SCHEMA)
                nothing = {TOPIC: {str(tp.partition): 0 for tp in tps}}

                def micro_batch() -> None:
                    end = stream.latestOffset(nothing, ReadAllAvailable())
                    assert len(stream.partitions(nothing, end)) == len(tps)
                    stream.commit(end)

                for name, call in {
                    "metadata": lambda: cluster.partitions(TOPIC),
                    "latest offsets": lambda: cluster.list_offsets(dict.fromkeys(tps, LATEST)),
                    "metadata and segments": plan,
                    "segments, boundaries and a lease": leased,
                    "a batch query's whole plan": batch.partitions,
                    "a micro-batch's whole plan": micro_batch,
                }.items():
                    measure(broker, name, options.rounds, call)
                stream.stop()
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
