"""What a marker rolls back is recorded in `.txnindex` before the marker is in the log: the file may find no room."""

from __future__ import annotations

import errno

import pytest
from tests.unit.storage.directory.test_log_directory_overlaps import NOW, begun, commit
from tests.worlds.stored_batches import stored_batches

from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.log.log import Log
from duramen.wire.batch import ABORT, build_batch, build_marker, parse_header


def put(log: Log, batch: bytes) -> None:
    log.append(batch, parse_header(memoryview(batch)), NOW)


def with_open_transaction() -> tuple[CrashDisk, LogDirectory, Log]:
    disk, directory, log = begun()
    row = [(b"k", b"v", (), NOW)]
    put(
        log,
        bytes(build_batch(row, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True, leader_epoch=0)),
    )
    commit(directory)
    return disk, directory, log


@pytest.mark.parametrize("call", ["open", "pwritev"])
def test_a_marker_whose_rollback_finds_no_room_is_refused_as_if_it_had_never_come(call: str) -> None:
    disk, directory, log = with_open_transaction()
    marker = bytes(build_marker(1, 0, ABORT, 0, NOW, base_offset=1, leader_epoch=0))

    def full(asked: DiskCall) -> OSError | None:
        wanted = asked.operation == call and asked.path.endswith(".txnindex")
        return OSError(errno.ENOSPC, "no room", asked.path) if wanted else None

    disk.fault = full
    with pytest.raises(OSError, match="no room"):
        put(log, marker)
    disk.fault = None
    assert (log.end_offset, log.active.aborted()) == (1, [])
    assert log.producers.has_transaction(1, 0)
    assert log.producers.first_unstable_offset == 0
    put(log, marker)
    commit(directory)
    assert [header.base_offset for header, _ in stored_batches(log, 0, 2, 1 << 20)] == [0, 1]
    assert log.active.aborted() == [(1, 0, 1, 2)]
    assert not log.producers.has_transaction(1, 0)
