"""Calls that fail: every method of the Disk port that can, and no hint to the kernel."""

from __future__ import annotations

import errno
from collections import Counter
from random import Random

import pytest

from duramen.ports import Disk, File
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.sim.world.disk_faults import HINTS, OPERATIONS, Errors

NO_CALLS_OF_THEIR_OWN = {"fileno", "resident", "nonresident", "read_cold", "read_back", "close"}
"""Methods that ask nothing of a simulated disk, or read as `pread` does."""
OF_THE_MACHINE = {"cache_bytes", "descriptor_limit"}


def always_failing() -> Errors:
    errors = Errors(Random(1), Counter())
    errors.operation = None
    errors._chance, errors._skip, errors._left = 1.0, 0, 1 << 30
    return errors


def test_every_method_of_the_port_can_fail_or_is_known_not_to() -> None:
    methods = {name for port in (Disk, File) for name in vars(port) if not name.startswith("_")}
    assert methods == {*OPERATIONS, *HINTS, *NO_CALLS_OF_THEIR_OWN, *OF_THE_MACHINE}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_what_can_fail_does(operation: str) -> None:
    error = always_failing()(DiskCall(1, operation, "/data/a", 0))
    assert error is not None
    assert error.errno in (errno.EIO, errno.ENOSPC, errno.EACCES)


def test_hints_do_not_fail_while_everything_else_does() -> None:
    disk = CrashDisk()
    disk.make_directories("/data")
    file = disk.open("/data/a", create=True, write=True)
    disk.fault = always_failing()
    file.drop_cache(0, 4096)
    file.backdate(1)
    with pytest.raises(OSError, match="/data/a"):
        disk.modified_ms("/data/a")
