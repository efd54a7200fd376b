"""How readers of old data are held back while others are served, and that nobody waits for ever."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.worlds.broker_world import Agenda, InProcess, Line
from tests.worlds.partition_world import Lanes

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.server.handlers.fetch import FetchCall
from duramen.server.net.connection import ClientConnection
from duramen.server.net.reply_memory import UnreadReplies
from duramen.server.reads.cold_read_scheduler import (
    BUSY_SECONDS,
    LANES,
    LEAST_REPLY_BYTES,
    PACED_REPLY_BYTES,
    PATIENCE_SECONDS,
    REPLY_BYTES,
    SEND_SECONDS,
    ColdReads,
)
from duramen.sim.world.disk import CrashDisk, CrashFile
from duramen.storage.read.verified_window import WouldBlockError
from duramen.wire.batch import batches
from duramen.wire.messages import API

SETTING = "duramen.cold.read.bytes.per.second"
MIB = 1 << 20
VALUE = b"x" * 200_000


class Client:
    """A connection as far as the pace looks at it."""

    def __init__(self) -> None:
        self.closed = False
        self.outbox = SimpleNamespace(unread_since=None)
        self.read_cold_at = float("-inf")
        self.last_active = 0.0


class Pace:
    """Cold reads of 1 MiB each at 1 MiB a second; `log` tells which have run, and when."""

    def __init__(self, rate: int = MIB) -> None:
        self.clock = Agenda()
        self.lanes = Lanes()
        self.arrived = 0
        world: Any = self
        self.executor = self.lanes
        self.reads = ColdReads(world, lambda: self.arrived, UnreadReplies(self.clock.monotonic), rate)
        self.log: list[tuple[str, float]] = []

    def ask(self, name: str, client: Any = None, size: int = MIB) -> None:
        def done(result: Any, error: BaseException | None) -> None:
            assert error is None
            self.log.append((name, self.clock.monotonic()))
            self.reads.pay(None, size)

        someone: Any = client or Client()
        self.reads.submit(someone, lambda most: min(most, size), lambda: None, done)

    def pass_seconds(self, seconds: float, *, busy: bool = True) -> None:
        """In steps of 10 ms, during each of which somebody else is served."""
        for _ in range(round(seconds * 100)):
            if busy:
                self.reads.busy_at = self.clock.monotonic()
            self._run()
            self.clock.now_ms += 10
            while self.clock.timers and self.clock.timers[0][0] <= self.clock.monotonic():
                timer = self.clock.timers.pop(0)[2]
                if timer.callback is not None:
                    timer.callback()
        self._run()

    def pass_turns(self) -> None:
        """Of the loop alone."""
        while self.clock.ready:
            self.clock.ready.pop(0)()

    def _run(self) -> None:
        """What is ready, until nothing is."""
        ready = self.clock.ready
        while ready or self.lanes.step():
            if ready:
                ready.pop(0)()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.log]


def test_alone_nobody_waits_and_two_read_at_a_time() -> None:
    pace = Pace()
    for name in "abcd":
        pace.ask(name)
    assert sorted(lane for lane, _, _ in pace.lanes.waiting) == sorted(LANES)
    pace.pass_seconds(0.05, busy=False)
    assert pace.log == [(name, 0.0) for name in "abcd"]
    assert pace.reads.debt_ms(None) == 0
    assert pace.reads.reply_bytes(None) == REPLY_BYTES
    assert pace.reads.bytes_read == 4 * MIB


def test_beside_others_one_reads_at_a_time_when_the_last_is_paid_for() -> None:
    pace = Pace()
    pace.reads.busy_at = 0.0
    for name in "abc":
        pace.ask(name)
    assert not pace.lanes.waiting, "the turn that was asked has done enough for old data"
    pace.pass_turns()
    assert len(pace.lanes.waiting) == 1
    pace.pass_seconds(0.5)
    assert pace.names == ["a"]
    assert 0 < pace.reads.debt_ms(None) <= 1000
    pace.pass_seconds(2)
    assert pace.log == [("a", 0.0), ("b", pytest.approx(1, abs=0.06)), ("c", pytest.approx(2, abs=0.06))]
    assert pace.reads.waited_seconds == pytest.approx(3, abs=0.2)


def test_readers_take_turns() -> None:
    pace = Pace()
    pace.reads.busy_at = 0.0
    greedy, other = Client(), Client()
    pace.ask("greedy", greedy)
    pace.ask("other", other)
    pace.ask("greedy again", greedy)
    pace.pass_seconds(3)
    assert pace.names == ["greedy", "other", "greedy again"]


def test_who_has_not_read_his_last_reply_comes_last() -> None:
    pace = Pace(rate=0)
    pace.lanes.held = set(LANES)
    deaf, other = Client(), Client()
    deaf.outbox.unread_since = 0.0
    pace.ask("under way")
    pace.ask("under way, too")
    pace.ask("deaf", deaf)
    pace.ask("other", other)
    pace.ask("third")
    pace.lanes.held = set()
    pace.pass_seconds(0.05)
    assert pace.names == ["under way", "under way, too", "other", "third", "deaf"]


def test_who_is_gone_is_not_read_for_and_costs_nobody_time() -> None:
    pace = Pace()
    pace.reads.busy_at = 0.0
    gone = Client()
    for name, client in (("a", None), ("gone", gone), ("b", None)):
        pace.ask(name, client)
    gone.closed = True
    pace.pass_seconds(1.1)
    assert pace.names == ["a", "b"]
    assert len(pace.reads) == 0


def test_who_is_gone_gets_no_turn_where_the_first_of_those_who_wait_has_a_reply_unread() -> None:
    pace = Pace(rate=0)
    pace.lanes.held = set(LANES)
    deaf, gone = Client(), Client()
    deaf.outbox.unread_since = 0.0
    for name, client in (("under way", None), ("under way, too", None), ("deaf", deaf), ("gone", gone)):
        pace.ask(name, client)
    gone.closed = True
    pace.lanes.held = set()
    pace.pass_seconds(0.05)
    assert pace.names == ["under way", "under way, too", "deaf"]
    assert len(pace.reads) == 0


def test_when_the_others_fall_silent_a_large_payment_is_waited_for_no_longer() -> None:
    pace = Pace()
    pace.reads.busy_at = 0.0
    pace.ask("a", size=9 * MIB)
    pace.ask("b")
    pace.pass_seconds(3)
    assert pace.names == ["a"]
    pace.pass_seconds(2 * BUSY_SECONDS + 0.1, busy=False)
    assert pace.names == ["a", "b"]


@pytest.mark.parametrize("rate", [1, 1000])
def test_what_is_owed_is_bounded(rate: int) -> None:
    """At a tiny rate it grew beyond what a reply can tell a client, and outlived a rate that was raised."""
    pace = Pace(rate)
    pace.reads.busy_at = 0.0
    for number in range(30):
        pace.ask(str(number), size=100 * MIB)
    pace.pass_seconds(PATIENCE_SECONDS + 0.5)
    assert len(pace.log) == 30
    reader: Any = Client()
    _, throttle_ms = pace.reads.leaving(reader, 0)
    assert 0 < throttle_ms <= PATIENCE_SECONDS * 1000
    pace.reads.bytes_per_second = 1 << 40
    pace.pass_seconds(PATIENCE_SECONDS)
    pace.ask("at once")
    pace.pass_seconds(0.1)
    assert pace.names[-1] == "at once"


def test_when_the_others_fall_silent_the_disk_is_free_again() -> None:
    pace = Pace(rate=2 * MIB)
    pace.reads.busy_at = 0.0
    for number in range(20):
        pace.ask(str(number))
    pace.pass_seconds(BUSY_SECONDS - 0.2, busy=False)
    assert len(pace.log) == 2
    pace.pass_seconds(4.5, busy=False)
    assert len(pace.log) == 20, "the next payment that is due sets all of them free"


def test_no_limit_holds_nobody_back() -> None:
    pace = Pace(rate=0)
    pace.reads.busy_at = 0.0
    for name in "abc":
        pace.ask(name)
    pace.pass_seconds(0.05)
    assert pace.log == [(name, 0.0) for name in "abc"]


def test_who_fell_behind_fast_producers_can_catch_up() -> None:
    pace = Pace()
    pace.reads.busy_at = 0.0
    for number in range(200):
        pace.ask(str(number))
    for _ in range(50):
        pace.arrived += 2 * MIB
        pace.pass_seconds(0.1)  # 20 MiB a second arrive
    assert 120 < len(pace.log) <= 200, "about 40 MiB a second are read, not 1"


def test_a_wait_for_payment_ends_before_clients_give_up_and_many_readers_get_less_each() -> None:
    pace = Pace(rate=1000)
    pace.reads.busy_at = 0.0
    for name in "abc":
        pace.ask(name)
    pace.pass_seconds(PATIENCE_SECONDS - 0.5)
    assert pace.names == ["a"]
    pace.pass_seconds(1)
    assert pace.names == ["a", "b", "c"]
    assert pace.reads.reply_bytes(None) == LEAST_REPLY_BYTES
    pace.reads.bytes_per_second = 32 * MIB
    assert pace.reads.reply_bytes(None) == PACED_REPLY_BYTES


def test_a_reply_from_memory_counts_as_somebody_else_unless_it_goes_to_a_reader_of_old_data() -> None:
    pace = Pace()
    reader = Client()
    pace.ask("a", reader)
    pace.reads.served(reader)  # type: ignore[arg-type]
    assert pace.reads.reply_bytes(None) == REPLY_BYTES
    pace.reads.served(Client())  # type: ignore[arg-type]
    assert pace.reads.reply_bytes(None) == PACED_REPLY_BYTES


def test_nobody_is_held_back_for_what_was_served_to_himself() -> None:
    pace = Pace()
    reader, other = Client(), Client()
    for at in (0.0, 0.5):
        reader.last_active = at
        pace.reads.served(reader)  # type: ignore[arg-type]
    pace.clock.now_ms = 600
    pace.ask("a", reader)
    pace.ask("b", reader)
    pace.pass_seconds(0.05, busy=False)
    assert pace.names == ["a", "b"], "alone, although his last reply came from memory"
    other.last_active = 0.7
    pace.reads.served(other)  # type: ignore[arg-type]
    assert pace.reads.reply_bytes(reader) == PACED_REPLY_BYTES  # type: ignore[arg-type]
    assert pace.reads.reply_bytes(other) == PACED_REPLY_BYTES, "the reader was served half a second ago"  # type: ignore[arg-type]


def test_who_has_gone_is_forgotten_but_not_that_he_was_served() -> None:
    pace = Pace()
    reader, follower = Client(), Client()
    pace.reads.served(follower)  # type: ignore[arg-type]
    pace.reads.forget(reader)  # type: ignore[arg-type]
    pace.reads.forget(follower)  # type: ignore[arg-type]
    gone = weakref.ref(follower)
    del follower
    assert gone() is None, "for as long as nobody else is served"
    assert pace.reads.reply_bytes(reader) == PACED_REPLY_BYTES  # type: ignore[arg-type]
    pace.pass_seconds(BUSY_SECONDS, busy=False)
    assert pace.reads.reply_bytes(reader) == REPLY_BYTES  # type: ignore[arg-type]


def test_a_stop_leaves_nothing_behind() -> None:
    pace = Pace()
    pace.reads.busy_at = 0.0
    pace.ask("a")
    pace.ask("b")
    pace.pass_seconds(0.1)
    pace.reads.close()
    pace.pass_seconds(2)
    assert pace.names == ["a"]


# ---- a whole broker ------------------------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """A broker that has started on a log of ten batches which are not in memory, at a rate of two of them a second."""
    disk = CrashDisk()
    line = InProcess(disk).connect()
    line.create_topic("old")
    line.create_topic("new")
    for _ in range(10):
        line.produce("old", VALUE)
    disk.kill()
    disk.power_on()
    resident: Callable[[CrashFile, int, int], bool] = CrashFile.resident
    monkeypatch.setattr(
        CrashFile, "resident", lambda file, at, size: "old" not in file.path and resident(file, at, size)
    )
    return InProcess(disk, **{SETTING.replace(".", "_"): str(2 * len(VALUE))})


def answer(line: Line) -> tuple[list[int], int] | None:
    """(offsets of batches, throttle time in ms) of the next reply."""
    reply = line.answer(1, 12)
    if reply is None:
        return None
    entry = reply.responses[0].partitions[0]
    assert entry.error_code == 0
    return [header.base_offset for _, header in batches(memoryview(entry.records or b""))], reply.throttle_time_ms


def test_a_reader_of_old_data_waits_beside_a_producer_and_says_so(served: InProcess) -> None:
    reader, producer = served.connect(), served.connect()
    reader.ask_fetch("old", 0, most=len(VALUE))
    served.run()
    assert answer(reader) == ([0], 0), "alone: at once"
    assert producer.produce("new", b"a").error_code == 0
    reader.ask_fetch("old", 1, most=len(VALUE))
    served.run()
    assert answer(reader) is None, "it leaves in small pieces"
    served.pass_ms(500)
    assert answer(reader) == ([1], 0), "which take as long as the next read has to wait"
    reader.ask_fetch("old", 2, most=len(VALUE))
    reader.ask(3, 12, topics=[])
    served.run()
    assert answer(reader) is None
    # Neither the producer nor who follows the end of another log waits for it.
    assert producer.produce("new", b"b").base_offset == 1
    assert len(producer.fetch("new", 0).records) > 0
    served.pass_ms(600)
    found = answer(reader)
    assert found is not None
    assert found[0] == [2]
    assert reader.answer(3, 12).topics == [], "answers keep the order of the requests"


def test_what_is_read_alone_stays_and_its_next_reader_holds_nobody_back() -> None:
    disk = CrashDisk()
    line = InProcess(disk).connect()
    line.create_topic("old")
    for _ in range(10):
        line.produce("old", VALUE)
    disk.kill()
    disk.power_on()
    node = InProcess(disk, **{SETTING.replace(".", "_"): "1"})
    node.pass_ms(70_000)  # a checkpoint
    node.forget_cache()
    disk.short_reads = None
    for _, inode in disk.names.walk():
        inode.drop(0, len(inode.cache))
    reads = node.broker.cold_reads
    first, second = node.connect(), node.connect()
    for offset in range(5):
        first.ask_fetch("old", offset, most=len(VALUE))
        node.run()
        assert answer(first) == ([offset], 0)
    brought = reads.bytes_read
    assert brought >= 5 * len(VALUE)
    node.pass_ms(2000)
    for offset in range(5):
        second.ask_fetch("old", offset, most=len(VALUE))
        node.run()
        assert answer(second) == ([offset], 0)
    assert reads.bytes_read == brought, "it was in memory"
    first.ask_fetch("old", 5, most=len(VALUE))
    node.run()
    assert answer(first) == ([5], 0), "who reads what stayed does not follow the end"
    assert reads.bytes_read > brought


def test_readers_take_turns_beside_a_producer(served: InProcess) -> None:
    readers, producer = [served.connect() for _ in range(3)], served.connect()
    producer.produce("new", b"a")
    for number, reader in enumerate(readers):
        reader.ask_fetch("old", number, most=len(VALUE))
    served.pass_ms(2000)
    found = [answer(reader) for reader in readers]
    assert [None if each is None else each[0] for each in found] == [[0], [1], [2]]


def test_beside_others_a_reply_brings_less(served: InProcess) -> None:
    reader, producer = served.connect(), served.connect()
    served.broker.cold_reads.bytes_per_second = 1000
    producer.produce("new", b"a")
    request = API[1].request
    topics = [
        request.FetchTopic(
            topic=name, partitions=[request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=2 * MIB)]
        )
        for name in ("new", "old")
    ]
    reader.ask(1, 12, max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=topics)
    served.pass_ms(int(SEND_SECONDS * 1000))
    new, old = (topic.partitions[0].records for topic in reader.answer(1, 12).responses)
    assert len(new) > 0
    assert [header.base_offset for _, header in batches(memoryview(old))] == [0], "above the limit: whole, and alone"


def test_a_reader_that_leaves_while_it_waits(served: InProcess) -> None:
    leaver, stayer, producer = served.connect(), served.connect(), served.connect()
    producer.produce("new", b"a")
    leaver.ask_fetch("old", 0, most=len(VALUE))
    served.pass_ms(500)
    assert answer(leaver) is not None
    leaver.ask_fetch("old", 1, most=len(VALUE))
    stayer.ask_fetch("old", 5, most=len(VALUE))
    served.run()
    next(iter(served.broker.acceptor.connections)).close("test")
    served.pass_ms(1500)
    found = answer(stayer)
    assert found is not None
    assert found[0] == [5]
    assert len(served.broker.cold_reads) == 0


@pytest.mark.parametrize("closes", [False, True])
def test_beside_others_what_came_from_the_disk_leaves_in_a_turn_of_its_own(
    served: InProcess, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    reader, producer = served.connect(), served.connect()
    connection = next(there for there in served.broker.acceptor.connections if there.transport is reader)
    told: list[str] = []
    start, leave = ColdReads._start, FetchCall._leave

    def paces(line: Line, bytes_per_second: int) -> bool:
        told.append("pace")
        return False

    def starts(reads: ColdReads) -> None:  # at the end of the turn that has seen what came
        told.append("start")
        if closes and told.count("start") == 2:
            connection.close("test")
        start(reads)

    def leaves(call: FetchCall, *rest: Any) -> None:
        told.append("leave")
        leave(call, *rest)

    monkeypatch.setattr(ColdReads, "_start", starts)
    monkeypatch.setattr(FetchCall, "_leave", leaves)
    monkeypatch.setattr(Line, "pace", paces)
    producer.produce("new", b"a")
    reader.ask_fetch("old", 0, most=len(VALUE))
    served.pass_ms(500)
    assert told == ["start", "start", "leave", "pace"], "no reply in between takes the pace for its own"
    assert answer(reader) == (None if closes else ([0], 0))
    assert served.broker.acceptor.receiver.unread.held_bytes == 0
    producer.produce("new", b"b")
    assert len(producer.fetch("new", 1).records) > 0


def test_a_reply_with_damage_in_it_keeps_nothing_that_it_read() -> None:
    """Its error knew the frame that knew the error, and all that the others had brought."""
    disk = CrashDisk()
    line = InProcess(disk).connect()
    for topic in ("sound", "bad"):
        line.create_topic(topic)
        for _ in range(4):
            line.produce(topic, VALUE)
    disk.kill()
    disk.power_on()
    node = InProcess(disk)
    log = node.broker.store.partitions[TopicPartition("bad", 0)].log
    disk.damage(log.active.path, 1000)
    node.forget_cache()
    disk.short_reads = None
    for _, inode in disk.names.walk():
        inode.drop(0, len(inode.cache))
    rooms = log.reader._hot.buffers._rooms
    free = len(rooms)
    reader = node.connect()
    request = API[1].request
    part = request.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=4 * len(VALUE))
    topics = [request.FetchTopic(topic=topic, partitions=[part]) for topic in ("sound", "bad")]
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            reader.ask(1, 12, max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB, topics=topics)
            node.run()
            reply = reader.answer(1, 12)
            sound, bad = (topic.partitions[0] for topic in reply.responses)
            assert (sound.error_code, bad.error_code) == (0, ErrorCode.CORRUPT_MESSAGE)
            assert len(sound.records) > MIB // 2, "so large a reply leaves from where it was read into"
            del reply, sound, bad
        assert len(rooms) == free
    finally:
        gc.enable()


def test_a_connection_that_has_ended_is_let_go(served: InProcess) -> None:
    follower, producer = served.connect(), served.connect()
    producer.produce("new", b"a")
    assert len(follower.fetch("new", 0).records) > 0
    next(there for there in served.broker.acceptor.connections if there.transport is follower).close("test")
    served.run()
    gc.collect()
    kept = [found for found in gc.get_objects() if type(found) is ClientConnection and found.transport is follower]
    assert not kept, "the last that was served, for as long as nobody else is"


def test_recent_records_that_the_machine_dropped_come_at_once_and_stay(
    served: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: set[str] = set()
    resident: Callable[[CrashFile, int, int], bool] = CrashFile.resident
    pread: Callable[[CrashFile, int, int], bytes] = CrashFile.pread
    monkeypatch.setattr(
        CrashFile, "resident", lambda file, at, size: file.path not in gone and resident(file, at, size)
    )

    def brings_back(file: CrashFile, size: int, at: int) -> bytes:
        gone.discard(file.path)
        return pread(file, size, at)

    monkeypatch.setattr(CrashFile, "pread", brings_back)
    reader, follower, producer = served.connect(), served.connect(), served.connect()
    for _ in range(2):
        producer.produce("new", VALUE)
    path = served.broker.store.partitions[TopicPartition("new", 0)].log.active.path
    reader.ask_fetch("old", 0, most=len(VALUE))
    reader.ask_fetch("old", 1, most=len(VALUE))
    served.run()
    assert answer(reader) is None, "old records leave piece by piece, and wait for their turn"
    gone.add(path)
    cold_before = served.broker.cold_reads.bytes_read
    gc.collect()
    gc.disable()
    try:
        follower.ask_fetch("new", 0, most=MIB)
        served.run()
        kept = [found for found in gc.get_objects() if isinstance(found, WouldBlockError)]
    finally:
        gc.enable()
    assert not kept, "with its frames it would keep every record of the reply"
    assert answer(follower) == ([0, 1], 0)
    assert not gone, "they are in memory again"
    assert served.broker.cold_reads.bytes_read == cold_before, "and nobody pays for them"
    follower.ask_fetch("new", 0, most=MIB)
    served.run()
    assert answer(follower) == ([0, 1], 0)
