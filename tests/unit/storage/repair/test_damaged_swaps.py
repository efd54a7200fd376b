"""A kill in a compaction's swap, and the compacted segment is damaged behind it: it is no copy to be put aside."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
from tests.unit.storage.compaction.test_cleaner import Bench, Compacted
from tests.worlds.repair_world import Agreeing, cut_short, findings, repaired, scribble
from tests.worlds.storage_workload import SeededEntropy

from duramen.ports import Entropy
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.storage.repair import repair as repair_module
from duramen.storage.repair.repair import DirectoryRepair, repair_directory, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED
from duramen.wire.batch import batches, records

HOME = "/data/compacted-0"
SWAP = f"{HOME}/00000000000000000000.log.swap"
STEPS = ("stage", "remove_replaced", "seal", "before the last")


def served(log: Log) -> dict[int, bytes]:
    """The key of each record by offset."""
    log.flush()
    found = {}
    for segment in log.segments:
        data = memoryview(segment.open_file().pread(segment.size, 0))
        for at, header in batches(data):
            found |= {
                record.offset: bytes(record.key or b"")
                for record in records(data[at : at + header.size], header, max_bytes=1 << 20)
            }
    return found


def bench_of(disk: CrashDisk) -> Bench:
    """That opens what is on the disk."""
    bench = Bench.__new__(Bench)
    bench.disk, bench.now, bench.config = disk, 2_000_000_000, Compacted(segment_bytes=1 << 20)
    return bench


def restarted(disk: CrashDisk) -> dict[int, bytes]:
    bench = bench_of(disk)
    directory = bench.open()
    assert not directory.offline
    found = served(bench.log)
    directory.close(clean=True)
    return found


def filled(passes: int) -> Bench:
    """A compacted log of several segments, which `passes - 1` passes have been over."""
    bench = Bench()
    bench.config = Compacted(segment_bytes=1 << 20, index_interval_bytes=100)
    configure_log(bench.log, bench.config)
    for number in range(passes):
        if number:
            bench.clean()
        for segment in range(4):
            for each in range(20):
                bench.put((b"k%d-%d-%d" % (number, segment, each), b"v" * 100), (b"same", b"x%d" % each))
            bench.roll()
        bench.put((b"last%d" % number, b"x"))
        bench.checkpoint()
    return bench


def interrupted(step: str, passes: int = 1) -> CrashDisk:
    """Power is lost in the swap of a pass: behind a step, or in step 5 in front of a suffix."""
    bench = filled(passes)
    disk = bench.disk
    cleaning = bench.directory.cleaner.begin_pass(bench.settings, bench.now)
    assert cleaning is not None
    rename = disk.rename

    def renamed(source: str, target: str) -> None:
        if step == "seal" and source.endswith(".seal.swap"):
            raise NodeDied
        if step == "before the last" and source.endswith(".log.swap"):
            raise NodeDied
        rename(source, target)

    disk.rename = renamed  # type: ignore[method-assign]
    try:
        for _ in range(10_000):
            job: Any = cleaning.next_job(bench.now)
            if job is None:
                bench.commit()
                continue
            job()
            inner = getattr(job, "step", None)
            if getattr(getattr(inner, "func", None), "__name__", None) == step:
                break
        else:
            pytest.fail("it came to its end")
    except NodeDied:
        disk.sync_directory(HOME)
    disk.rename = rename  # type: ignore[method-assign]
    disk.power_cut()
    disk.power_on()
    assert disk.exists(SWAP)
    return disk


def flipped(disk: CrashDisk) -> None:
    disk.damage(SWAP, len(disk.contents()[SWAP]) // 2, 0x08)


def scribbled(disk: CrashDisk) -> None:
    scribble(disk, SWAP, len(disk.contents()[SWAP]) // 2, 3)


def shortened(disk: CrashDisk) -> None:
    file = disk.open(SWAP, write=True)
    file.truncate(file.size() // 2)
    file.sync()
    file.close()


def without_seal(disk: CrashDisk) -> None:
    """Nothing but the journal tells that it is the segment."""
    for name in (".seal.swap", ".seal"):
        if disk.exists(SWAP.replace(".log.swap", name)):
            disk.remove(SWAP.replace(".log.swap", name))
    disk.sync_directory(HOME)


def misdirected(disk: CrashDisk) -> None:
    """It is the segment that it replaces, sound and too short; nothing but the journal tells."""
    content = disk.contents()[SWAP.removesuffix(".swap")]
    file = disk.open(SWAP, write=True)
    file.truncate(0)
    file.pwritev([content], 0)
    file.sync()
    file.close()
    without_seal(disk)


HARMS: Mapping[str, Callable[[CrashDisk], None]] = {
    each.__name__: each for each in (flipped, scribbled, shortened, without_seal, misdirected)
}


def told_lost(disk: CrashDisk) -> set[int]:
    return {n for loss in read_losses(disk, "/data") for n in range(loss["first_offset"], loss["last_offset"] + 1)}


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("passes", [1, 2])
def test_it_is_put_in_place_and_repaired(passes: int, step: str, harm: str, stopped: bool) -> None:
    """It was put aside as a copy, with what it alone held, and nothing was told."""
    disk = interrupted(step, passes)
    whole = restarted(disk.copy(Random(1)))
    assert len(whole) > 60
    HARMS[harm](disk)
    if stopped:  # a start leaves the partition offline, and stops cleanly
        directory = bench_of(disk).open()
        if not directory.offline:
            pytest.skip("a start goes on with it")
        directory.close(clean=True)
    assert harm == "without_seal" or SWAP in [finding.path for finding in findings(disk)]
    before = survey_directory(disk, "/data")
    forecast = {n for a in before.actions if a.kind == "dropped" for n in range(a.first_offset, a.last_offset + 1)}
    repaired(disk, int(bool(forecast)))
    assert told_lost(disk) == forecast
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    left = restarted(disk)
    kept = {offset: key for offset, key in whole.items() if offset not in forecast}
    is_known = not (harm == "without_seal" and stopped)  # the journal does not tell any more whose it is
    if step == "stage":
        assert forecast == set()  # what it replaces is there, all of it
    if step == "stage" or not is_known or harm == "misdirected":
        assert kept.items() <= left.items()
    else:
        assert left == kept
    assert harm in ("scribbled", "shortened", "misdirected") or not is_known or forecast == set()
    assert len(left) > 30 or (harm, step) == ("shortened", "before the last")  # told, all of it


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("step", ["stage", "remove_replaced", "seal"])
@pytest.mark.parametrize("passes", [1, 2])
def test_where_it_is_gone_its_side_files_do_not_come_over_the_old_segment(
    passes: int, step: str, stopped: bool
) -> None:
    """Its seal came over the sound old one: a repair dropped that, too, up to 61 records, and had not said so."""
    disk = interrupted(step, passes)
    whole = restarted(disk.copy(Random(1)))
    old = disk.contents()[SWAP.removesuffix(".swap")]
    disk.remove(SWAP)
    disk.sync_directory(HOME)
    if stopped:
        directory = bench_of(disk).open()
        assert len(directory.offline) == 1
        directory.close(clean=True)
    assert [finding for finding in findings(disk) if finding.kind == "damage"]
    before = survey_directory(disk, "/data")
    forecast = {n for a in before.actions if a.kind == "dropped" for n in range(a.first_offset, a.last_offset + 1)}
    repaired(disk, int(bool(forecast)))
    assert told_lost(disk) == forecast
    assert [finding for finding in findings(disk) if finding.kind == "damage"] == []
    assert disk.contents()[SWAP.removesuffix(".swap")].startswith(old)
    left = restarted(disk)
    assert {offset: key for offset, key in whole.items() if offset not in forecast}.items() <= left.items()
    assert bool(forecast) == (step != "stage")


@pytest.mark.parametrize("harm", ["flipped", "scribbled"])
@pytest.mark.parametrize("step", ["remove_replaced", "before the last"])
def test_nothing_more_is_lost_behind_a_power_cut_in_any_call(step: str, harm: str) -> None:
    harmed = interrupted(step, 2)
    whole = restarted(harmed.copy(Random(1)))
    HARMS[harm](harmed)
    lost = int(harm == "scribbled")
    expected = harmed.copy(Random(2))
    repaired(expected, lost)
    for disk in cut_short(harmed, lambda disk: repaired(disk, lost)):
        left_over = survey_directory(disk, "/data").actions
        if left_over:
            repaired(disk, int(any(action.kind == "dropped" for action in left_over)))
        assert told_lost(disk) == told_lost(expected)
        left = restarted(disk)
        assert left == {offset: key for offset, key in whole.items() if offset not in told_lost(expected)}
        assert findings(disk) == []


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("passes", [1, 2])
def test_what_compaction_made_reaches_as_far_as_what_it_replaced(passes: int, stopped: bool) -> None:
    """In its place is the segment before it, and its seal is gone: what that lacks looked like taken by compaction."""
    bench = filled(passes)
    path = bench.log.segments[0].path
    before = bench.disk.contents()[path]
    bench.clean()
    whole = served(bench.log)
    bench.disk.power_cut()
    bench.disk.power_on()
    disk = bench.disk
    assert len(disk.contents()[path]) != len(before)
    file = disk.open(path, write=True)
    file.truncate(0)
    file.pwritev([before], 0)
    file.sync()
    file.close()
    for name in (".seal", ".index", ".timeindex"):
        disk.remove(path.removesuffix(".log") + name)
    disk.sync_directory(HOME)
    if stopped:
        directory = bench.open()
        assert directory.offline
        directory.close(clean=True)
    assert [finding for finding in findings(disk) if finding.kind == "damage"]
    repaired(disk)
    lost = told_lost(disk)
    assert lost
    left = restarted(disk)
    assert {offset: key for offset, key in whole.items() if offset not in lost}.items() <= left.items()


@pytest.mark.parametrize("agreed", [True, False])
def test_repair_asks_again_before_it_drops_more_than_it_said(agreed: bool) -> None:
    """What the recovery shows may be more than what could be seen in front of it."""
    disk = interrupted("remove_replaced")
    asked: list[str] = []

    class Asking(Agreeing):
        def approve(self, found: DirectoryRepair) -> None:
            asked.append("repair")

        def approve_more(self) -> None:
            asked.append("drop more")
            if not agreed:
                raise InterruptedError

    def recovered(disk: CrashDisk, path: str, entropy: Entropy) -> None:
        settled(disk, path, entropy)
        content = disk.contents()[SWAP.removesuffix(".swap")]
        replace_file(disk, SWAP.removesuffix(".swap"), content[: len(content) // 2])

    settled = repair_module._recover
    scribble(disk, "/data/compacted-0/leader-epoch-checkpoint", 0, 3)  # something has to be done in the first place
    flipped(disk)
    with patch.object(repair_module, "_recover", recovered):
        if agreed:
            found = repair_directory(disk, "/data", SeededEntropy(), Asking())
            assert any(action.kind == DROPPED for action in found.actions)
        else:
            with pytest.raises(InterruptedError):
                repair_directory(disk, "/data", SeededEntropy(), Asking())
    assert asked == ["repair", "drop more"]
    assert bool(read_losses(disk, "/data")) == agreed
