"""A stop ends, whatever fails in it; the next start finds what was acknowledged."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import InProcess

from duramen.sim.world.disk import CrashDisk


@pytest.mark.parametrize("error", [MemoryError(), OSError(5, "broken")])
def test_an_error_while_the_files_are_closed_ends_the_stop_as_a_failed_one(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Short of address space the stop raised MemoryError, and the process lived on, neither ready nor to be ended."""
    disk = CrashDisk()
    server = InProcess(disk)
    line = server.connect()
    line.create_topic("t")
    assert line.produce("t", b"x").error_code == 0

    def fail(*_: object) -> None:
        raise error

    stopped: list[bool] = []
    with monkeypatch.context() as patched:
        patched.setattr("duramen.storage.directory.checkpointer.Checkpointer.sync_and_close", fail)
        server.broker.stop(lambda: stopped.append(True))
        server.run()
    assert stopped
    assert server.broker.unclean == [error]
    assert ("stop-failed", {"error": str(error) or repr(error)}) in server.events
    assert InProcess(disk).connect().fetch("t", 0).high_watermark == 1
