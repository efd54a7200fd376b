"""Segment files that are gone from a compacted log, where a hole looks like what compaction took."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from tests.unit.storage.compaction.test_cleaner import NOW, TOPIC_ID, TP, Bench, Entropy
from tests.worlds.storage_workload import commit, fill, forget_lists, one_log, start

from duramen.sim.world.disk import CrashDisk, DiskCall, NodeDied
from duramen.storage.checkpoint.expected_segments import ExpectedSegments
from duramen.storage.checkpoint.kafka_files import encode_offsets, read_checkpoint
from duramen.storage.checkpoint.loss_record import read_losses
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.log import Log
from duramen.storage.log.truncation import truncate_log
from duramen.storage.repair.journal_reset import recover_and_stop
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.report import Finding
from duramen.storage.repair.rewrite_partition import DROPPED, MOVED
from duramen.storage.repair.verify import verify_directory
from duramen.wire.batch import batches, records

FULL = b"v" * 1500
"""Two of these fill a segment of the bench, so that a pass merges no more than two."""


def compacted() -> Bench:
    """A log of six segments, two keys that stay in each; a pass over it is due."""
    bench = Bench()
    for number in range(6):
        bench.put((b"key-%d" % number, FULL), (b"again", b"%d" % number))
        bench.roll()
    return bench


def run_with_checkpoint(bench: Bench, at: int) -> int:
    """A pass over the log, with a checkpoint behind so many of its steps; how many it took."""
    cleaning = bench.take()
    assert cleaning is not None
    steps = 0
    while not cleaning.over:
        if steps == at:
            bench.checkpoint()
        bench.step(cleaning)
        steps += 1
    assert cleaning.completed
    return steps


def missed(disk: CrashDisk) -> list[Finding]:
    found = verify_directory(disk, "/data", lambda size: None).all_findings()
    return [finding for finding in found if finding.kind == "damage"]


def started(disk: CrashDisk) -> LogDirectory:
    return LogDirectory.open(disk, "/data", DirectorySettings(), now_ms=NOW, entropy=Entropy())


def listed(disk: CrashDisk) -> tuple[int, ...]:
    found = read_checkpoint(disk, "/data")
    assert found is not None
    return found.segments[TOPIC_ID, TP.partition]


def folded_of(log: Log) -> dict[bytes | None, bytes | None]:
    """The last value of every key in the log's files."""
    found: dict[bytes | None, bytes | None] = {}
    for segment in log.segments:
        data = memoryview(segment.open_file().pread(segment.size, 0))
        for at, header in batches(data):
            found |= {each.key: each.value for each in records(data[at : at + header.size], header, max_bytes=1 << 20)}
    return found


STEPS = run_with_checkpoint(compacted(), -1)


@pytest.mark.parametrize("at", range(STEPS))
def test_a_segment_is_missed_after_a_kill_wherever_in_a_pass_the_last_checkpoint_came(at: int) -> None:
    bench = compacted()
    run_with_checkpoint(bench, at)
    bases = [segment.base_offset for segment in bench.log.segments]
    paths = [segment.path for segment in bench.log.segments[:-1]]
    assert 2 < len(paths) < 6
    bench.disk.kill()
    for path in paths:
        disk = bench.disk.copy(Random(1))
        disk.power_on()
        assert missed(disk) == []
        for name in [name for name in disk.contents() if name.startswith(path.removesuffix(".log"))]:
            disk.remove(name)
        first = bases[paths.index(path)]
        assert [finding.offset for finding in missed(disk)] == [first]
        assert [action.first_offset for action in survey_directory(disk, "/data").actions] == [first]
        directory = started(disk)
        assert [path in str(left.error) for left in directory.offline.values()] == [True]
        directory.close(clean=False)
    bench.disk.power_on()
    directory = started(bench.disk)
    assert [segment.base_offset for log in directory.logs.values() for segment in log.segments] == bases
    directory.close(clean=False)


def test_a_list_of_segments_is_without_what_is_being_merged_alone() -> None:
    """A swap may be journaled below the checkpoint's place and carried out behind it."""
    bench = compacted()
    bases = [segment.base_offset for segment in bench.log.segments]
    cleaning = bench.take()
    assert cleaning is not None
    while not cleaning.leaving:
        bench.step(cleaning)
        bench.checkpoint()
        assert set(bases) - set(listed(bench.disk)) == set(cleaning.leaving)
    assert set(cleaning.leaving) == {bases[1]}
    while not cleaning.over:
        bench.step(cleaning)
        bench.checkpoint()
        there = {segment.base_offset for segment in bench.log.segments}
        assert there - set(listed(bench.disk)) == set(cleaning.leaving)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("list_lost", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_a_seal_without_its_segment_is_a_segment_that_is_gone(number: int, list_lost: bool, clean: bool) -> None:
    bench = compacted()
    bench.clean()
    bench.checkpoint()
    gone, following = bench.log.segments[number : number + 2]
    kept = [entry for entry in bench.left() if not gone.base_offset <= entry[0] < following.base_offset]
    end, disk = bench.log.end_offset, bench.disk
    if clean:
        bench.directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    disk.remove(gone.path)
    if list_lost:
        forget_lists(disk)
    lost = (gone.base_offset, following.base_offset - 1)
    for _ in range(2):  # and a start takes nothing away that says so
        assert [(finding.offset, finding.last_offset) for finding in missed(disk)] == [lost]
        dropped = [action for action in survey_directory(disk, "/data").actions if action.kind == DROPPED]
        assert [(action.first_offset, action.last_offset) for action in dropped] == [lost]
        directory = started(disk)
        assert [gone.path in str(left.error) for left in directory.offline.values()] == [True]
        directory.close(clean=clean)
        disk.end_process()
    if not clean:
        recover_and_stop(disk, "/data", NOW, Entropy())
    apply_repair(disk, survey_directory(disk, "/data"))
    assert [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")][:1] == [lost]
    assert survey_directory(disk, "/data").actions == []
    assert missed(disk) == []
    bench.open()
    assert (bench.left(), bench.log.end_offset) == (kept, end)


@pytest.mark.parametrize("clean", [True, False])
def test_a_seal_below_the_log_start_is_what_retention_left(clean: bool) -> None:
    bench = compacted()
    first, second = bench.log.segments[0], bench.log.segments[1].base_offset
    bench.log.advance_start(second)
    bench.commit()
    bench.checkpoint()
    bench.directory.close(clean=clean)
    bench.disk.end_process()
    bench.disk.remove(first.path)
    assert missed(bench.disk) == []
    bench.open()
    assert bench.log.start_offset == second
    assert first.path.removesuffix(".log") + ".seal" not in bench.disk.contents()


def test_a_seal_tells_of_a_segment_only_where_nothing_else_can_have_taken_it() -> None:
    def names(*suffixes: str) -> list[str]:
        return [f"{number * 10:020d}{suffix}" for number, suffix in enumerate(suffixes)]

    def told(names: list[str], *, start_known: bool = True) -> tuple[int, ...]:
        return ExpectedSegments().and_sealed(names, start_known=start_known).bases

    assert told(names(".log", ".seal", ".log")) == (10,)
    assert told(names(".seal", ".log", ".log")) == (0,)
    assert told(names(".seal", ".log", ".log"), start_known=False) == ()
    assert told(names(".log", ".log", ".seal")) == ()
    assert told(names(".log", ".index", ".log")) == ()
    assert told([*names(".log", ".seal", ".log"), f"{0:020d}.log.swap"]) == ()
    assert ExpectedSegments((0,), 10).and_sealed(names(".log", ".seal", ".log"), start_known=True).lasting() == (0,)
    assert (
        ExpectedSegments((), 40, ((0, 20),)).and_sealed(names(".log", ".seal", ".log"), start_known=True).lasting()
        == ()
    )
    assert ExpectedSegments((0, 30)).and_sealed(names(".log", ".seal", ".log"), start_known=True).missing(
        (0, 20), 0
    ) == [
        (10, 19),
        (30, 30),
    ]


@pytest.mark.parametrize("cut", ["power", "kill"])
def test_a_crash_amid_a_swap_that_the_journal_has_forgotten_leaves_nothing_to_miss(cut: str) -> None:
    """A checkpoint behind each step: nothing but the names tells what a copy has taken in, and its seals may stay."""
    bench = compacted()
    folded = {key: value for _, key, value in bench.left()}
    disk, orphaned = bench.disk, 0
    cleaning = bench.take()
    assert cleaning is not None

    def opened_amid(call: DiskCall) -> None:
        nonlocal orphaned
        if not (cleaning.swapping or cleaning.leaving) or call.operation not in ("rename", "remove", "sync_directory"):
            return
        for seed in range(4 if cut == "power" else 1):
            copy = disk.copy(Random(call.number * 10 + seed))
            copy.torn = True
            (copy.power_cut if cut == "power" else copy.kill)()
            copy.power_on()
            names = copy.list_directory("/data/compacted-0")
            orphaned += sum(name.endswith(".seal") and name[:20] + ".log" not in names for name in names)
            if not any(name.endswith(".swap") for name in names):
                assert missed(copy) == []
            directory = started(copy)
            assert directory.offline == {}
            ((_, log),) = directory.logs.items()
            assert folded_of(log) == folded
            directory.close(clean=False)

    disk.fault = opened_amid
    while not cleaning.over:
        bench.step(cleaning)
        bench.checkpoint()
    disk.fault = None
    assert cleaning.completed
    assert orphaned


def test_what_kafka_compacted_since_is_not_missed() -> None:
    bench = compacted()
    gone = bench.log.segments[1].path
    bench.directory.close(clean=True)
    bench.disk.end_process()
    bench.disk.remove(gone)
    replace_file(bench.disk, "/data/.kafka_cleanshutdown", b'{"version":0,"brokerEpoch":7}')
    replace_file(bench.disk, "/data/cleaner-offset-checkpoint", encode_offsets({TP: bench.log.end_offset}))
    assert missed(bench.disk) == []
    assert [action for action in survey_directory(bench.disk, "/data").actions if action.kind == DROPPED] == []
    directory = started(bench.disk)
    assert directory.offline == {}
    directory.close(clean=False)


def test_damage_below_a_truncation_takes_nothing_that_was_synced_behind_it() -> None:
    """Of a page-cache topic all batches were looked at again from where its journal began, and what lay behind went."""
    disk, directory, log = one_log("page-cache")
    fill(directory, log, 60)
    job = directory.take_checkpoint(force=True)
    assert job is not None
    job.run()  # and the journal keeps what was in front of it
    truncate_log(log, 55)
    commit(directory)
    bases = [segment.base_offset for segment in log.segments]
    assert len(bases) >= 4
    disk.kill()
    disk.power_on()
    disk.damage(log.segments[1].path, 700, 0xFF)
    begun = start(disk)
    there = [int(name[:20]) for name in disk.list_directory(log.path) if name.endswith(".log")]
    assert there == bases
    begun.close(clean=False)
    disk.end_process()
    recover_and_stop(disk, "/data", NOW, Entropy())
    apply_repair(disk, survey_directory(disk, "/data"))
    (lost,) = read_losses(disk, "/data")
    assert bases[1] <= lost["first_offset"] <= lost["last_offset"] < bases[2]
    (log,) = start(disk).logs.values()
    assert (log.start_offset, log.end_offset) == (0, 55)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("empty", [True, False])
def test_a_segment_inside_of_a_sealed_one_is_put_aside_and_nothing_is_cut(empty: bool, clean: bool) -> None:
    """One that compaction replaced and that is back, or a stray file: the sealed one was cut where it begins."""
    bench = compacted()
    old = bench.log.segments[1]
    content = bench.disk.contents()[old.path]
    bench.clean()
    bench.checkpoint()
    kept, end, disk = bench.left(), bench.log.end_offset, bench.disk
    assert old.path not in disk.contents()
    if clean:
        bench.directory.close(clean=True)
    else:
        disk.kill()
        disk.power_on()
    replace_file(disk, old.path, b"" if empty else content)
    for _ in range(1 if clean else 2):
        found = survey_directory(disk, "/data")
        assert [(each.kind, each.path) for each in found.actions if each.kind != "removed"] == [(MOVED, old.path)]
        if not clean:
            recover_and_stop(disk, "/data", NOW, Entropy())
    apply_repair(disk, found)
    assert read_losses(disk, "/data") == []
    assert [each for name, each in disk.contents().items() if "duramen-lost" in name] == [b"" if empty else content]
    assert missed(disk) == []
    bench.open()
    assert (bench.left(), bench.log.end_offset) == (kept, end)


def test_a_swap_that_a_kill_interrupted_is_no_damage_and_nothing_to_repair() -> None:
    """The start finishes it: verify and a repair that was not done yet told all that it replaced as lost."""
    bench = compacted()
    began = bench.disk.calls
    bench.clean()
    swaps = 0
    for call in range(bench.disk.calls - began):
        bench = compacted()
        bench.disk.kill_at = bench.disk.calls + call + 1
        with suppress(NodeDied):
            bench.clean()
        if bench.disk.powered:
            bench.disk.kill()
        bench.disk.kill_at = None
        bench.disk.power_on()
        if any(name.endswith(".log.swap") for name in bench.disk.contents()):
            swaps += 1
            assert missed(bench.disk) == [], call
            found = survey_directory(bench.disk, "/data").actions
            assert [each for each in found if each.kind != "removed"] == [], call
    assert swaps > 10
