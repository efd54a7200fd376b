"""A log alone on the simulated disk: power is cut at every call, and what had been synced is there and readable."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.log_bench import TOPIC_ID, TP, Bench, NoteJournal

from duramen.sim.world.disk import CrashDisk, PowerCut
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.create import create_log
from duramen.storage.log.open import open_log
from duramen.storage.segment.scan import scan
from duramen.storage.segment.segment import log_name, parse_base
from duramen.storage.segment.write_checksums import WrittenSums


class Run:
    """Appends, rolls, syncs, seals, a truncation and a clean close, until the power fails."""

    def __init__(self, seed: int, *, torn: bool, size: int = 100) -> None:
        """size: bytes of a record; from 32 KiB on its blocks are summed when they are written."""
        self.size = size
        self.disk = CrashDisk(Random(seed), torn=torn)
        self.disk.make_directories("/d")
        self.disk.sync_directory("/")
        self.bench = bench = Bench.__new__(Bench)
        bench.disk = self.disk  # type: ignore[assignment]
        bench.path = "/d/events-3"
        bench.journal = NoteJournal()
        bench.config = PlainLogConfig(segment_bytes=15 * size, index_interval_bytes=2 * size, durability="page-cache")
        bench.log = create_log(self.disk, bench.path, TP, TOPIC_ID, bench.config, bench.journal)
        self.disk.sync_directory("/d")
        self.durable = 0

    def work(self) -> None:
        bench = self.bench
        for step in range(12):
            bench.fill(4, self.size, producer_id=3, producer_epoch=0, base_sequence=step)
            bench.log.flush()
            if step % 3 == 2:
                bench.sync()
                self.durable = bench.log.recovery_point
                bench.seal()
            if step == 7:
                self.durable = min(self.durable, 30)
                bench.truncate(30)
        bench.sync(full=True)
        self.durable = bench.log.recovery_point
        bench.log.close()

    def recover(self) -> None:
        """Cut behind the last sound batch, as a directory's recovery does for page-cache topics, and open."""
        bench = self.bench
        self.disk.power_on()
        bases = sorted(base for base in map(parse_base, self.disk.list_directory(bench.path)) if base is not None)
        end = 0
        for base in bases:
            path = f"{bench.path}/{log_name(base)}"
            if base != end:
                self.disk.remove(path)
                continue
            file = self.disk.open(path, write=True)
            length = 0
            for position, header, ok in scan(file, 0, file.size(), expect_offset=base):
                if ok and header is not None:
                    length, end = position + header.size, header.next_offset
            file.truncate(length)
            file.sync()
            file.close()
        bench.log = open_log(
            self.disk, bench.path, TP, TOPIC_ID, bench.config, bench.journal,
            clean=False, start_offset=0, recovery_point=min(self.durable, end),
        )  # fmt: skip


def calls_of_a_whole_run(size: int) -> int:
    run = Run(0, torn=False, size=size)
    before = run.disk.calls
    run.work()
    return run.disk.calls - before


@pytest.mark.parametrize("size", [100, 40_000])
@pytest.mark.parametrize("torn", [False, True])
def test_what_was_synced_survives_a_power_cut_at_any_call(
    monkeypatch: pytest.MonkeyPatch, torn: bool, size: int
) -> None:
    taken: list[int] = []
    take = WrittenSums.take
    monkeypatch.setattr(WrittenSums, "take", lambda sums: taken.append(len(found := take(sums))) or found)
    total = calls_of_a_whole_run(size)
    assert total > 100
    assert bool(sum(taken)) == (size > 100)
    for cut in range(1, total + 1):
        run = Run(cut, torn=torn, size=size)
        run.disk.cut_at = run.disk.calls + cut
        with pytest.raises(PowerCut):
            run.work()
        run.recover()
        bench = run.bench
        assert bench.log.end_offset >= run.durable, cut
        expected = 0
        while expected < bench.log.end_offset:
            offsets = bench.offsets(bench.read(expected, 5 * size))
            assert offsets[0] == expected, cut
            expected = offsets[-1] + 1
