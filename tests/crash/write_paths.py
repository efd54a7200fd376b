"""One workload per write path of the storage engine, short enough that all its crash states can be opened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial

from tests.crash.session import DATA, KIB, NOW, Session, topic_id

from duramen.model import TopicPartition
from duramen.wire.batch import batches
from duramen.wire.records.control import ControlType, StreamClosedRecord, build_own, writer_record


def append(run: Session) -> None:
    """Group commits of two stable topics and a page-cache one, with producers that number their batches."""
    _two_topics(run)
    run.create(3, stable=False)
    run.commit()
    run.begin()
    for turn in range(4):
        run.put(1, 150 + run.random.randrange(600), producer=7)
        run.put(2, 90 + run.random.randrange(200), records=2)
        if turn % 2:
            run.put(3, 300, producer=9)
        run.commit()
    run.put(1, 100, producer=7)


def journal_bypass(run: Session) -> None:
    """Batches above the bypass limit go to the synced segment, with journaled ones before and behind them."""
    _two_topics(run)
    run.begin()
    run.put(1, 400)
    run.put(1, 6500)
    run.put(2, 100)
    run.commit()
    for size in (2500, 2500, 2500, 300):
        run.put(1, size)
    run.commit()
    run.put(1, 120)
    run.commit()


def bypass_beside_a_checkpoint(run: Session) -> None:
    """A checkpoint begins and ends while a group is open, to which an extent was opened and more comes."""
    run.segment_bytes = 64 * KIB
    _two_topics(run)
    run.begin()
    run.put(1, 6500)
    run.put(2, 200)
    run.checkpoint_round()
    run.put(1, 400)
    run.put(1, 300)
    run.commit()
    run.put(2, 200)
    run.commit()


def ordered(run: Session) -> None:
    """Batches of one log that must not be there without a record of another one: of any size, beside checkpoints."""
    run.segment_bytes = 64 * KIB
    _two_topics(run)
    run.create(3)
    run.commit()
    run.begin()

    def turn(size: int) -> None:
        run.put(2, size)  # a large one opens an extent that could take more
        run.keep_order()
        decision = run.put(1, 1200)
        run.keep_order()
        marks = run.put(2, 100, behind=(1, decision)), run.put(3, 100, behind=(1, decision))
        run.keep_order()
        run.put(1, 100, behind=(2, marks[0]))
        run.put(3, size, behind=(2, marks[0]))

    for number, size in enumerate((7000, 300, 6500, 7000)):
        run.put(1, 200)
        run.put(3, 90)
        if number % 2:
            run.checkpoint_round(partial(turn, size))
        else:
            turn(size)
        run.commit()
        if number % 2:
            run.checkpoint()


def roll_and_seal(run: Session) -> None:
    """Full segments are closed, synced and sealed."""
    _two_topics(run)
    run.begin()
    for _ in range(5):
        run.put(1, 900 + run.random.randrange(400), producer=5)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.put(1, 300)
    run.commit()


def recycle(run: Session) -> None:
    """The journal goes round: parts are filled, freed by checkpoints and started again."""
    _two_topics(run)
    for _ in range(6):
        run.put(1, 2500)
        run.put(1, 2000)
        run.commit()
    run.keep_house(NOW)
    run.checkpoint()
    run.begin()
    for turn in range(5):
        for _ in range(3):
            run.put(1 + turn % 2, 1700 + run.random.randrange(300))
        run.commit()
        if turn % 2:
            run.checkpoint()
    run.put(2, 200)
    run.commit()


def checkpoint(run: Session) -> None:
    """Segments are synced, the checkpoint files replaced, the journal's past forgotten."""
    _two_topics(run)
    run.create(3, stable=False)
    for turn in range(3):
        run.put(1, 500, producer=3)
        run.put(2, 200)
        run.put(3, 250 + turn)
        run.commit()
    run.begin()
    run.checkpoint()
    run.put(1, 100, producer=3)
    run.put(3, 100)
    run.commit()
    run.epoch(1, 4)
    run.put(1, 90)
    run.commit()
    run.checkpoint()


def retention(run: Session) -> None:
    """Records are deleted on request, segments expire, files get their `.deleted` names and go."""
    _two_topics(run)
    for number in range(8):
        run.put(1, 1300, producer=number % 2 + 4)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.begin()
    run.advance_start(1, 3)
    run.commit()
    run.keep_house(NOW)
    run.put(1, 200)
    run.commit()
    run.log(1).config.retention_ms = 1000  # type: ignore[attr-defined]
    run.keep_house(NOW + 100_000)
    run.put(1, 200)
    run.commit()
    run.checkpoint()
    run.keep_house(NOW + 100_000)


def silent_producer(run: Session) -> None:
    """All batches of a producer that says nothing more go on request, and those of the others by retention."""
    _two_topics(run)
    for producer in (4, 4, 4, 5, 5, 5, 5, 5):
        run.put(1, 1300, producer=producer)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.begin()
    run.advance_start(1, 5)
    run.commit()
    run.keep_house(NOW)
    run.put(1, 200)
    run.commit()
    run.checkpoint()
    run.log(1).config.retention_ms = 1000  # type: ignore[attr-defined]
    run.keep_house(NOW + 100_000)
    run.put(1, 200, producer=5)
    run.commit()
    run.checkpoint()
    run.keep_house(NOW + 200_000)


def compaction(run: Session) -> None:
    """Segments are cleaned one by one, their copies swapped in and sealed, in two passes."""
    _two_topics(run)
    run.create(3, compacted=True)
    run.commit()
    for number in range(9):
        run.put(3, 700, records=3, producer=8)
        if number == 4:
            run.put(3, 100, tombstone=True)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.begin()
    run.compact(NOW + 1000)
    run.put(3, 700, records=2, producer=8)
    run.commit()
    for _ in range(3):
        run.put(3, 900, records=4)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.compact(NOW + 200_000)
    run.put(1, 90)
    run.commit()
    run.checkpoint()


def merging(run: Session) -> None:
    """Two passes of compaction join several small segments into one each time: the files of the others are removed."""
    run.start()
    run.create(3, compacted=True)
    run.commit()
    for number in range(7):
        run.put(3, 150 + 40 * number, records=2, producer=8)
        if number == 3:
            run.put(3, 90, tombstone=True)
        _roll(run)
    run.put(3, 90)
    _clean(run, NOW + 1000)
    for _ in range(3):
        run.put(3, 300, records=3, producer=8)
        _roll(run)
    run.put(3, 90)
    _clean(run, NOW + 200_000)
    run.put(3, 90)
    run.commit()
    run.checkpoint()


def _roll(run: Session) -> None:
    run.commit()
    run.log(3).roll()


def _clean(run: Session, now_ms: int) -> None:
    run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    if not run.first_step:
        run.begin()
    run.compact(now_ms)


def truncation(run: Session) -> None:
    """The end of a log is cut off, inside a segment and across segments, before and after a checkpoint."""
    _two_topics(run)
    for _ in range(3):
        run.put(1, 400, producer=2)
    run.commit()
    run.begin()
    run.truncate(1, 2)
    run.commit()
    run.put(1, 300)
    run.commit()
    for _ in range(4):
        run.put(1, 1200)
    run.commit()
    run.checkpoint()
    run.truncate(1, 4)
    run.commit()
    run.epoch(1, 3)
    run.put(1, 250)
    run.commit()
    run.checkpoint()
    run.truncate(1, 3)
    run.commit()
    run.checkpoint()
    run.put(1, 260)
    run.commit()
    run.epoch(1, 5)
    run.commit()
    run.truncate(1, run.log(1).end_offset)  # the epoch goes, which has no record
    run.commit()
    run.put(1, 270)
    run.commit()


def cut_whose_producers_are_unknown(run: Session) -> None:
    """Checkpoints, a deletion of records and a clean stop come before it is read again what is known of producers."""
    _two_topics(run)
    for number in range(6):
        run.put(1, 500, producer=number % 3)
        if number % 2:
            run.log(1).roll()
    run.commit()
    run.checkpoint()
    run.begin()
    run.truncate(1, 5)
    run.run_groups()
    run.checkpoint_round()
    run.run_groups()
    run.advance_start(1, 1)
    run.run_groups()
    run.checkpoint_round()
    run.commit()
    run.put(1, 300)
    run.commit()
    run.truncate(1, 4)
    run.run_groups()
    run.stop()
    run.disk.end_process()
    run.start()
    run.put(1, 300)
    run.commit()


def cut_into_what_is_sealed(run: Session) -> None:
    """A truncation ends in bytes that a checkpoint has summed up, and an extent takes the place of those behind it;

    another one in a sealed segment, which is closed again where it was cut.
    """
    run.segment_bytes = 24 * KIB
    _two_topics(run)
    for number in (1, 2):
        for _ in range(3):
            run.put(number, 2000)
    run.commit()
    run.log(2).roll()
    run.checkpoint()
    run.keep_house(NOW)
    run.begin()
    run.truncate(1, 1)
    run.truncate(2, 2)
    run.commit()
    run.put(1, 6500)
    run.log(2).roll()
    run.commit()
    run.put(2, 300)
    run.commit()
    run.checkpoint()


def creation_and_deletion(run: Session) -> None:
    """Topics come and go, and come again under their old name."""
    _two_topics(run)
    run.put(1, 200)
    run.put(2, 200)
    run.commit()
    run.begin()
    run.create(3)
    run.put(3, 100)
    run.commit()
    run.delete(2)
    run.commit()
    run.create(4, name="topic2")
    run.put(4, 120)
    run.commit()
    run.keep_house(NOW + 100_000)
    run.checkpoint()
    run.delete(3)
    run.delete(1)
    run.commit()
    run.keep_house(NOW + 200_000)
    run.delete(4)
    run.create(5, name="topic2")
    run.put(5, 130)
    run.commit()


def moved_aside(run: Session) -> None:
    """Logs that are nobody's make way for topics of their names, and are kept."""
    _two_topics(run)
    run.create(3, stable=False)
    run.commit()
    for size in (300, 2900, 200, 6500):
        run.put(1, 200)
        run.put(2, size, producer=7)
        run.put(3, size)
        run.commit()
    run.crash()
    run.start()
    run.put(1, 150)
    run.commit()
    run.begin()
    run.make_way(2, 4)
    run.put(4, 160)
    run.make_way(3, 5)
    run.commit()
    run.put(5, 200)
    run.commit()
    run.keep_house(NOW + 100_000)
    run.crash()
    run.start()
    run.make_way(4, 6)
    run.put(6, 220)
    run.commit()
    run.checkpoint()
    run.put(6, 120)
    run.commit()


def first_start(run: Session) -> None:
    """A directory is made, given an identity and its first topic."""
    run.begin()
    run.start()
    run.create(1)
    run.put(1, 100)
    run.commit()


def clean_stop(run: Session) -> None:
    """A clean stop, and the start that believes it."""
    _two_topics(run)
    for _ in range(4):
        run.put(1, 900, producer=6)
        run.put(2, 100)
    run.commit()
    run.begin()
    run.put(1, 300)
    run.stop()
    run.start()
    run.epoch(1, 2)
    run.put(1, 150)
    run.commit()


def recovery(run: Session) -> None:
    """What a start does after a crash: replay, cut, accept what was only in the page cache, raise epochs."""
    _two_topics(run)
    run.create(3, stable=False)
    for _ in range(4):
        run.put(1, 800, producer=6)
        run.put(3, 700)
        run.put(2, 100)
        run.commit()
    run.put(1, 6500)
    run.put(3, 200)
    run.commit()
    run.crash()
    run.begin()
    run.start()
    for number in (1, 2, 3):
        run.epoch(number, 2)
    run.put(1, 200, producer=6)
    run.put(3, 90)
    run.commit()


def change_of_durability(run: Session) -> None:
    """A topic becomes page-cache and stable again."""
    _two_topics(run)
    run.put(1, 300)
    run.commit()
    run.begin()
    run.configure(1, stable=False)
    run.put(1, 200)
    run.commit()
    run.put(1, 210)
    run.configure(1, stable=True)
    run.put(1, 220)
    run.commit()
    run.checkpoint()


def followed(run: Session) -> None:
    """Batches with gaps in front of them, as a follower has them of a compacted topic: journaled, past the journal, and
    not journaled, within segments and where one is rolled, before and after a checkpoint.
    """
    _two_topics(run)
    run.create(3, stable=False)
    run.commit()
    run.begin()
    for number in (1, 3):
        run.put(number, 300, gap=4, producer=7)
        run.put(number, 200)
    run.commit()
    for turn in range(5):
        run.put(1, 900, gap=turn % 2, producer=7)
        run.put(3, 800, gap=3 - turn % 3)
        run.commit()
    run.put(1, 6500, gap=9)
    run.put(1, 300, gap=2)
    run.commit()
    run.checkpoint()
    for gap in (0, 5):
        run.put(1, 150, gap=gap)
        run.put(3, 150, gap=gap)
        run.commit()
    run.configure(3, stable=True)
    run.put(3, 120, gap=2)
    run.commit()


def begun_anew(run: Session) -> None:
    """Logs of several segments are dropped and begin anew: above their end, at the base of a segment that they had, and
    in front of the offset that a batch holds; before and after a checkpoint.
    """
    _two_topics(run)
    run.create(3, stable=False)
    run.commit()
    for _ in range(5):
        run.put(1, 1300, producer=7)
        run.put(3, 1200)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.put(1, 300, producer=7)
    run.put(3, 300)
    run.begin()
    run.begin_anew(1, 40)
    run.begin_anew(3, 20, 17)
    run.commit()
    run.epoch(1, 4)
    run.put(3, 200, records=5, gap=-3)
    for _ in range(3):
        run.put(1, 1400, producer=8)
        run.put(3, 1400)
        run.commit()
    run.checkpoint()
    run.keep_house(NOW)
    run.put(1, 200, producer=8)
    run.put(3, 200)
    run.commit()
    run.begin_anew(1, run.log(1).segments[1].base_offset)
    run.begin_anew(3, 2)
    run.commit()
    run.epoch(1, 5)
    run.put(1, 6500, producer=9)
    run.put(3, 150)
    run.commit()


def transactions(run: Session) -> None:
    """Transactions of three producers overlap in a stable and a page-cache topic, over rolls and a checkpoint."""
    run.start()
    run.create(1)
    run.create(2, stable=False)
    run.commit()
    run.begin()
    for number in (1, 2):
        run.put(number, 200, producer=7, transactional=True)
        run.put(number, 200, producer=8, transactional=True)
        run.put(number, 100)
    run.commit()
    for number in (1, 2):
        run.end_transaction(number, 8, commit=False)
    run.commit()
    for number in (1, 2):
        run.put(number, 100, producer=6, transactional=True)
        run.end_transaction(number, 6, commit=False)
    run.commit()
    run.put(1, 1500, producer=9, transactional=True)
    run.put(2, 1500, producer=9, transactional=True)
    run.commit()
    run.checkpoint()
    for number in (1, 2):
        run.end_transaction(number, 7, commit=True)
        run.put(number, 1200, producer=8, transactional=True)
        run.put(number, 900, producer=7, transactional=True)
    run.commit()
    for number in (1, 2):
        run.end_transaction(number, 9, commit=False)
        run.end_transaction(number, 7, commit=False)
    run.commit()
    run.stop()
    run.disk.end_process()
    run.start()
    run.put(1, 100)  # what was rolled back is known by the side files alone
    run.commit()


def lost_markers(run: Session) -> None:
    """A start finds markers in the journal alone: of data that are left, that are lost with them, of a lost epoch."""
    run.start()
    run.create(1, stable=False)
    run.create(2)
    run.commit()
    for producer in (7, 8):
        run.put(1, 300, producer=producer, transactional=True)
    run.commit()
    if run.random.random() < 0.5:
        run.checkpoint()
    for number in range(run.random.randrange(1, 4)):
        run.put(1, 250, records=2)
        if number == 1:
            run.epoch(1, 2)
    run.end_transaction(1, 7, commit=True)
    run.put(1, 600, producer=7, transactional=True)
    run.put(1, 900, producer=9, transactional=True)
    run.end_transaction(1, 8, commit=False)
    run.put(2, 100)
    run.commit()
    run.end_transaction(1, 7, commit=False)
    run.put(1, 1500, producer=8, transactional=True)
    run.end_transaction(1, 8, commit=True)
    run.commit()
    run.crash()
    run.disk.end_process()
    promise = run.promises[topic_id(1)]
    lose_unsynced(run, promise.tp, promise.synced_end)
    run.begin()
    run.start()
    log = run.log(1)
    promise.synced_end = log.end_offset
    promise.ended = {}  # they are where the start has put them, as is what comes
    run.epoch(1, 3)
    run.put(1, 200, producer=9, transactional=True)
    run.end_transaction(1, 9, commit=True)
    run.commit()
    run.checkpoint()


def lose_unsynced(run: Session, tp: TopicPartition, synced_end: int) -> None:
    """A power cut takes what a log's files had behind some byte that no sync has brought to the disk."""
    home = f"{DATA}/{tp}"
    bases = sorted(int(name[:20]) for name in run.disk.list_directory(home) if name.endswith(".log"))
    last = max(base for base in bases if base <= synced_end)
    for base in bases:
        name = f"{home}/{base:020d}.log"
        if base > last:
            run.disk.remove(name)
            continue
        with closing(run.disk.open(name, write=True)) as file:
            data = file.pread(file.size(), 0)
            synced = sum(header.size for _, header in batches(data) if header.next_offset <= synced_end)
            if base == last:
                file.truncate(run.random.randrange(synced, len(data) + 1))
            file.sync()
    run.disk.sync_directory(home)


def streams(run: Session) -> None:
    """Logs are opened for one writer after the other and closed, and one of them is cut below that and closed again."""
    _two_topics(run)
    run.create(3, stable=False)
    run.commit()
    run.begin()
    for writer in (20, 21):
        for number in (1, 2, 3):
            run.say(number, writer_record(writer, f"w{writer}", NOW))
            run.put(number, 900, producer=writer)
            run.put(number, 1300, producer=writer)
        run.commit()
        if writer == 20:
            run.checkpoint()
    run.put(1, 1200, producer=21)
    for number in (1, 2, 3):
        run.say(number, build_own(ControlType.STREAM_CLOSED, StreamClosedRecord.new(version=0), NOW))
    run.commit()
    run.truncate(2, run.log(2).end_offset - 2)
    run.commit()
    run.put(2, 300)
    run.say(2, build_own(ControlType.STREAM_CLOSED, StreamClosedRecord.new(version=0), NOW + 1))
    run.commit()
    run.advance_start(1, 4)
    run.commit()
    run.keep_house(NOW)
    run.checkpoint()


def _two_topics(run: Session) -> None:
    run.start()
    run.create(1)
    run.create(2)
    run.commit()


STORAGE_PATHS: dict[str, Callable[[Session], None]] = {
    path.__name__: path
    for path in (
        append,
        journal_bypass,
        bypass_beside_a_checkpoint,
        ordered,
        roll_and_seal,
        recycle,
        checkpoint,
        retention,
        silent_producer,
        compaction,
        merging,
        truncation,
        cut_whose_producers_are_unknown,
        cut_into_what_is_sealed,
        creation_and_deletion,
        moved_aside,
        first_start,
        clean_stop,
        recovery,
        change_of_durability,
        followed,
        begun_anew,
        transactions,
        lost_markers,
        streams,
    )
}
