"""Two live drivers, in two JVMs, on one checkpoint: the younger fences the older, and no batch is written twice.

Not part of the default run (`make torture-spark`): it starts five drivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from driver_process import SinkDriver, until
from sink_driver import ROWS, TOPIC
from sink_lab import create_topic, values
from tests.worlds.served_node import Served

from duramen.spark.sink.sink_points import AFTER_COMMIT, BEFORE_COMMIT

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Served]:
    node = Served(tmp_path)
    node.start()
    create_topic(node.bootstrap, TOPIC, 3)
    yield node
    node.kill()


def assert_each_once(node: Served, at_least: int) -> None:
    found = values(node.bootstrap, TOPIC)
    assert found == Counter(str(number).encode() for number in range(len(found)))
    assert len(found) % ROWS == 0
    assert len(found) >= at_least * ROWS


def assert_none_twice(node: Served, batches: int) -> None:
    """The same, of the first batches, while a driver writes more: one partition is read after the other."""
    found = values(node.bootstrap, TOPIC)
    assert found.most_common(1)[0][1] == 1
    assert not {str(number).encode() for number in range(batches * ROWS)} - found.keys()


def test_of_two_drivers_the_younger_goes_on_and_no_batch_is_written_twice(node: Served, tmp_path: Path) -> None:
    """The older one stands before its commit or behind it, while the younger one does the same batch and more."""
    checkpoint = str(tmp_path / "checkpoint")
    with ExitStack() as running:

        def driver(name: str) -> SinkDriver:
            started = SinkDriver(tmp_path / name, node.bootstrap, "--checkpoint", checkpoint)
            running.callback(started.kill)
            return started

        older = driver("driver-0")
        for point in (BEFORE_COMMIT, AFTER_COMMIT):
            older.points.set(point, "hold")
            older.gets_to(point, lambda older=older, point=point: older.points.held(point))
            reached = older.progress()
            younger = driver(f"driver-{point}")
            younger.gets_to("more batches", lambda younger=younger, more=reached + 3: younger.progress() >= more)
            assert older.running
            assert older.progress() == reached, "it stands still"
            older.points.release(point)
            assert older.ends() != 0
            if point == BEFORE_COMMIT:
                assert "another run writes as sink" in older.log(), older.log()
            assert younger.running, younger.log()
            assert_none_twice(node, reached + 3)
            older = younger
        last = _both_at_once(older, driver("driver-free"))
        after = driver("driver-after")
        after.gets_to("more batches", lambda: after.progress() > last)
        assert after.stop() == 0, after.log()
    assert_each_once(node, last + 2)


def _both_at_once(older: SinkDriver, younger: SinkDriver) -> int:
    """Neither waits for the other until one has ended, by the sink's word or Spark's own; the last batch of both."""
    until(lambda: not older.running or not younger.running, "the end of one of two drivers", younger.log)
    for one in (older, younger):
        if not one.running:
            assert one.ends() != 0
            assert "another run writes as sink" in one.log() or "CONCURRENT_STREAM_LOG_UPDATE" in one.log(), one.log()
        one.kill()
    return max(older.progress(), younger.progress())
