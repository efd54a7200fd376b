"""The session with Spark's own Kafka connector in it, and a node for it; skipped where its jars cannot be had."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from benchmarks.connector_jars import connector_jars
from benchmarks.kafka_peer import PeerUnavailableError
from kafka_format import KafkaFormat
from pyspark.sql import SparkSession
from tests.spark.log_node import log_node

SETTINGS = {
    "log_retention_ms": "-1",  # the records are of 1970
    "offsets_topic_num_partitions": "2",
    "log_cleaner_backoff_ms": "200",
    "log_flush_offset_checkpoint_interval_ms": "500",
}


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaFormat]:
    """`format("kafka")` against a node of ours.

    A session that starts here starts with the jars, as `--packages` does it; one that other tests have started gets
    them late, which is enough to read and write (but its driver cannot load the connector's own exceptions).
    """
    try:
        jars = connector_jars(90)
    except PeerUnavailableError as why:
        pytest.skip(str(why))
    running = SparkSession.getActiveSession()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {','.join(jars)} pyspark-shell")
        spark: SparkSession = request.getfixturevalue("spark")
    for jar in jars if running else ():
        spark.sql(f"ADD JAR '{jar}'")
    with log_node(tmp_path_factory.mktemp("connector"), **SETTINGS) as node:
        yield KafkaFormat(spark, node)
