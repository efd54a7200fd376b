"""What a request leaves is let go at once, not when Python collects garbage, which may be gigabytes later."""

from __future__ import annotations

import gc

import pytest
from tests.worlds.broker_world import InProcess

from duramen.sim.world.disk import CrashDisk


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_requests_and_the_work_behind_them_leave_no_garbage(durability: str) -> None:
    """A circle that kept the journal's groups held half a gigabyte of records; connections ended for want of memory."""
    server = InProcess(CrashDisk())
    line = server.connect()
    line.create_topic("t", duramen_ack_durability=durability)
    for _ in range(2):  # what is made once does not count
        gc.collect()
        gc.disable()
        try:
            for _ in range(20):
                assert line.produce("t", b"x" * 10_000).error_code == 0
                assert line.fetch("t", 0).error_code == 0
            server.pass_ms(60_000)
            found = gc.collect()
        finally:
            gc.enable()
    assert found == 0
