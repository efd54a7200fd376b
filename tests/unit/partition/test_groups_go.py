"""What the journal has written is let go at once, not when Python collects garbage."""

from __future__ import annotations

import gc

from tests.unit.server.broker_world import InProcess

from duramen.sim.disk import CrashDisk
from duramen.storage.journal import Group


def test_a_written_group_leaves_nothing_for_the_garbage_collector() -> None:
    """Its records are clients' buffers: half a gigabyte of them lay there, and connections ended for want of it."""
    server = InProcess(CrashDisk())
    line = server.connect()
    line.create_topic("t")
    gc.collect()
    gc.disable()
    try:
        for _ in range(5):
            assert line.produce("t", b"x" * 100_000).error_code == 0
        assert server.broker.store.statistics.groups > 5
        assert sum(isinstance(thing, Group) for thing in gc.get_objects()) <= 1
    finally:
        gc.enable()
