"""Readers at the ends of streams against a model: each gets every record once, in order, from its own position."""

from __future__ import annotations

from bisect import bisect_right

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from duramen.dlsn import Dlsn
from duramen.errors import ClosedError
from duramen.gateway.streams.stream_page import BatchPlace, StreamPage, empty_page
from duramen.gateway.streams.stream_position import position_after
from duramen.gateway.tails.page_forms import MessageForm
from duramen.gateway.tails.record_form import RecordForm
from duramen.gateway.tails.tail_page import TailPage
from duramen.gateway.tails.tail_rings import TailReader, TailRing, TailRings
from duramen.wire.batch import Record

LINGER_S = 5.0
KEYS = ((b"a", 0), (b"b", 0))
JSON = MessageForm("application/json")
ANY_KEY = st.sampled_from((KEYS[0], KEYS[0], KEYS[0], KEYS[1]))
SELDOM = st.integers(0, 5).map(lambda number: number == 5)
MAX_BYTES = 3 * 4096
READER_MAX_BYTES = 6


def numbered(offsets: list[int], end: Dlsn, at_end: bool, closed: bool) -> StreamPage:
    """Records whose values are their offsets."""
    found = [Record(n, 0, None, b"%d" % n, []) for n in offsets]
    return StreamPage(found, [BatchPlace(0, n) for n in offsets], end, at_end, closed)


class ModelLog:
    """A log of batches: (first offset, last offset, visible). A record's value is its offset."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, bool]] = []
        self.start = 0
        self.end = 0
        self.closed = False

    def append(self, count: int, visible: bool) -> None:
        self.batches.append((self.end, self.end + count - 1, visible))
        self.end += count

    def values(self, first: int, end: int) -> list[int]:
        return [n for low, high, visible in self.batches if visible for n in range(low, high + 1) if first <= n < end]

    def read(self, position: Dlsn, batches: int) -> StreamPage:
        """The batches from the one that holds the position, as a fetch has them."""
        at = bisect_right([high for _, high, _ in self.batches], position.offset - 1)
        found = self.batches[at : at + batches]
        if found:
            end = position_after(0, found[-1][0], found[-1][1])
            offsets = self.values(position.offset, end.offset)
        else:
            end, offsets = position, []
        at_end = end.offset >= self.end
        return numbered(offsets, end, at_end, at_end and self.closed)


class Follower:
    """A reader of the model: what it got, from its first position on."""

    def __init__(self, log: ModelLog, reader: TailReader, first: int) -> None:
        self.log = log
        self.reader = reader
        self.first = first
        self.got: list[int] = []
        self.closed = False

    def take(self, page: StreamPage) -> None:
        self.got += [int(message) for message in page.messages]
        self.closed = self.closed or page.closed


class TailMachine(RuleBasedStateMachine):
    """Streams that are written, read at their ends by one, and followed by many at their own paces."""

    def __init__(self) -> None:
        super().__init__()
        self.rings = TailRings(MAX_BYTES, LINGER_S)
        self.logs = {key: ModelLog() for key in KEYS}
        self.reading: list[TailRing] = []
        self.followers: list[Follower] = []
        self.now_s = 0.0

    @rule(key=ANY_KEY, count=st.integers(1, 4), visible=st.booleans())
    def append(self, key: tuple[bytes, int], count: int, visible: bool) -> None:
        if not self.logs[key].closed:
            self.logs[key].append(count, visible)

    @rule(key=ANY_KEY, seldom=SELDOM)
    def close(self, key: tuple[bytes, int], seldom: bool) -> None:
        self.logs[key].closed = self.logs[key].closed or seldom

    @rule(key=ANY_KEY, back=st.sampled_from((0, 0, 0, 1, 2, 6)))
    def join(self, key: tuple[bytes, int], back: int) -> None:
        log = self.logs[key]
        first = max(log.start, log.end - back)
        position = Dlsn(1, first, 0)
        follower = Follower(log, TailReader(TailRing(key, position), position), first)
        while not self.rings.holds(key, position):
            page = log.read(position, 1)
            follower.take(page)
            position = page.position
            if page.closed:
                return
            if page.up_to_date:
                break
        follower.reader = self.rings.join(key, position)
        if follower.reader.ring not in self.reading:
            assert follower.reader.ring.end == position
            self.reading.append(follower.reader.ring)
        self.followers.append(follower)

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), batches=st.integers(1, 3))
    def arrive(self, data: st.DataObject, batches: int) -> None:
        ring = data.draw(st.sampled_from(self.reading))
        if ring.closed:
            return
        log = self.logs[ring.key]
        page = log.read(ring.end, batches)
        self.rings.add(ring, TailPage(ring.end, page, 0), log.start)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        before = follower.reader.position
        taken = self.rings.take(follower.reader, READER_MAX_BYTES)
        assert follower.reader.position.offset >= before.offset
        for page in taken.pages:
            follower.take(page.page)
        size = sum(page.size for page in taken.pages)
        assert size <= READER_MAX_BYTES or len(taken.pages) == 1
        if taken.failure is not None:
            assert follower.reader.ring not in self.reading
            self.followers.remove(follower)
        elif taken.alone:
            page = follower.log.read(follower.reader.position, 1)
            assert page.closed or page.position.offset > follower.reader.position.offset
            follower.take(page)
            self.rings.moved(follower.reader, page.position)
        elif not taken.pages:
            assert follower.reader.position.offset >= follower.reader.ring.end.offset
        if follower.closed:
            assert follower.got == follower.log.values(follower.first, follower.log.end)
            self._leave(follower)

    @precondition(lambda self: self.followers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        follower = data.draw(st.sampled_from(self.followers))
        if follower.reader.ring.failure is None:
            self._leave(follower)

    @precondition(lambda self: self.reading)
    @rule(data=st.data(), seldom=SELDOM)
    def fail(self, data: st.DataObject, seldom: bool) -> None:
        if not seldom:
            return
        ring = data.draw(st.sampled_from(self.reading))
        self.rings.fail(ring, ClosedError("gone"))
        self.reading.remove(ring)

    @rule(seconds=st.sampled_from((1.0, LINGER_S)))
    def time_goes_on(self, seconds: float) -> None:
        self.now_s += seconds
        for ring in self.rings.idle(self.now_s):
            assert not any(each.reader.ring is ring for each in self.followers)
            self.reading.remove(ring)

    def _leave(self, follower: Follower) -> None:
        self.followers.remove(follower)
        self.rings.leave(follower.reader, self.now_s)

    @invariant()
    def each_has_its_records_once_in_order(self) -> None:
        for each in self.followers:
            assert each.got == each.log.values(each.first, each.reader.position.offset)

    @invariant()
    def memory_is_bounded_and_rings_have_no_gaps(self) -> None:
        assert len(self.rings) == len(self.reading)
        assert self.rings.held_bytes == sum(page.weight for ring in self.reading for page in ring.pages)
        assert self.rings.held_bytes <= MAX_BYTES
        for ring in self.reading:
            at = ring.start
            for page in ring.pages:
                assert page.start == at
                at = page.position
            assert at == ring.end


TestTails = TailMachine.TestCase
TestTails.settings = settings(max_examples=80, stateful_step_count=50, deadline=None)


def _page(start: int, end: int) -> TailPage:
    offsets = list(range(start, end))
    return TailPage(Dlsn(1, start, 0), numbered(offsets, position_after(0, start, end - 1), True, False), 7)


def test_who_is_slow_keeps_nobody_waiting() -> None:
    rings = TailRings(2 * _page(0, 1).weight + 100, LINGER_S)
    key = KEYS[0]
    slow, quick = rings.join(key, Dlsn(1, 0, 0)), rings.join(key, Dlsn(1, 0, 0))
    for number in range(5):
        rings.add(slow.ring, _page(number, number + 1), 0)
        assert [page.body(JSON) for page in rings.take(quick, 100).pages] == [b"[%d]" % number]
    assert rings.take(slow, 100).alone
    rings.moved(slow, Dlsn(1, 3, 0))
    assert [page.body(JSON) for page in rings.take(slow, 100).pages] == [b"[3]", b"[4]"]


def test_what_was_truncated_is_not_kept() -> None:
    rings = TailRings(1 << 20, LINGER_S)
    reader = rings.join(KEYS[0], Dlsn(1, 0, 0))
    rings.add(reader.ring, _page(0, 2), 0)
    rings.add(reader.ring, _page(2, 4), 2)
    assert rings.take(reader, 100).alone
    rings.moved(reader, Dlsn(1, 3, 0))
    assert [page.body(JSON) for page in rings.take(reader, 100).pages] == [b"[3]"]


def test_who_is_ahead_waits() -> None:
    rings = TailRings(1 << 20, LINGER_S)
    ring = rings.join(KEYS[0], Dlsn(1, 0, 0)).ring
    reader = rings.join(KEYS[0], Dlsn(1, 3, 0))
    for number in range(0, 6, 2):
        rings.add(ring, _page(number, number + 2), 0)
        bodies = [page.body(JSON) for page in rings.take(reader, 100).pages]
        assert bodies == [[], [b"[3]"], [b"[4,5]"]][number // 2]


def test_who_is_at_the_end_gets_to_know_that_it_is_closed() -> None:
    end = Dlsn(1, 0, 1)
    closing = TailPage(end, empty_page(end, closed=True), 0)
    rings = TailRings(closing.weight, LINGER_S)
    early = rings.join(KEYS[0], end)
    rings.add(early.ring, closing, 0)
    late = rings.join(KEYS[0], end)
    for reader in (early, late):
        assert rings.take(reader, 100).pages == [closing]
    later = rings.join(KEYS[0], end)
    other = rings.join(KEYS[1], Dlsn(1, 0, 0))
    rings.add(other.ring, _page(0, 1), 0)  # for which the other has to go
    assert rings.take(later, 100).alone


def test_one_form_for_all_readers() -> None:
    page = _page(0, 2)
    assert page.frame(JSON, True) == (
        b"event: data\ndata:[0,1]\nid: 00000001-0000000000000000-00000002\n\n"
        b'event: control\ndata:{"streamNextOffset":"00000001-0000000000000000-00000002",'
        b'"streamCursor":"7","upToDate":true}\nid: 00000001-0000000000000000-00000002\n\n'
    )
    assert b"upToDate" not in page.frame(JSON, False)
    assert b'"streamCursor":"9"' in page.frame(JSON, True, "9")
    assert page.body(JSON) is page.body(JSON)
    assert page.after(Dlsn(1, 1, 0)).body(JSON) == b"[1]"
    assert page.after(Dlsn(1, 0, 0)) is page


def test_memory_of_forms_counts() -> None:
    forms = (MessageForm("text/plain"), MessageForm("application/octet-stream"), RecordForm("base64", False))
    rings = TailRings(60_000, LINGER_S)
    reader = rings.join(KEYS[0], Dlsn(1, 0, 0))
    for n in range(4):
        record = Record(n, 0, None, b"\n" * 2000, [])
        page = StreamPage([record], [BatchPlace(0, n)], position_after(0, n, n), True, False)
        rings.add(reader.ring, TailPage(Dlsn(1, n, 0), page, 0), 0)
    pages = rings.take(reader, 100_000).pages
    assert len(pages) == len(reader.ring.pages) == 4
    made = 0
    for each in pages:
        for form in forms:
            made += len(each.body(form)) + len(each.frame(form, True))
    assert made > 80_000
    assert rings.held_bytes == sum(page.weight for page in reader.ring.pages) <= 60_000
    assert len(reader.ring.pages) < 4


def test_a_position_of_another_leader_epoch_is_not_held() -> None:
    rings = TailRings(1 << 20, LINGER_S)
    rings.join(KEYS[0], position_after(3, 0, 1))
    assert rings.holds(KEYS[0], position_after(3, 0, 1))
    assert not rings.holds(KEYS[0], position_after(2, 0, 1))
