"""Folding journal entries into a plan: what ends up in it, whatever happened on the way."""

from __future__ import annotations

from duramen.model import TopicPartition
from duramen.storage.journal.format import EntryKind, Extent
from duramen.storage.journal.point import Point
from duramen.storage.journal.reader import JournalEntry
from duramen.storage.recovery.plan import PlannedMarker, PlannedWrite, RecoveryPlan, make_plans
from duramen.storage.recovery.replay import fold_epochs
from duramen.storage.segment.recovery_point import LogPoint

ID = bytes(16)
KEY = (ID, 0)


class Script:
    """Builds entries with ascending LSNs."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []

    def add(self, kind: int, offset: int, base: int = 0, position: int = 0, **more: object) -> Script:
        fields: dict[str, object] = {"epoch": -1, "size": 0, "next_offset": -1, "extent": None, "stable": False}
        fields.update(more)
        self.entries.append(
            JournalEntry(
                lsn=len(self.entries) + 1,
                kind=kind,
                topic_id=ID,
                partition=0,
                offset=offset,
                segment_base=base,
                position=position,
                part=0,
                data_position=1000 * len(self.entries),
                **fields,  # type: ignore[arg-type]
            )
        )
        return self

    def batch(self, offset: int, position: int, base: int = 0, epoch: int = 0) -> Script:
        return self.add(EntryKind.BATCH, offset, base, position, size=100, next_offset=offset + 1, epoch=epoch)

    def extent(self, offset: int, position: int, length: int) -> Script:
        next_offset = offset + length // 100
        return self.add(
            EntryKind.EXTENT, offset, 0, position, next_offset=next_offset, extent=Extent(length, 7, next_offset)
        )

    def plan(self, point: LogPoint | None = None) -> RecoveryPlan:
        return make_plans(self.entries, {} if point is None else {KEY: point})[KEY]


def point(recovery_point: int, position: int, base: int = 0, start: int = 0) -> LogPoint:
    return LogPoint(TopicPartition("t", 0), start, recovery_point, base, position)


def places(plan: RecoveryPlan) -> dict[int, list[tuple[int, int]]]:
    return {base: [(write.position, write.length) for write in writes] for base, writes in plan.writes.items()}


def test_batches_and_rolls() -> None:
    plan = Script().batch(5, 500).batch(6, 600).add(EntryKind.ROLL, 7, 7).batch(7, 0, base=7).plan(point(5, 500))
    assert places(plan) == {0: [(500, 100), (600, 100)], 7: [(0, 100)]}
    assert (plan.trusted, plan.end) == (Point(5, 0, 500), Point(8, 7, 100))


def test_entries_that_a_newer_recovery_point_covers_are_skipped() -> None:
    plan = Script().batch(5, 500).batch(6, 600).batch(7, 700).plan(point(7, 700))
    assert places(plan) == {0: [(700, 100)]}
    plan = Script().batch(5, 500).plan(point(7, 700))
    assert (places(plan), plan.end) == ({}, Point(7, 0, 700))


def test_after_a_truncation_all_entries_count_again() -> None:
    script = Script().batch(5, 500).batch(6, 600).add(EntryKind.TRUNCATE, 5, 0, 500).batch(5, 500, epoch=2)
    plan = script.plan(point(9, 900))
    assert places(plan) == {0: [(500, 100)]}
    assert (plan.trusted, plan.end) == (Point(5, 0, 500), Point(6, 0, 600))
    assert fold_epochs([(0, 0), (1, 6)], plan.epochs) == [(0, 0), (2, 5)]


def test_a_truncation_drops_later_segments_and_shortens_extents() -> None:
    script = (
        Script().extent(0, 0, 1000).add(EntryKind.ROLL, 10, 10).batch(10, 0, base=10).add(EntryKind.TRUNCATE, 4, 0, 400)
    )
    plan = script.plan(point(0, 0))
    (write,) = plan.writes[0]
    assert (write.position, write.length, write.crc) == (0, 400, None)
    assert 10 not in plan.writes
    assert plan.end == Point(4, 0, 400)


def test_log_starts_only_advance_and_deletion_is_final() -> None:
    plan = (
        Script()
        .add(EntryKind.LOG_START, 4)
        .add(EntryKind.LOG_START, 9)
        .add(EntryKind.LOG_START, 6)
        .plan(point(20, 0, start=7))
    )
    assert plan.start == 9
    plan = Script().batch(0, 0).add(EntryKind.DELETE, 1).plan()
    assert plan.deleted


def test_page_cache_marks_keep_the_earliest_position_until_stable_again() -> None:
    script = Script().add(EntryKind.DURABILITY, 5, 0, 500).add(EntryKind.ROLL, 9, 9).add(EntryKind.DURABILITY, 9, 9, 0)
    plan = script.plan(point(5, 500))
    assert plan.accept_from == Point(5, 0, 500)
    assert plan.accept_to is None
    plan = script.add(EntryKind.DURABILITY, 12, 9, 300, stable=True).batch(12, 300, base=9).plan(point(5, 500))
    assert plan.accept_from is None
    assert (plan.trusted, plan.end) == (Point(12, 9, 300), Point(13, 9, 400))


def test_of_an_unjournaled_log_what_came_before_the_checkpoint_says_only_which_files_may_be_gone() -> None:
    script = Script().add(EntryKind.SWAP, 33, 0).batch(33, 0, base=33).add(EntryKind.TRUNCATE, 5, 0, 500).batch(5, 500)
    known = point(9, 900)._replace(unjournaled=True)
    plan = make_plans(script.entries, {KEY: known}, 5)[KEY]
    assert (plan.trusted, plan.end, plan.accept_from) == (Point(9, 0, 900),) * 3
    assert (plan.writes, plan.merged, plan.cut, plan.truncated) == ({}, [(0, 33)], 5, False)
    plan = make_plans(script.entries, {KEY: known}, 3)[KEY]
    assert (plan.accept_from, plan.accept_to) == (Point(5, 0, 500), Point(5, 0, 500))
    assert places(plan) == {0: [(500, 100)]}


def test_a_truncation_limits_what_is_accepted_until_the_next_mark() -> None:
    script = Script().add(EntryKind.DURABILITY, 5, 0, 500).add(EntryKind.TRUNCATE, 8, 0, 800)
    plan = script.plan(point(5, 500))
    assert (plan.accept_from, plan.accept_to) == (Point(5, 0, 500), Point(8, 0, 800))
    plan = script.add(EntryKind.DURABILITY, 8, 0, 800).plan(point(5, 500))
    assert (plan.accept_from, plan.accept_to) == (Point(5, 0, 500), None)


def test_an_unknown_log_is_trusted_up_to_its_first_entry() -> None:
    plan = Script().batch(41, 4100).plan()
    assert plan.trusted == Point(41, 0, 4100)
    created = Script().add(EntryKind.CREATE, 0).batch(0, 0).plan()
    assert (created.created, created.trusted, created.end) == (True, Point(0, 0, 0), Point(1, 0, 100))


def test_epochs_fold_like_assignments() -> None:
    assert fold_epochs([], [(0, 0), (1, 5), (3, 5)]) == [(0, 0), (3, 5)]
    assert fold_epochs([(0, 0), (1, 5)], [(1, 5), (2, 8)]) == [(0, 0), (1, 5), (2, 8)]
    assert fold_epochs([(0, 0), (1, 5), (2, 8)], [(-1, 5), (4, 5)]) == [(0, 0), (4, 5)]


def test_epochs_that_a_newer_recovery_point_covers_cut_nothing_off() -> None:
    """The checkpoint knows of those that began behind them, which the journal perhaps does not: it was not synced."""
    script = Script().add(EntryKind.EPOCH, 5, epoch=4).add(EntryKind.EPOCH, 5, epoch=5).add(EntryKind.EPOCH, 9, epoch=7)
    assert script.plan(point(9, 900)).epochs == [(7, 9)]
    assert script.plan(point(5, 500)).epochs == [(4, 5), (5, 5), (7, 9)]
    script = Script().add(EntryKind.EPOCH, 2, epoch=3).add(EntryKind.TRUNCATE, 4).add(EntryKind.EPOCH, 4, epoch=4)
    assert script.plan(point(9, 900)).epochs == [(-1, 4), (4, 4)]


def test_plans_read_entries_by_position_as_their_fields_say() -> None:
    """There may be very many, so the reader makes them, and plans take them apart, without a name."""
    place = "topic_id partition epoch offset segment_base position"
    assert " ".join(JournalEntry._fields) == f"lsn kind {place} part data_position size next_offset extent stable"
    fields = 1, EntryKind.BATCH, *KEY, 4, 50, 30, 600, 7, 8000, 90, 51, None, False
    plan = make_plans([JournalEntry(*fields)], {})[KEY]
    write = PlannedWrite(position=600, length=90, offset=50, part=7, data_position=8000, extent=False, crc=None)
    assert plan.writes == {30: [write]}
    assert plan.epochs == [(4, 50)]
    assert (plan.trusted, plan.end) == (Point(50, 30, 600), Point(51, 30, 690))


def test_a_new_beginning_leaves_nothing_of_what_was() -> None:
    script = (
        Script()
        .batch(5, 500)
        .add(EntryKind.SWAP, 4, 0)
        .add(EntryKind.EPOCH, 6, epoch=2)
        .add(EntryKind.LOG_START, 3)
        .add(EntryKind.BEGIN, 90, 88)
        .batch(88, 0, base=88, epoch=7)
    )
    plan = script.plan(point(5, 500))
    assert places(plan) == {88: [(0, 100)]}
    assert (plan.start, plan.begun, plan.merged) == (90, 88, [])
    assert (plan.trusted, plan.end) == (Point(90, 88, 0), Point(89, 88, 100))
    assert fold_epochs([(0, 0), (1, 4)], plan.epochs) == [(7, 88)]
    assert [plan.is_dropped(base) for base in (0, 5, 88, 100)] == [True, True, False, False]
    assert plan.replaces(0, 0)
    assert plan.replaces(500, 0)


def test_a_checkpoint_behind_a_new_beginning_is_one_of_the_new_log() -> None:
    script = Script().batch(5, 500).add(EntryKind.BEGIN, 90, 90).batch(90, 0, base=90).batch(91, 100, base=90)
    known = point(91, 100, base=90, start=90)
    for lsn, begun in ((2, 90), (3, None)):  # that of the beginning is 2
        plan = make_plans(script.entries, {KEY: known}, lsn)[KEY]
        assert (plan.begun, plan.truncated, plan.end) == (begun, begun == 90, Point(92, 90, 200))
        assert places(plan) == {90: [(0, 100), (100, 100)] if begun else [(100, 100)]}


def test_a_truncation_in_the_batch_that_held_the_start_takes_the_start_along() -> None:
    """At the same place: that batch began in front of the offset with which the log began anew."""
    script = Script().add(EntryKind.DURABILITY, 5, 0, 500).add(EntryKind.BEGIN, 90, 88)
    plan = script.add(EntryKind.TRUNCATE, 88, 88).plan(point(5, 500))
    assert (plan.start, plan.trusted, plan.end, plan.accept_from) == (88, *[Point(88, 88, 0)] * 3)


def test_cuts_since_a_checkpoint_are_told_from_older_ones() -> None:
    known = point(9, 900)
    script = Script().batch(5, 500).add(EntryKind.TRUNCATE, 5, 0, 500).batch(5, 500).add(EntryKind.TRUNCATE, 7, 0, 700)
    for lsn, cut in ((0, 5), (2, 5), (3, 7), (4, 7), (5, 1 << 62)):
        assert make_plans(script.entries, {KEY: known}, lsn)[KEY].new_cut == cut, lsn
    assert script.add(EntryKind.BEGIN, 9, 9).plan(known).new_cut == -1


def test_markers_of_what_is_not_journaled_up_to_a_cut() -> None:
    script = Script().add(EntryKind.DURABILITY, 5, 0, 500).add(EntryKind.MARKER, 8, 0, 500, size=78, epoch=3)
    script.add(EntryKind.MARKER, 12, 0, 700, size=78, epoch=4)
    plan = script.plan(point(5, 500))
    assert plan.markers == [PlannedMarker(8, 3, (0, 500), 0, 1000, 78), PlannedMarker(12, 4, (0, 700), 0, 2000, 78)]
    assert plan.end == Point(5, 0, 500), "they say nothing of what is in front"
    assert script.add(EntryKind.TRUNCATE, 9, 0, 600).plan(point(5, 500)).markers == plan.markers[:1]
    assert script.add(EntryKind.BEGIN, 9, 9).plan(point(5, 500)).markers == []
    script = Script().add(EntryKind.MARKER, 8, 0, 500, size=78).add(EntryKind.DURABILITY, 9, 0, 578, stable=True)
    assert script.plan(point(5, 500)).markers == [], "all was synced"


def test_gaps_are_known_by_their_place_up_to_a_cut() -> None:
    script = Script().add(EntryKind.DURABILITY, 5, 0, 500).add(EntryKind.GAP, 8, 0, 500).add(EntryKind.GAP, 12, 0, 700)
    assert script.plan(point(5, 500)).gaps == {(0, 500): 8, (0, 700): 12}
    assert script.plan().gaps == {(0, 500): 8, (0, 700): 12}
    assert script.add(EntryKind.TRUNCATE, 9, 0, 600).plan(point(5, 500)).gaps == {(0, 500): 8}
    assert script.add(EntryKind.BEGIN, 9, 9).plan(point(5, 500)).gaps == {}
    assert Script().add(EntryKind.GAP, 12, 0, 700).plan().end is None, "it says nothing of what is in front"
