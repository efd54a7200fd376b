"""Two live drivers, in two JVMs, on one checkpoint: the younger fences the older, and no batch is written twice.

Not part of the default run (`make torture-spark`): it starts four drivers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from driver_process import SinkDriver
from sink_driver import ROWS, TOPIC
from sink_lab import create_topic, values

from duramen.spark.sink_points import AFTER_COMMIT, BEFORE_COMMIT
from serving import Served

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


def test_the_younger_of_two_drivers_fences_the_older(node: Served, tmp_path: Path) -> None:
    """The older one stands before its commit, behind it, or anywhere, while the younger one does the same batch."""
    checkpoint = str(tmp_path / "checkpoint")

    def driver(name: str) -> SinkDriver:
        started = SinkDriver(tmp_path / name, node.bootstrap, "--checkpoint", checkpoint)
        running.callback(started.kill)
        return started

    with ExitStack() as running:
        older = driver("driver-0")
        for number, point in enumerate((BEFORE_COMMIT, AFTER_COMMIT, None), 1):
            older.gets_to("its first batches", lambda older=older: older.progress() >= 1)
            if point is not None:
                older.points.set(point, "hold")
                older.gets_to(point, lambda older=older, point=point: older.points.held(point))
            reached = older.progress()
            younger = driver(f"driver-{number}")
            # Both are alive; where the older one is held, the younger one goes on with the very batch it stands in.
            wanted = reached + 3 if point is not None else 0
            younger.gets_to("batches of its own", lambda younger=younger, wanted=wanted: younger.progress() >= wanted)
            if point is not None:
                assert older.running
                assert older.progress() == reached
                older.points.release(point)
            assert older.ends() != 0
            assert "another run writes as sink" in older.log() or "oncurrent" in older.log(), older.log()
            if point == BEFORE_COMMIT:
                assert "another run writes as sink" in older.log(), older.log()
            assert younger.running, younger.log()
            assert_each_once(node, reached + 1)
            older = younger
        last = older.progress()
        older.gets_to("more batches", lambda: older.progress() >= last + 2)
        assert older.stop() == 0, older.log()
    assert_each_once(node, last + 2)
