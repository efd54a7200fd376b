"""Offsets far apart and far up: index entries have four bytes for the distance from their segment's base."""

from __future__ import annotations

import pytest
from tests.worlds.broker_world import NOW, InProcess, Line, claiming

from duramen.sim.world.disk import CrashDisk
from duramen.storage.files.atomic import replace_file
from duramen.wire import batch
from duramen.wire.batch import MAX_SEQUENCE, batches, build_batch

SETTINGS = {"retention_ms": "-1", "index_interval_bytes": "0"}


def of_many(count: int) -> bytearray:
    """One record that says it is so many."""
    return claiming(build_batch([(b"k", b"v", (), NOW)]), last_offset_delta=count - 1, count=count)


def stopped(server: InProcess, how: str) -> CrashDisk:
    server.pass_ms(70_000)
    if how == "clean":
        server.broker.stop(lambda: None)
        server.run()
    if how == "cut":
        server.disk.power_cut()
    else:
        server.disk.kill()
    server.disk.power_on()
    return server.disk


def found_at(line: Line, offset: int) -> tuple[int, int]:
    """First and last offset of the batch that a reader of this offset gets first."""
    header = next(header for _, header in batches(bytes(line.fetch("t", offset).records)))
    return header.base_offset, header.last_offset


@pytest.mark.parametrize("how", ["kill", "cut", "clean"])
def test_batches_of_as_many_records_as_a_header_can_say(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kafka's compaction leaves them: nearly all of what they had is gone."""
    monkeypatch.setattr(batch, "LEAST_RECORD_BYTES", 0)  # clients may not produce them
    server = InProcess()
    line = server.connect()
    line.create_topic("t", **SETTINGS)
    ends = 0
    places = []
    for _ in range(4):
        for count in (MAX_SEQUENCE, 1):
            assert line.produce_batch("t", of_many(count)).base_offset == ends
            places.append((ends, ends + count - 1))
            ends += count
    line = InProcess(stopped(server, how)).connect()
    for first, last in places:
        assert found_at(line, first) == found_at(line, last) == (first, last)
    assert line.look_up("t", -1).offset == ends


@pytest.mark.parametrize("base", [2**31 - 2, 2**32 - 1, 2**62])
def test_a_log_that_begins_far_up(base: int) -> None:
    """As Kafka may leave one."""
    server = InProcess()
    server.connect().create_topic("t", internal_segment_bytes="400", **SETTINGS)
    disk = stopped(server, "clean")
    for name in disk.list_directory("/data/t-0"):
        if name.endswith(".log"):
            disk.rename(f"/data/t-0/{name}", f"/data/t-0/{base:020}.log")
        elif name.startswith("0"):
            disk.remove(f"/data/t-0/{name}")
    for name in disk.list_directory("/data"):
        if name.startswith("duramen"):
            disk.remove(f"/data/{name}")
    replace_file(disk, "/data/recovery-point-offset-checkpoint", b"0\n1\nt 0 %d\n" % base)
    replace_file(disk, "/data/log-start-offset-checkpoint", b"0\n1\nt 0 %d\n" % base)
    server = InProcess(disk)
    line = server.connect()
    for number in range(12):
        rows = [(b"k", b"v" * 60, (), NOW + number), (b"k", b"w", (), NOW + number)]
        assert line.produce_batch("t", build_batch(rows)).base_offset == base + 2 * number
    for how in ("kill", "clean", "cut"):
        server = InProcess(stopped(server, how))
        line = server.connect()
        for number in range(12):
            first = base + 2 * number
            assert found_at(line, first) == found_at(line, first + 1) == (first, first + 1)
            assert line.look_up("t", NOW + number).offset == first
        assert (line.look_up("t", -2).offset, line.look_up("t", -1).offset) == (base, base + 24)
