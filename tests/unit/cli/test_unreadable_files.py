"""The disk cannot read one file of a data directory: it is named, put aside, and all else is there."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing, contextmanager
from random import Random
from unittest.mock import patch

import pytest
from tests.worlds.broker_world import InProcess
from tests.worlds.lost_metadata_world import delete, repaired, stopped

from duramen.cli.log import repair as repair_command
from duramen.cli.log.repair import CannotError
from duramen.errors import CorruptLogError
from duramen.model import TopicPartition
from duramen.ports import File
from duramen.sim.world.disk import CrashDisk, DiskCall
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.repair.verify import verify_directory
from duramen.wire.batch import batches

RECORDS = 41
READS = {"pread", "preadv", "pread_nowait", "read_cold", "read_back"}


def filled(*, clean: bool) -> CrashDisk:
    """Two segments of a topic, several snapshots of the metadata; behind a kill the last record is in the journal."""
    server = InProcess(metadata_log_max_record_bytes_between_snapshots="1")
    line = server.connect()
    line.create_topic("t", segment_bytes="1048576")
    for _ in range(RECORDS - 1):
        line.produce("t", b"x" * 60_000)
    server.pass_ms(60_000)
    if not clean:
        server = InProcess(stopped(server))
        server.pass_ms(60_000)
    server.connect().produce("t", b"last")
    if clean:
        return stopped(server)
    server.disk.kill()
    server.disk.power_on()
    return server.disk


def fail(disk: CrashDisk, path: str) -> None:
    """No byte of the file that is there now can be read."""
    bad = OSError(errno.EIO, "Input/output error", path)

    def fault(call: DiskCall) -> OSError | None:
        if call.operation == "rename" and path in call.path.split(" -> "):
            disk.fault = lambda call: None  # another file has that name from here on
        return bad if call.path == path and call.operation in READS else None

    disk.fault = fault


def whole(disk: CrashDisk) -> None:
    """A start has all records, and the next one has nothing to tell."""
    for number in range(2):
        server = InProcess(disk)
        partition = server.broker.store.partitions[TopicPartition("t", 0)]
        assert (partition.log_start_offset, partition.log_end_offset) == (0, RECORDS + number)
        assert server.connect().produce("t", b"more").base_offset == RECORDS + number
        events = {event for event, _ in server.events}
        assert "partition-offline" not in events
        assert number == 0 or "damage" not in events
        assert not list(verify_directory(stopped(server), "/data", lambda size: None, decode=True).all_findings())


@pytest.mark.parametrize("clean", [True, False])
def test_each_but_segments_and_journal_is_put_aside_and_nothing_is_lost(clean: bool) -> None:
    """verify, repair and most starts ended with an error of the system for it, whatever else there was."""
    disk = filled(clean=clean)
    small = [
        path
        for path, content in sorted(disk.contents().items())
        if content and not path.endswith((".log", ".part", "/.lock", "/duramen-reserve", "/duramen-scrub"))
    ]
    assert len(small) > 20
    for path in small:
        copy = disk.copy(Random(1))
        fail(copy, path)
        told = list(verify_directory(copy, "/data", lambda size: None).all_findings())
        assert path in {finding.path for finding in told if finding.kind == "damage"}, path
        assert repaired(copy) == 0, path
        whole(copy)


def test_so_it_is_with_the_journal_behind_a_clean_stop() -> None:
    disk = filled(clean=True)
    (part,) = [path for path in disk.contents() if path.endswith(".part")]
    fail(disk, part)
    server = InProcess(disk)
    assert server.connect().produce("t", b"more").base_offset == RECORDS


def test_a_journal_that_cannot_be_read_is_gone_on_without() -> None:
    """It may have had anything: that is told, and what the segments have is served."""
    disk = filled(clean=False)
    part = max(path for path in disk.contents() if path.endswith(".part"))
    fail(disk, part)
    with pytest.raises(CorruptLogError, match="the disk cannot read it"):
        InProcess(disk)
    disk.end_process()
    with pytest.raises(CannotError, match="use --journal"):
        repaired(disk)
    with patch.object(repair_command, "RealDisk", lambda: disk):
        assert repair_command.command.callback("/data", None, None, True, False, True, True) == 1  # type: ignore[misc]
    disk.fault = lambda call: None
    assert read_losses(disk, "/data")
    server = InProcess(disk)
    partition = server.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.log_end_offset >= RECORDS - 1


@contextmanager
def bad_sector(disk: CrashDisk, path: str, at: int) -> Iterator[None]:
    """Of that file the 4 KiB around byte `at` cannot be read."""
    with closing(disk.open(path)) as file:
        kind = type(file)
    whole_read = kind.pread
    start = at - at % 4096

    def pread(file: File, length: int, position: int) -> bytes:
        if file.path == path and position < start + 4096 and position + length > start:
            raise OSError(errno.EIO, "Input/output error", path)
        return whole_read(file, length, position)

    with patch.object(kind, "pread", pread):
        yield


def test_the_last_sector_of_a_journal_is_no_torn_tail() -> None:
    """Zeros in its place would look like one, and what was acknowledged there be cut off untold."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    for _ in range(8):
        line.produce("t", b"x" * 9000)
    disk = server.disk
    disk.kill()
    disk.power_on()
    parts = {path: len(data.rstrip(b"\0")) for path, data in disk.contents().items() if path.endswith(".part")}
    used, part = max((used, path) for path, used in parts.items())
    with bad_sector(disk, part, used - 1), pytest.raises(CorruptLogError, match="the disk cannot read it") as told:
        InProcess(disk)
    assert (told.value.start, told.value.end) == (used - 1 - (used - 1) % 4096, (used - 1) // 4096 * 4096 + 4096)


@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_keeps_what_can_be_read(clean: bool, where: str) -> None:
    """verify and repair ended with an error of the system, so there was no way on for all the rest of the log."""
    disk = filled(clean=clean)
    segments = sorted(name for name in disk.list_directory("/data/t-0") if name.endswith(".log"))
    assert len(segments) > 2
    path = f"/data/t-0/{segments[{'first': 0, 'middle': 1, 'last': -1}[where]]}"
    content = disk.contents()[path]
    at = {"first": 0, "middle": len(content) // 2, "last": len(content.rstrip(b"\0")) - 70_000}[where]
    sector = at - at % 4096
    with bad_sector(disk, path, at):
        report = verify_directory(disk, "/data", lambda size: None)
        told = [finding for finding in report.all_findings() if finding.what == "the disk cannot read it"]
        assert [(finding.path, finding.start, finding.end) for finding in told] == [(path, sector, sector + 4096)]
        assert repaired(disk) == 1
    (loss,) = read_losses(disk, "/data")
    assert loss["partition"] == "t-0"
    assert 1 <= loss["last_offset"] - loss["first_offset"] + 1 <= 2  # a batch each
    server = InProcess(disk)
    partition = server.broker.store.partitions[TopicPartition("t", 0)]
    assert partition.log_end_offset == RECORDS
    line = server.connect()
    found, offset = [], 0
    while offset < RECORDS:
        answer = line.fetch("t", offset)
        assert answer.error_code == 0
        for _, header in batches(memoryview(b"".join(map(bytes, [answer.records])))):
            found.append(header.base_offset)
            offset = header.next_offset
    assert found == [each for each in range(RECORDS) if not loss["first_offset"] <= each <= loss["last_offset"]]
    assert line.produce("t", b"more").base_offset == RECORDS


def test_where_nothing_else_has_the_identity_it_is_not_made_up() -> None:
    server = InProcess()
    server.connect().create_topic("t")
    disk = server.disk
    disk.kill()
    disk.power_on()
    assert not disk.exists("/data/duramen-directory")
    fail(disk, "/data/meta.properties")
    with pytest.raises(CannotError, match=r"meta.properties: Input/output error"):
        repaired(disk)


def test_a_journal_and_a_small_file_that_cannot_be_read() -> None:
    """--journal read the small file, and the repair that puts it aside sent people to --journal."""
    disk = filled(clean=False)
    part = max(path for path in disk.contents() if path.endswith(".part"))
    others = [
        path
        for path, content in sorted(disk.contents().items())
        if content and not path.endswith((".log", ".part", "/.lock", "/duramen-reserve", "/duramen-scrub"))
    ]
    for path in others:
        copy = disk.copy(Random(1))
        away = {part, path}

        def fault(call: DiskCall, away: set[str] = away) -> OSError | None:
            away -= set(call.path.split(" -> ")) if call.operation in ("rename", "remove") else set()
            return OSError(errno.EIO, "bad", call.path) if call.operation in READS and call.path in away else None

        copy.fault = fault
        with patch.object(repair_command, "RealDisk", lambda disk=copy: disk):
            assert repair_command.command.callback("/data", None, None, True, False, True, False) == 1, path  # type: ignore[misc]
        assert read_losses(copy, "/data")
        server = InProcess(copy)
        assert server.broker.store.partitions[TopicPartition("t", 0)].log_end_offset >= RECORDS - 1, path


def test_nothing_is_moved_from_a_node_that_was_started_during_the_question() -> None:
    disk = filled(clean=False)
    small = "/data/t-0/leader-epoch-checkpoint"
    away = {small, max(path for path in disk.contents() if path.endswith(".part"))}
    bad = OSError(errno.EIO, "bad")
    disk.fault = lambda call: bad if call.operation in READS and call.path in away else None
    with (
        patch.object(repair_command, "RealDisk", lambda: disk),
        patch.object(repair_command, "confirm", lambda question, yes: disk.lock("/data/.lock")),
        pytest.raises(CannotError, match="another process uses this directory"),
    ):
        repair_command.command.callback("/data", None, None, True, False, False, True)  # type: ignore[misc]
    assert disk.exists(small)
    assert not disk.exists("/data/duramen-lost")


@pytest.mark.parametrize("clean", [True, False])
def test_a_list_of_losses_that_cannot_be_read_keeps_what_it_may_have_said(clean: bool) -> None:
    """The start ended with the system's error, and repair had nothing to do."""
    disk = filled(clean=clean)
    path = "/data/t-0/00000000000000000000.log"
    for at in range(400_000, 401_000):
        disk.damage(path, at, 0x5A)
    assert repaired(disk) == 1
    before = read_losses(disk, "/data")
    stopped(InProcess(disk))
    if not clean:
        server = InProcess(disk)
        server.disk.kill()
        server.disk.power_on()
    fail(disk, "/data/duramen-lost/losses")
    assert "/data/duramen-lost/losses" in {
        finding.path for finding in verify_directory(disk, "/data", lambda size: None).all_findings()
    }
    repaired(disk)
    after = read_losses(disk, "/data")
    assert [loss["partition"] for loss in after if loss not in before] == ["__cluster_metadata-0"] + ["t-0"] * (
        len(after) - 1
    )
    server = InProcess(disk)
    assert "metadata-incomplete" in {event for event, _ in server.events}
    assert server.connect().produce("t", b"more").error_code == 0


def test_so_it_does_beside_a_journal_that_cannot_be_read() -> None:
    disk = filled(clean=False)
    for _ in range(2):
        names = [f"/data/{name}" for name in disk.list_directory("/data") if name.endswith(".part")]
        parts = {path: disk.contents()[path].rstrip(b"\0") for path in names}
        away = {max(parts, key=lambda path: len(parts[path])), "/data/duramen-lost/losses"}

        def fault(call: DiskCall, away: set[str] = away) -> OSError | None:
            away -= set(call.path.split(" -> ")) if call.operation in ("rename", "remove") else set()
            return OSError(errno.EIO, "bad", call.path) if call.operation in READS and call.path in away else None

        disk.fault = fault
        with patch.object(repair_command, "RealDisk", lambda: disk):
            assert repair_command.command.callback("/data", None, None, True, False, True, False) == 1  # type: ignore[misc]
        assert read_losses(disk, "/data")
        server = InProcess(disk)
        server.connect().produce("t", b"more")
        disk.kill()
        disk.power_on()


def test_deleted_records_stay_deleted_where_nothing_else_says_so() -> None:
    """Kafka's file was put aside, and the records were there again."""
    disk = filled(clean=True)
    disk.remove("/data/duramen-checkpoint")
    fail(disk, "/data/log-start-offset-checkpoint")
    with pytest.raises(CannotError, match="log-start-offset-checkpoint: Input/output error"):
        repaired(disk)
    assert disk.exists("/data/log-start-offset-checkpoint")


def test_a_deleted_topic_keeps_nobody_from_starting() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    server.lanes.held.add("housekeeping")
    delete(line, "t")
    disk = server.disk
    disk.kill()
    disk.power_on()
    (path,) = [path for path in disk.contents() if "-delete/" in path and path.endswith("partition.metadata")]
    fail(disk, path)
    assert InProcess(disk).broker.image.names() == []


def test_what_a_compaction_left_is_put_aside() -> None:
    for name in (".seal.swap", ".index.swap", ".log.swap", ".log.cleaned", ".seal.repaired"):
        disk = filled(clean=True)
        path = f"/data/t-0/00000000000000000000{name}"
        file = disk.open(path, create=True, write=True)
        file.pwritev([b"x" * 100], 0)
        file.close()
        fail(disk, path)
        assert repaired(disk) == 0, name
        disk.fault = lambda call: None
        whole(disk)
