"""The machine takes pages of recent records out of memory: they are read back, by blocks, before they are missed."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk, CrashFile
from duramen.storage.read import verified_window
from duramen.storage.segment.segment import Segment
from duramen.wire.batch import batches
from duramen.wire.seal import BLOCK_BYTES

VALUES = [Random(number).randbytes(200_000) for number in range(12)]
RECORD = len(VALUES[0]) + 1000
"""More than a batch of one of them takes, and less than two."""


@pytest.fixture
def served() -> InProcess:
    """A broker whose topic has a sum of every block but the last ones."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    for value in VALUES:
        assert line.produce("t", value).error_code == 0
    server.pass_ms(70_000)  # a checkpoint
    seal = segment(server).load_seal()
    assert seal is not None
    assert seal.length > 10 * RECORD
    return server


def segment(server: InProcess) -> Segment:
    (found,) = server.broker.store.partitions[TopicPartition("t", 0)].log.segments
    return found


def drop(server: InProcess, block: int) -> CrashFile:
    """The machine takes a page of this block."""
    file = segment(server).open_file()
    assert isinstance(file, CrashFile)
    file.drop_cache(block * BLOCK_BYTES + 8192, 4096)
    assert not file.resident(block * BLOCK_BYTES, BLOCK_BYTES)
    return file


def preads(disk: CrashDisk) -> list[int]:
    """Bytes of each read of the log since the last call, what is sent from the file aside."""
    calls = [call for call in disk.record or () if call.operation == "pread" and call.path.endswith(".log")]
    found = [call.length for call in calls if call.length < 3 * RECORD]
    disk.record = []
    return found


def offsets(line: Line, start: int, most: int) -> list[int]:
    entry = line.fetch("t", start, most=most)
    assert entry.error_code == 0
    return [header.base_offset for _, header in batches(memoryview(entry.records or b""))]


def test_a_page_that_is_gone_costs_its_block(served: InProcess) -> None:
    line = served.connect()
    drop(served, 4)
    served.disk.record = []
    assert offsets(line, 0, 4 * RECORD) == [0, 1, 2, 3]
    assert preads(served.disk) == [BLOCK_BYTES]
    assert offsets(line, 0, 4 * RECORD) == [0, 1, 2, 3]
    assert preads(served.disk) == [], "it is hot again"


def test_who_goes_on_finds_the_next_ones_read_back(served: InProcess) -> None:
    line = served.connect()
    drop(served, 4)
    file = drop(served, 15)  # of the next reply
    assert offsets(line, 0, 4 * RECORD) == [0, 1, 2, 3]
    assert file.resident(15 * BLOCK_BYTES, BLOCK_BYTES), "brought back while the client took the reply"
    served.disk.record = []
    assert offsets(line, 4, 4 * RECORD) == [4, 5, 6, 7]
    assert preads(served.disk) == []


def test_a_machine_that_takes_nothing_is_asked_nothing(served: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    line = served.connect()
    asked: list[int] = []
    resident = CrashFile.resident
    monkeypatch.setattr(CrashFile, "resident", lambda file, at, size: asked.append(at) or resident(file, at, size))
    assert offsets(line, 0, 4 * RECORD) == [0, 1, 2, 3]
    assert max(asked) < 4 * RECORD, "no look at what follows"


def test_a_page_that_comes_back_damaged_is_told_with_its_place(served: InProcess) -> None:
    line = served.connect()
    file = drop(served, 4)
    before = file.pread(1, 4 * BLOCK_BYTES + 9000)
    writer = served.disk.open(file.path, write=True)
    writer.pwritev([bytes([before[0] ^ 1])], 4 * BLOCK_BYTES + 9000)
    writer.sync()
    drop(served, 4)
    assert offsets(line, 0, 4 * RECORD) == [0], "what lies in front of the block"
    served.pass_ms(5_000)
    place = file.path, 4 * BLOCK_BYTES, 5 * BLOCK_BYTES
    assert place in served.broker.store.directories[0].findings.known, "though nobody was refused anything yet"
    entry = line.fetch("t", 1, most=4 * RECORD)
    assert entry.error_code == int(ErrorCode.CORRUPT_MESSAGE)
    assert not entry.records


def test_a_disk_that_fails_meanwhile_is_told(served: InProcess) -> None:
    line = served.connect()
    drop(served, 4)
    served.disk.fault = lambda call: OSError(5, "the disk failed") if call.operation == "pread" else None
    assert line.fetch("t", 0, most=4 * RECORD).error_code == int(ErrorCode.KAFKA_STORAGE_ERROR)
    served.disk.fault = None
    assert offsets(line, 0, 4 * RECORD) == [0, 1, 2, 3]


def test_of_what_is_gone_altogether_the_loop_asks_once(served: InProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader of old data asks for a megabyte of it at a time: block by block the question would hold the loop."""
    monkeypatch.setattr(verified_window, "RECENT_BYTES", 0)
    file = segment(served).open_file()
    file.drop_cache(0, file.size())
    asked: list[int] = []
    resident, nonresident = CrashFile.resident, CrashFile.nonresident

    def count_resident(self: CrashFile, offset: int, length: int) -> bool:
        asked.append(length)
        return resident(self, offset, length)

    def count_nonresident(self: CrashFile, offset: int, length: int) -> bool:
        asked.append(length)
        return nonresident(self, offset, length)

    monkeypatch.setattr(CrashFile, "resident", count_resident)
    monkeypatch.setattr(CrashFile, "nonresident", count_nonresident)
    line = served.connect()
    assert offsets(line, 0, 5 * RECORD) == list(range(5))
    assert 0 < len(asked) < 10, asked
