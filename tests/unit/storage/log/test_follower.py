"""Appends as a follower makes them: what the leader has, with the gaps that compaction left there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.worlds.log_bench import Bench, cold
from tests.worlds.storage_workload import KIB

from duramen.errors import ErrorCode, KafkaError
from duramen.storage.journal.format import EntryKind
from duramen.storage.log.follower import append_as_follower
from duramen.storage.segment.producer_state import Duplicate
from duramen.storage.segment.segment import MAX_RELATIVE
from duramen.wire.batch import batches, build_batch, parse_header


def follow(bench: Bench, offset: int, *values: bytes, epoch: int = 0, **more: Any) -> int:
    """A batch at that offset, as the leader has it."""
    rows = [(None, value, (), 1000) for value in values]
    data = bytes(build_batch(rows, base_offset=offset, leader_epoch=epoch, **more))
    return append_as_follower(bench.log, data, parse_header(data), 0)


def refused(bench: Bench, offset: int, why: str, **more: Any) -> None:
    before = bench.log.end_offset, bench.log.active.size, list(bench.journal.entries)
    with pytest.raises(KafkaError, match=why) as error:
        follow(bench, offset, b"x", **more)
    assert error.value.code == ErrorCode.INVALID_RECORD
    assert (bench.log.end_offset, bench.log.active.size, bench.journal.entries) == before


def test_batches_stay_as_the_leader_has_them(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert follow(bench, 4, b"a", b"b", epoch=3) == len(bench.journal.entries)
    follow(bench, 9, b"c", epoch=3)
    follow(bench, 10, b"d", epoch=5)
    log = bench.log
    assert (log.start_offset, log.end_offset) == (0, 11)
    assert log.epochs.entries == [(3, 4), (5, 10)]
    assert [(header.base_offset, header.leader_epoch) for _, header in batches(bench.read(0))] == [
        (4, 3),
        (9, 3),
        (10, 5),
    ]
    assert bench.offsets(bench.read(6)) == [9, 10], "a reader in a gap goes on behind it"
    assert [entry[:2] for entry in bench.journal.entries] == [(EntryKind.BATCH, offset) for offset in (4, 9, 10)]


def test_producers_are_known_by_what_was_followed_and_no_sequence_is_asked_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    identity = {"producer_id": 7, "producer_epoch": 0}
    follow(bench, 2, b"a", base_sequence=40, **identity)
    follow(bench, 8, b"b", base_sequence=55, **identity)  # what lay between was compacted
    again = parse_header(build_batch([(None, b"b", (), 1000)], base_sequence=55, **identity))
    assert bench.log.producers.check(again) == Duplicate(8, 1000, 8)


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_with_gaps_opens_as_it_was(tmp_path: Path, clean: bool) -> None:
    bench = Bench(tmp_path, segment_bytes=KIB)
    for number in range(30):
        follow(bench, 3 * number + number % 2, b"x" * 100, epoch=number // 10)
    log = bench.log
    assert len(log.segments) > 2
    # A missing file is still told: a segment begins where the one in front ends, whatever its first batch's offset is.
    for before, behind in zip(log.segments, log.segments[1:], strict=False):
        assert behind.base_offset == before.next_offset
    before = (log.end_offset, log.epochs.entries, bench.whole(0, 500))
    log = bench.reopen(clean=clean, recovery_point=0)
    assert (log.end_offset, log.epochs.entries, bench.whole(0, 500)) == before
    cold(bench)
    assert bench.whole(0, 500) == before[2]


def test_what_can_follow_in_no_history_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    follow(bench, 5, b"a", epoch=4)
    refused(bench, 5, "the log ends at 6", epoch=4)
    refused(bench, 3, "the log ends at 6", epoch=4)
    refused(bench, 6, "the log is in epoch 4", epoch=3)
    follow(bench, 6, b"b", epoch=4)


def test_what_no_segment_reaches_is_refused(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    refused(bench, MAX_RELATIVE + 1, "goes so far")
    follow(bench, 5, b"a")
    refused(bench, 6 + MAX_RELATIVE + 1, "no segment that begins at 6")
    follow(bench, 6 + MAX_RELATIVE, b"b")
    assert [segment.base_offset for segment in bench.log.segments] == [0, 6]
    assert bench.whole(0, 1000) == [5, 6 + MAX_RELATIVE]
    assert bench.reopen(clean=False, recovery_point=0).end_offset == 7 + MAX_RELATIVE


def test_a_cut_in_a_gap_ends_in_front_of_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    follow(bench, 2, b"a")
    follow(bench, 9, b"b")
    bench.truncate(5)
    assert bench.log.end_offset == 3
    follow(bench, 7, b"c")
    assert bench.whole(0, 1000) == [2, 7]
