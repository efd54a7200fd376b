"""Speculation as Spark does it: of two attempts of a slow task both stage, one is committed.

Not part of the default run (`make torture-spark`). Spark never speculates on the same host, so this is a standalone
master with two workers, which are told apart as 127.0.0.1 and localhost.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from driver_process import SinkDriver, until
from sink_driver import ROWS, SINK_ID, TOPIC
from sink_lab import create_topic, values
from spark_processes import alive
from tests.spark.clusters import LOOPBACK, standalone
from tests.worlds.served_node import Served

from duramen.client import Cluster
from duramen.spark.sink.sink_calls import SinkCalls
from duramen.spark.sink.sink_points import AFTER_STAGE, BEFORE_COMMIT

pytestmark = pytest.mark.timeout(1500)

TASKS = 4
CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
}


def test_the_share_of_the_slower_attempt_is_not_committed(tmp_path: Path) -> None:
    node = Served(tmp_path)
    node.start()
    try:
        create_topic(node.bootstrap, TOPIC, 1)
        with (
            standalone(tmp_path / "standalone", (LOOPBACK, "localhost")) as spark,
            ExitStack() as running,
            Cluster(node.bootstrap) as cluster,
        ):
            folder = tmp_path / "driver"
            conf = [word for name, value in CONF.items() for word in ("--conf", f"{name}={value}")]
            calls = SinkCalls(cluster, SINK_ID, timeout_s=30, wait_s=15)
            driver = SinkDriver(folder, node.bootstrap, "--master", spark.url, "--tasks", str(TASKS), *conf)
            running.callback(driver.kill)
            driver.points.set(AFTER_STAGE, "hold")
            driver.points.set(BEFORE_COMMIT, "hold")
            driver.gets_to("a slow task", lambda: driver.points.held(AFTER_STAGE))
            slow = driver.points.held(AFTER_STAGE)
            assert slow is not None
            driver.gets_to("the commit, with a task that does not end", lambda: driver.points.held(BEFORE_COMMIT))
            # The slow attempt staged before it stood still, and another attempt of the same task did, too.
            staged = calls.describe().staged_handles
            assert staged == TASKS + 1, f"{staged} pieces are staged: Spark did not speculate\n{driver.log()}"
            driver.points.release(BEFORE_COMMIT)
            assert driver.ends() == 0, driver.log()
            told = calls.describe()
            assert (told.last_batch_id, told.staged_handles) == (0, 0)
            assert [batch.records for batch in told.batches] == [TASKS * ROWS]
            until(lambda: not alive(slow.pid), "the end of the slow attempt")
        assert values(node.bootstrap, TOPIC) == Counter(str(number).encode() for number in range(TASKS * ROWS))
    finally:
        node.kill()
