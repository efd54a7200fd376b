"""`duramen log repair`: what it keeps, what it puts aside, and that a crash in between does no harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests.worlds.repair_world import TP, Harm, Segments, filled, findings, interrupted, opened, scribble
from tests.worlds.storage_workload import FIRST, SeededEntropy, append, checkpoint, commit, read_all, small, start

from duramen.cli.log import repair as repair_command
from duramen.cli.log.repair import command
from duramen.cli.main import main
from duramen.errors import CorruptLogError, StorageError
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.checkpoint.kafka_files import LOCK, encode_offsets
from duramen.storage.checkpoint.loss_record import LOST_FOLDER, read_losses
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.journal.format import HEADER_BLOCK
from duramen.storage.journal.reader import read_journal
from duramen.storage.repair import journal_reset
from duramen.storage.repair.journal_reset import (
    JournalReset,
    begin_reset,
    decode_reset,
    encode_reset,
    read_reset,
    recover_and_stop,
)
from duramen.storage.repair.journal_salvage import survey_journal
from duramen.storage.repair.repair import apply_repair, survey_directory
from duramen.storage.repair.rewrite_partition import DROPPED, REMOVED, RESTORED


def test_a_sound_directory_needs_nothing() -> None:
    for clean in (True, False):
        disk = CrashDisk()
        filled(disk, clean=clean)
        assert survey_directory(disk, "/data").actions == []


def test_a_flipped_bit_of_a_sealed_segment_is_turned_back() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    before = disk.contents()
    for place in (3, 14, 20, 500, 1_999):  # offsets, epochs, CRCs and records
        disk.damage(segments[1][0], place, 0x10)
        found = survey_directory(disk, "/data")
        (action,) = found.actions
        assert (action.kind, action.path, action.start, action.end) == (RESTORED, segments[1][0], place, place + 1)
        apply_repair(disk, found)
        assert disk.contents()[segments[1][0]] == before[segments[1][0]]
    directory, log = opened(disk)
    assert read_all(log) == records
    directory.close(clean=True)


def test_a_flipped_bit_of_the_active_segment_is_turned_back() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    path, _, base = segments[-1]
    before = disk.contents()[path]
    for place in (3, 14, 20, 500):
        disk.damage(path, place, 0x10)
        (finding,) = {each.what for each in findings(disk) if each.path == path and "seal" in each.what}
        assert finding == "the bytes differ from the seal"
        (action,) = survey_directory(disk, "/data").actions
        assert (action.kind, action.path, action.start) == (RESTORED, path, place)
        apply_repair(disk, survey_directory(disk, "/data"))
        assert disk.contents()[path] == before
    assert findings(disk) == []
    directory, log = opened(disk)
    assert read_all(log, base) == {offset: value for offset, value in records.items() if offset >= base}
    directory.close(clean=True)


def test_what_the_active_segment_was_sealed_as_is_forgotten_when_batches_of_it_go() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    path, size, _ = segments[-1]
    scribble(disk, path, size // 2, 60)
    found = survey_directory(disk, "/data")
    assert {action.kind for action in found.actions} == {DROPPED}
    stale = disk.contents()[path[:-4] + ".sealing"]
    apply_repair(disk, found)
    assert path[:-4] + ".sealing" not in disk.contents()
    # A power cut may have left it: then it is what has to go.
    file = disk.open(path[:-4] + ".sealing", create=True, write=True)
    file.pwritev([stale], 0)
    file.close()
    assert [action.kind for action in survey_directory(disk, "/data").actions] == [REMOVED]
    apply_repair(disk, survey_directory(disk, "/data"))
    assert findings(disk) == []
    lost = set(range(found.actions[0].first_offset, found.actions[0].last_offset + 1))
    directory, log = opened(disk)
    for _ in range(5):
        records[log.end_offset] = b"more" * 50
        append(log, b"more" * 50)
        commit(directory)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}
    directory.close(clean=True)
    assert findings(disk) == []


def test_a_missing_segment_is_a_gap_that_is_told_once() -> None:
    disk = CrashDisk()
    _, segments = filled(disk)
    disk.remove(segments[1][0])
    missing = (segments[1][2], segments[2][2] - 1)
    (finding,) = findings(disk)
    assert (finding.kind, finding.offset, finding.last_offset) == ("damage", *missing)
    action, *others = survey_directory(disk, "/data").actions
    assert (action.kind, action.first_offset, action.last_offset) == (DROPPED, *missing)
    assert {(each.kind, each.what) for each in others} == {(REMOVED, "the segment that it speaks of is not there")}
    apply_repair(disk, survey_directory(disk, "/data"))
    assert [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")] == [missing]
    assert findings(disk) == []
    assert survey_directory(disk, "/data").actions == []
    directory, log = opened(disk)
    assert not set(range(missing[0], missing[1] + 1)) & set(read_all(log))
    directory.close(clean=True)


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("compacted", [False, True])
def test_a_missing_segment_keeps_its_partition_offline_until_it_is_repaired(number: int, compacted: bool) -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    if compacted:  # by the offset that compaction has reached, gaps between segments are right
        replace_file(disk, "/data/cleaner-offset-checkpoint", encode_offsets({TP: 60}))
    path, _, base = segments[number]
    last = segments[number + 1][2] - 1
    content = disk.contents()[path]
    disk.remove(path)
    for _ in range(2):  # a start that left it offline does not make the next one forget
        directory = start(disk)
        assert directory.logs == {}
        (left,) = directory.offline.values()
        assert f"it held offsets up to {last}" in str(left.error)
        directory.close(clean=True)
        (finding,) = findings(disk)
        assert (finding.kind, finding.offset, finding.last_offset) == ("damage", base, last)
    disk_with_it_back = CrashDisk()
    for name, held in {**disk.contents(), path: content}.items():
        disk_with_it_back.make_directories(name.rpartition("/")[0])
        replace_file(disk_with_it_back, name, held)
    directory, log = opened(disk_with_it_back)
    assert read_all(log) == records
    directory.close(clean=True)
    (action, *_) = survey_directory(disk, "/data").actions
    assert (action.kind, action.first_offset, action.last_offset) == (DROPPED, base, last)
    apply_repair(disk, survey_directory(disk, "/data"))
    assert [(loss["first_offset"], loss["last_offset"]) for loss in read_losses(disk, "/data")] == [(base, last)]
    assert findings(disk) == []
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if not base <= offset <= last}
    directory.close(clean=True)


def test_a_missing_segment_is_noticed_by_a_start_after_a_kill() -> None:
    disk = CrashDisk()
    _, segments = filled(disk, clean=False)
    disk.remove(segments[1][0])
    directory = start(disk)
    (left,) = directory.offline.values()
    assert segments[1][0] in str(left.error)
    directory.close(clean=False)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_segment_of_which_nothing_is_left_has_a_seal_that_holds(number: int) -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    path, size, _ = segments[number]
    scribble(disk, path, 0, size)
    found = survey_directory(disk, "/data")
    apply_repair(disk, found)
    assert findings(disk) == []
    directory, log = opened(disk)
    lost = set(range(found.actions[0].first_offset, found.actions[0].last_offset + 1))
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}
    assert directory.findings.count == 0
    directory.close(clean=True)


def test_damaged_batches_go_to_a_side_file_and_their_offsets_become_a_gap() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    path, size, base = segments[1]
    bytes_before = disk.contents()[path]
    batch = size // (segments[2][2] - base)
    scribble(disk, path, batch * 2 + 50, batch)
    damaged = disk.contents()[path]
    found = survey_directory(disk, "/data")
    (action,) = found.actions
    assert action.kind == DROPPED
    assert (action.first_offset, action.last_offset) == (base + 2, base + 3)
    assert damaged != bytes_before
    apply_repair(disk, found)
    side = disk.contents()[action.side_file]
    assert side == damaged[action.start : action.end]
    (loss,) = read_losses(disk, "/data")
    assert (loss["partition"], loss["first_offset"], loss["last_offset"]) == ("first-0", base + 2, base + 3)
    directory, log = opened(disk)
    wanted = {offset: value for offset, value in records.items() if offset not in (base + 2, base + 3)}
    assert read_all(log) == wanted
    assert read_all(log, base + 2) == {offset: value for offset, value in wanted.items() if offset >= base + 2}
    assert append(log, b"on") == max(records) + 1
    commit(directory)
    directory.close(clean=True)
    assert survey_directory(disk, "/data").actions == []


def end_of_the_log(disk: CrashDisk, segments: Segments) -> None:
    path, size, _ = segments[-1]
    scribble(disk, path, size - 200, 150)


def whole_segment(disk: CrashDisk, segments: Segments) -> None:
    path, size, _ = segments[1]
    scribble(disk, path, 0, size)


def first_and_last(disk: CrashDisk, segments: Segments) -> None:
    scribble(disk, segments[0][0], 10, 40)
    whole = segments[-1]
    scribble(disk, whole[0], 0, whole[1])


def short_end(disk: CrashDisk, segments: Segments) -> None:
    file = disk.open(segments[-1][0], write=True)
    file.truncate(400)
    file.sync()
    file.close()


@pytest.mark.parametrize("harm", [end_of_the_log, whole_segment, first_and_last, short_end])
def test_whatever_is_lost_the_rest_keeps_its_offsets_through_a_power_cut_in_every_call(harm: Harm) -> None:
    for cut in interrupted(harm):
        disk, records, lost = cut.disk, cut.records, cut.lost
        assert lost
        apply_repair(disk, survey_directory(disk, "/data"))
        told = read_losses(disk, "/data")
        assert {n for loss in told for n in range(loss["first_offset"], loss["last_offset"] + 1)} == lost
        directory, log = opened(disk)
        assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}, cut.call
        assert log.end_offset == max(records) + 1, "no offset is used twice"
        assert append(log, b"on") == max(records) + 1
        commit(directory)
        directory.close(clean=True)
        assert survey_directory(disk, "/data").actions == []
    assert cut.call > 10


def test_an_unclean_directory_is_recovered_first() -> None:
    disk = CrashDisk()
    records, segments = filled(disk, clean=False)
    scribble(disk, segments[1][0], 500, 30)
    found = survey_directory(disk, "/data")
    assert found.recovers
    recover_and_stop(disk, "/data", 1_000_000, SeededEntropy())
    found = survey_directory(disk, "/data")
    assert not found.recovers
    lost = {n for action in found.actions for n in range(action.first_offset, action.last_offset + 1)}
    apply_repair(disk, found)
    directory, log = opened(disk)
    assert read_all(log) == {offset: value for offset, value in records.items() if offset not in lost}
    directory.close(clean=True)


def test_side_files_that_cannot_be_read_go() -> None:
    disk = CrashDisk()
    records, segments = filled(disk)
    disk.damage(segments[0][0][:-4] + ".seal", 20)
    disk.damage("/data/first-0/leader-epoch-checkpoint", 0)
    found = survey_directory(disk, "/data")
    assert [action.kind for action in found.actions] == [REMOVED, REMOVED]
    apply_repair(disk, found)
    directory, log = opened(disk)
    assert read_all(log) == records
    assert log.epochs.entries == [(0, 0)]
    directory.close(clean=True)


def test_a_damaged_journal_is_not_thrown_away() -> None:
    disk = CrashDisk()
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    for _ in range(4):
        append(log, b"v" * 300)
        commit(directory)
    (part,) = [path for path in disk.contents() if path.endswith(".part")]
    disk.kill()
    disk.power_on()
    disk.damage(part, 4096 + 400)
    with pytest.raises(StorageError, match="journal itself is damaged"):
        survey_directory(disk, "/data")


def journaled(disk: CrashDisk, *, kept: bool = False) -> tuple[list[bytes], str]:
    """Six records in a journal; their values, and its part. kept: the segments have them, as after a kill; else a power
    cut took them from there."""
    directory = start(disk)
    log = directory.create_log(TP, FIRST, small())
    log.assign_epoch(0)
    commit(directory)
    checkpoint(directory)
    values = [b"%d" % number + b"v" * 300 for number in range(6)]
    for value in values:
        append(log, value)
        commit(directory)
    commit(directory)
    disk.kill()
    disk.power_on()
    if not kept:
        file = disk.open(log.path + "/00000000000000000000.log", write=True)
        file.truncate(0)
        file.sync()
        file.close()
    return values, max(path for path in disk.contents() if path.endswith(".part"))


@pytest.mark.parametrize("kept", [True, False])
def test_a_damaged_journal_is_put_aside_and_what_may_be_missing_is_named(kept: bool) -> None:
    disk = CrashDisk()
    values, part = journaled(disk, kept=kept)
    before = disk.contents()[part]
    at = before.index(values[2])
    scribble(disk, part, at, 20)
    with pytest.raises(StorageError, match="--journal"):
        survey_directory(disk, "/data")
    contents = read_journal(disk, "/data")
    contents.close()
    loss = survey_journal(disk, "/data", contents)
    assert loss.ends == {(FIRST, 0): 6}
    lines = begin_reset(disk, "/data", loss, SeededEntropy())
    (copy,) = [
        line["side_file"] for line in lines if "side_file" in line and part.rpartition("/")[2] in line["side_file"]
    ]
    assert len(disk.contents()[copy]) == len(before)
    named = [(line["first_offset"], line["last_offset"]) for line in lines if line["partition"] == "first-0"]
    assert named == ([] if kept else [(2, 5)])
    assert read_losses(disk, "/data")[: len(lines)] == lines
    assert [each for each in findings(disk) if each.kind == "damage"] == []
    directory, log = opened(disk)
    assert log.end_offset == 6, "acknowledged offsets are not used again"
    assert read_all(log) == dict(enumerate(values if kept else values[:2]))
    assert append(log, b"more") == 6
    commit(directory)
    directory.close(clean=True)
    assert [each for each in findings(disk) if each.kind == "damage"] == []


def test_an_unreadable_header_of_the_journal_costs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    disk = CrashDisk()
    values, part = journaled(disk)
    disk.damage(part, 0)
    disk.damage(part, HEADER_BLOCK // 2)
    with pytest.raises(CorruptLogError, match="duramen log repair /data --journal"):
        start(disk)
    with pytest.raises(StorageError, match="--journal"):
        survey_directory(disk, "/data")
    with patch.object(repair_command, "RealDisk", lambda: disk):
        assert command.callback("/data", None, None, True, False, True, True) == 1  # type: ignore[misc]
    told = json.loads(capsys.readouterr().out)
    assert [line["partition"] for line in told["losses"]] == ["(journal)"] * len(told["paths"])
    directory, log = opened(disk)
    assert read_all(log) == dict(enumerate(values))
    directory.close(clean=True)


def test_an_unreadable_header_after_a_clean_stop_is_told_and_made_again() -> None:
    disk = CrashDisk()
    records, _ = filled(disk)
    (part,) = [path for path in disk.contents() if path.endswith(".part")]
    disk.damage(part, 9)
    disk.damage(part, HEADER_BLOCK // 2 + 9)
    directory, log = opened(disk)
    assert [what for what in directory.recovery.damage if part in what]
    assert read_all(log) == records
    directory.close(clean=True)
    directory = start(disk)
    assert directory.recovery.damage == []
    directory.close(clean=True)


def test_a_repair_without_the_journal_that_was_interrupted_is_finished(capsys: pytest.CaptureFixture[str]) -> None:
    disk = CrashDisk()
    values, part = journaled(disk)
    scribble(disk, part, disk.contents()[part].index(values[2]), 20)
    arguments = ("/data", None, None, True, False, True, False)

    def dies(*arguments: Any, **named: Any) -> Any:
        disk.kill()
        disk.power_on()
        raise NodeDied("between two calls")

    with patch.object(repair_command, "RealDisk", lambda: disk):
        with patch.object(journal_reset, "survey_partition", dies), pytest.raises(NodeDied):
            command.callback(*arguments)  # type: ignore[misc]
        for refused in (lambda: start(disk), lambda: survey_directory(disk, "/data")):
            with pytest.raises(StorageError, match="run `duramen log repair /data --journal` again"):
                refused()
        assert next(each.path for each in findings(disk) if each.kind == "damage") == "/data/duramen-forgone"
        capsys.readouterr()
        assert command.callback("/data", None, None, True, True, True, False) == 1  # type: ignore[misc]
        assert "interrupted" in capsys.readouterr().out
        assert command.callback(*arguments) == 1  # type: ignore[misc]
    assert "first-0 offsets 2..5" in capsys.readouterr().out
    assert [each for each in findings(disk) if each.kind == "damage"] == []
    directory, log = opened(disk)
    assert read_all(log) == dict(enumerate(values[:2]))
    assert append(log, b"more") == 6
    commit(directory)
    directory.close(clean=True)


def test_a_damaged_note_of_what_is_acknowledged_is_not_believed() -> None:
    disk = CrashDisk()
    filled(disk)
    content = encode_reset(JournalReset([], {(FIRST, 0): 70}))
    assert decode_reset(content) == JournalReset([], {(FIRST, 0): 70})
    replace_file(disk, "/data/duramen-forgone", content.replace(b"70", b"60"))
    with pytest.raises(StorageError, match="duramen-forgone is damaged"):
        read_reset(disk, "/data")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disk = CrashDisk()
    _, segments = filled(disk)
    scribble(disk, segments[1][0], 500, 30)
    root = tmp_path / "data"
    for path, content in disk.contents().items():
        target = root / Path(path).relative_to("/data")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)

    def run(*arguments: str) -> tuple[int, str]:
        code = main(["log", "repair", str(root), *arguments])
        said = capsys.readouterr()
        return code, said.out + said.err

    code, said = run("--dry-run")
    assert code == 1
    assert "become a gap" in said
    assert not (root / LOST_FOLDER).exists()
    code, said = run("--topic", "other", "--yes")
    assert (code, "has no partition of other" in said) == (2, True)
    code, said = run("--topic", "first", "--partition", "7", "--yes")
    assert (code, "has no partition first-7" in said) == (2, True)
    lock = RealDisk().lock(str(root / LOCK))
    for more in ((), ("--journal",)):
        code, said = run("--yes", *more)
        assert (code, "another process" in said) == (2, True)
    lock.release()
    code, said = run("--topic", "first", "--partition", "0", "--yes", "--json")
    assert code == 1
    told = json.loads(said)
    assert [action["kind"] for action in told["actions"]] == [DROPPED]
    assert (Path(told["actions"][0]["side_file"])).read_bytes()
    code, said = run()
    assert code == 0
    assert "nothing to repair" in said
