"""Retention beside readers, at random moments: a run reads every offset of its range, or names exactly those it lost.

make expiry-spark is the long version; a run that fails names its seed.
"""

from __future__ import annotations

import json
import os
import random
import re
import threading
from collections.abc import Iterator

import pytest
from pyspark.sql.types import StructType
from tests.spark.log_node import LogNode, log_node

from duramen.client import CONTROLLER, Cluster
from duramen.model import TopicPartition
from duramen.spark.source.batch_reader import DuramenReader
from duramen.spark.source.data_loss import DataLossError
from duramen.spark.source.stream_reader import DuramenStreamReader
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

RUNS = int(os.environ.get("EXPIRY_RUNS", "10"))
SCHEMA = StructType().add("offset", "long")
BATCHES, RECORDS = 30, 7
END = BATCHES * RECORDS
FIRST_BATCH, AT_THE_END = "when the first batch was read", "when everything was read"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogNode]:
    settings = {"log_retention_ms": "-1", "offsets_topic_num_partitions": "1", "log_segment_delete_delay_ms": "0"}
    with log_node(tmp_path_factory.mktemp("log"), **settings) as served:
        yield served


def make_topic(cluster: Cluster, topic: str, chance: random.Random) -> None:
    message = API[19].request
    wanted = message.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    assert cluster.call(CONTROLLER, 19, message.new(topics=[wanted], timeout_ms=9000)).topics[0].error_code == 0
    for _ in range(BATCHES):
        records = [(None, bytes(chance.randrange(20_000)), (), 1) for _ in range(RECORDS)]
        cluster.produce(TopicPartition(topic, 0), build_batch(records, compression=chance.choice((0, 3))))


def delete_before(cluster: Cluster, topic: str, offset: int) -> None:
    message = API[21].request
    partition = message.DeleteRecordsPartition(partition_index=0, offset=offset)
    wanted = message.DeleteRecordsTopic(name=topic, partitions=[partition])
    answer = cluster.call(TopicPartition(topic, 0), 21, message.new(topics=[wanted], timeout_ms=9000))
    assert answer.topics[0].partitions[0].error_code == 0


@pytest.mark.timeout(20 + 2 * RUNS)
@pytest.mark.parametrize("fail", [True, False])
def test_no_silent_gap_whenever_records_expire(node: LogNode, fail: bool, caplog: pytest.LogCaptureFixture) -> None:
    losses = whole = 0
    with Cluster(node.bootstrap) as cluster:
        for seed in range(RUNS):
            chance = random.Random(seed)
            topic = f"expiry-{fail}-{seed}"
            make_topic(cluster, topic, chance)
            # The first two runs do not depend on how fast the machine is: one loses records for certain, one none.
            moment = (FIRST_BATCH, AT_THE_END)[seed] if seed < 2 else None
            lost, read = one_run(node, topic, chance, fail, moment)
            assert sorted(read) == read, seed
            if lost is None and fail:
                assert read == list(range(END)), seed
                whole += 1
            elif lost is not None:
                losses += 1
                assert 0 <= lost.start < lost.end <= END, seed
                assert read == list(range(lost.start)), (seed, lost)  # all before it, nothing of it
            else:
                named = {offset for low, high in named_losses(caplog) for offset in range(low, high + 1)}
                assert named == set(range(END)) - set(read), seed
                losses += bool(named)
            caplog.clear()
    assert losses, "no run met its expiry: the test asks nothing"
    assert whole or not fail, "no run was whole"


def named_losses(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int]]:
    """First and last offset of each loss that was warned of."""
    found = re.findall(r"offsets (\d+) to (\d+) of expiry", caplog.text)
    return [(int(low), int(high)) for low, high in found]


def one_run(
    node: LogNode, topic: str, chance: random.Random, fail: bool, moment: str | None
) -> tuple[DataLossError | None, list[int]]:
    """Read the topic in small splits while its front is deleted: what was lost by name, and what was read.

    moment: when that happens; None for any time.
    """
    given = {"kafka.bootstrap.servers": node.bootstrap, "subscribe": topic, "failOnDataLoss": str(fail)}
    given |= {"targetPartitionBytes": "300k", "kafka.fetch.max.bytes": "100k", "readFrom": "broker"}
    chosen = chance.random() < 0.5
    # An explicit offset: `earliest` is wherever the log starts when it is asked.
    explicit = {**given, "startingOffsets": json.dumps({topic: {"0": 0}})}
    source: DuramenReader | DuramenStreamReader
    source = (
        DuramenReader(explicit, SCHEMA)
        if chosen
        else DuramenStreamReader({**given, "startingOffsets": "earliest"}, SCHEMA)
    )
    upto, delay = chance.randrange(1, END), chance.random() * 0.12
    upto = upto if moment is None else END
    with Cluster(node.bootstrap) as other:
        timer = threading.Timer(delay, delete_before, (other, topic, upto))
        if moment is None:
            timer.start()
        read: list[int] = []
        try:
            if isinstance(source, DuramenReader):
                parts = source.partitions()
            else:
                parts = source.partitions({topic: {"0": 0}}, {topic: {"0": END}})
            for part in parts:
                for batch in source.read(part):
                    if moment == FIRST_BATCH and not read:
                        delete_before(other, topic, upto)
                    read += batch.column("offset").to_pylist()
            if moment == AT_THE_END:
                delete_before(other, topic, upto)
        except DataLossError as error:
            return error, read
        finally:
            if moment is None:
                timer.join()
            if isinstance(source, DuramenStreamReader):
                source.stop()
    return None, read
