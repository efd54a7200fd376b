"""A start that is refused leaves the log directories as clean as it found them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.broker_world import CONTROLLER, CONTROLLER_PORT, InProcess

from duramen.errors import ConfigError, StorageError
from duramen.sim.world.disk import CrashDisk


class PortTaken(InProcess):
    """A broker whose port somebody else has."""

    def listen(self, host: str, port: int, on_accept: Callable[[Any], None]) -> Any:
        raise OSError(errno.EADDRINUSE, "taken")


class ControllerPortTaken(InProcess):
    """A node whose controller's port somebody else has."""

    def listen(self, host: str, port: int, on_accept: Callable[[Any], None]) -> Any:
        if port == CONTROLLER_PORT:
            raise OSError(errno.EADDRINUSE, "taken")
        return super().listen(host, port, on_accept)


def stopped(disk: CrashDisk, **settings: str) -> None:
    """A node with a record in a topic, stopped."""
    server = InProcess(disk, **settings)
    line = server.connect()
    line.create_topic("t")
    assert line.produce("t", b"x").error_code == 0
    server.broker.stop(lambda: None)
    server.run()


def found_clean(server: InProcess) -> list[bool]:
    """Of each directory, whether this start found it clean."""
    return [fields["clean"] for event, fields in server.events if event == "recovered"]


@pytest.mark.parametrize("directories", ["/data", "/data,/more"])
def test_a_taken_port_leaves_a_clean_directory_clean(directories: str) -> None:
    disk = CrashDisk()
    stopped(disk, log_dirs=directories)
    with pytest.raises(ConfigError, match="is in use"):
        PortTaken(disk, log_dirs=directories)
    server = InProcess(disk, log_dirs=directories)
    assert found_clean(server) == [True] * len(directories.split(","))
    assert server.connect().fetch("t", 0).high_watermark == 1


def test_a_second_directory_that_is_refused_leaves_the_first_one_clean() -> None:
    disk = CrashDisk()
    stopped(disk)
    stopped(disk, log_dirs="/others", node_id="7")
    with pytest.raises(StorageError):
        InProcess(disk, log_dirs="/data,/others")
    assert found_clean(InProcess(disk)) == [True]


def test_a_controller_s_port_that_is_taken_refuses_the_start_like_any_other() -> None:
    disk = CrashDisk()
    stopped(disk)
    remedy = "listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:PORT"
    with pytest.raises(ConfigError, match=f"CONTROLLER://127.0.0.1:{CONTROLLER_PORT} is in use.*{remedy}"):
        ControllerPortTaken(disk, **CONTROLLER)
    assert found_clean(InProcess(disk)) == [True]
