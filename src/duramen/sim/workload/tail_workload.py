"""A gateway's own decisions in the simulated world: readers that share the reads of a stream's end, and writers whose
records leave together. Its rings and its queue are the gateway's; what is asynchronous there are scripts here.
"""

from __future__ import annotations

from random import Random
from typing import Final

from duramen.client.loop.node_client import call
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.positions import BelowStartError, DlsnDivergedError
from duramen.dlsn import Dlsn
from duramen.errors import ClosedError, DuramenError, ErrorCode
from duramen.gateway.streams.stream_page import StreamPage, read_page
from duramen.gateway.streams.stream_position import START, is_confirmed
from duramen.gateway.tails.tail_page import TailPage
from duramen.gateway.tails.tail_rings import StreamKey, TailReader, TailRing, TailRings
from duramen.gateway.writes.write_queue import WriteQueue
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.stream_book import Sent
from duramen.sim.workload.position_lookups import fetched_bytes, locate
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.stream_stage import GATHERED, StreamStage
from duramen.sim.workload.workload import RETRY_S, unexpected

WAIT_MS: Final = 200
POLL_S: Final = 0.05
LINGER_S: Final = 2.0
MORE_WHILE_FAULTS: Final = 5
LEAVES: Final = 0.02
"""How often a reader leaves when it has got something; it comes back with its position."""


class GatheredWrite:
    """Records of one writer. base: of the first, once they are stored."""

    def __init__(self, values: tuple[bytes, ...]) -> None:
        self.values = values
        self.base = -1


class SimGateway:
    """One gateway, which dies and begins anew without anything that it knew. deaths: so many times so far."""

    def __init__(self, stage: StreamStage, random: Random) -> None:
        self.stage = stage
        self.random = random
        self.deaths = 0
        self._begin()

    def _begin(self) -> None:
        self.rings = TailRings(self.random.choice((5_000, 20_000, 1 << 20)), LINGER_S)
        self.writes: WriteQueue[GatheredWrite] = WriteQueue(self.random.choice((60, 1000)))
        self._read: set[TailRing] = set()

    def script(self) -> Script:
        """Die now and then, as long as there are faults to come."""
        while self.stage.scene.faults_on:
            yield self.random.choice((1.0, 4.0, 15.0)) * self.random.random()
            if self.stage.scene.faults_on:
                self.deaths += 1
                self._begin()
                self.stage.scene.coverage.hit("gateway begun anew")

    # ---- reading -----------------------------------------------------------------------------------------------

    def join(self, tp: TopicPartition, position: Dlsn) -> TailReader:
        """A reader that has all up to the position."""
        reader = self.rings.join(key_of(tp), position)
        if reader.ring not in self._read:
            self._read.add(reader.ring)
            self.stage.follow(f"tail-{tp}-{self.deaths}", self._read_on(tp, reader.ring))
        return reader

    def _read_on(self, tp: TopicPartition, ring: TailRing) -> Script:
        """For all readers of a stream."""
        rings, stage = self.rings, self.stage
        failure: DuramenError = ClosedError("nobody reads any more")
        try:
            while rings is self.rings and not ring.closed and (ring.readers or stage.running):
                if ring in rings.idle(stage.scene.clock.monotonic()):
                    break
                fetched = yield from fetched_bytes(stage.scene, tp, ring.end.offset, wait_ms=WAIT_MS)
                if fetched is None:
                    yield from locate(stage.scene, tp, ring.end)
                    yield RETRY_S
                    continue
                if fetched.data:
                    yield from confirm(stage, tp, ring.end, fetched)
                page = read_page(fetched, ring.end)
                rings.add(ring, TailPage(ring.end, page, 0), fetched.log_start_offset)
        except (BelowStartError, DlsnDivergedError) as error:
            failure = error
        self._read.discard(ring)
        if not ring.closed:
            rings.fail(ring, failure)

    # ---- writing -----------------------------------------------------------------------------------------------

    def send_writes(self, tp: TopicPartition) -> Script:
        """One batch after the other, each until it is answered, under an id of each life of the gateway."""
        stage, deaths, sequence = self.stage, -1, 0
        producer = ProducerEpoch(-1, -1)
        while stage.running:
            if deaths != self.deaths:
                deaths, sequence = self.deaths, 0
                producer = yield from self._identity()
                continue  # it may have died meanwhile
            batch = self.writes.take()
            if not batch:
                yield POLL_S
                continue
            if len(batch) > 1:
                stage.scene.coverage.hit("writes left together")
            sent = Sent(tuple(value for write in batch for value in write.values), producer, sequence)
            while deaths == self.deaths:
                (told,) = yield from stage.append("gateway", tp, sent)
                if not told.is_open:
                    break
                yield RETRY_S
            if deaths != self.deaths:
                continue
            if told.code != ErrorCode.NONE:
                assert told.code is not None
                raise unexpected("gateway append", told.code)
            self.writes.settle()
            sequence += len(sent.values)
            base = told.stored.base
            for write in batch:
                write.base = base
                base += len(write.values)

    def _identity(self) -> Steps[ProducerEpoch]:
        while True:
            answer = yield call("InitProducerId", 4, transactional_id=None, transaction_timeout_ms=60000)
            if answer is not None and answer.error_code == ErrorCode.NONE:
                return ProducerEpoch(answer.producer_id, answer.producer_epoch)
            yield RETRY_S


class GatheringWriter:
    """Writes by a gateway, one after the other. What a gateway took along when it died is not sent again."""

    def __init__(self, gateway: SimGateway, name: str, tp: TopicPartition, total: int) -> None:
        self.gateway = gateway
        self.name = name
        self.tp = tp
        self.total = total

    def script(self) -> Script:
        """Until so many writes are stored."""
        gateway, random = self.gateway, self.gateway.random
        stored = made = last = 0
        while stored < self.total or (gateway.stage.scene.faults_on and stored < self.total * MORE_WHILE_FAULTS):
            count = random.choice((1, 1, 3))
            write = GatheredWrite(tuple(f"{self.name}:{made}:{at}".encode() for at in range(count)))
            made += 1
            deaths = gateway.deaths
            gateway.writes.put(write, 20 * count)
            while write.base < 0 and deaths == gateway.deaths:
                yield POLL_S * random.random()
            if write.base >= 0:
                stored += 1
                if write.base < last:
                    raise InvariantViolated("ReadOnce", f"{self.tp}: {write.values} is stored before what came first")
                last = write.base
            yield random.choice((0.0, 0.0, 0.1)) * random.random()


class TailFollower:
    """Reads a stream from its beginning by a gateway, and comes back with its own position after all that happens."""

    def __init__(self, gateway: SimGateway, name: str, tp: TopicPartition) -> None:
        self.gateway = gateway
        self.name = name
        self.tp = tp
        self.position = START
        self.seen: dict[bytes, int] = {}
        """Offsets by value."""
        self.is_closed = False
        self._next = 0

    def script(self) -> Script:
        """Until nobody writes any more and all is read."""
        stage = self.gateway.stage
        while True:
            try:
                while True:
                    over = not stage.running
                    if not self.gateway.rings.holds(key_of(self.tp), self.position):
                        page = yield from self._alone()
                        if self.is_closed or (over and page.up_to_date):
                            return
                        if not page.up_to_date:
                            continue
                    elif over:
                        page = yield from self._alone()
                        if self.is_closed or page.up_to_date:
                            return
                    yield from self._follow()
                    if self.is_closed:
                        return
            except BelowStartError as error:
                stage.scene.coverage.hit("follower found its past truncated")
                self.position = error.first.dlsn
                self._next = max(self._next, error.first.offset)
            except DlsnDivergedError:
                if stage.scene.is_stable(self.tp):
                    raise InvariantViolated("PositionLasts", f"{self.tp}: {self.position} is lost") from None
                stage.scene.coverage.hit("follower found its past lost")
                self.position, self.seen, self._next = START, {}, 0

    def _follow(self) -> Script:
        """By the shared reads, until those end."""
        gateway, rings, random = self.gateway, self.gateway.rings, self.gateway.random
        reader = gateway.join(self.tp, self.position)
        deaths = gateway.deaths
        try:
            while deaths == gateway.deaths and not self.is_closed:
                taken = rings.take(reader, random.choice((1, 200, 10_000)))
                if taken.failure is not None:
                    if isinstance(taken.failure, BelowStartError | DlsnDivergedError):
                        page = yield from self._alone()  # it says whether that is so of this reader's position
                    return
                if taken.pages:
                    gateway.stage.scene.coverage.hit("page of a shared read taken")
                    for tail in taken.pages:
                        self._receive(tail.page)
                    if random.random() < LEAVES:
                        return
                    yield random.choice((0.0, 0.0, 0.5)) * random.random()
                elif taken.alone:
                    gateway.stage.scene.coverage.hit("reader fell behind the shared read")
                    self.position = reader.position
                    page = yield from self._alone()
                    rings.moved(reader, page.position)
                elif gateway.stage.running:
                    yield POLL_S
                else:
                    return
        finally:
            rings.leave(reader, gateway.stage.scene.clock.monotonic())

    def _alone(self) -> Steps[StreamPage]:
        stage = self.gateway.stage
        while True:
            fetched = yield from fetched_bytes(stage.scene, self.tp, self.position.offset, max_bytes=500)
            if fetched is None:
                yield from locate(stage.scene, self.tp, self.position)
                yield RETRY_S
                continue
            yield from confirm(stage, self.tp, self.position, fetched)
            page = read_page(fetched, self.position)
            self._receive(page)
            return page

    def _receive(self, page: StreamPage) -> None:
        for record in page.records:
            offset, value = record.offset, bytes(record.value or b"")
            if offset < self._next or value in self.seen:
                known = self.seen.get(value)
                detail = f"{self.name} {self.tp}: {value!r} at {offset} after {self._next - 1}, seen at {known}"
                raise InvariantViolated("ReadOnce", detail)
            self.seen[value] = offset
            self._next = offset + 1
        self.position, self.is_closed = page.position, page.closed
        if self.is_closed:
            self.gateway.stage.book.heard_closed(self.tp, self.name)

    def judge(self) -> None:
        """All that is there has been read, at its place, and nothing else behind the start."""
        stage = self.gateway.stage
        there = stage.stored[self.tp]
        start = min(there.values(), default=self._next)
        mine = {value: offset for value, offset in self.seen.items() if offset >= start}
        if mine != there:
            odd = sorted(mine.items() ^ there.items(), key=lambda each: each[1])[:3]
            raise InvariantViolated("ReadOnce", f"{self.name} {self.tp}: read {len(mine)} of {len(there)}: {odd}")


class TailWorld:
    """A gateway, its readers and its writers."""

    def __init__(self, stage: StreamStage) -> None:
        self.stage = stage
        self.gateway = SimGateway(stage, stage.random)
        self.followers = [
            TailFollower(self.gateway, f"follower-{tp}-{number}", tp)
            for tp in stage.partitions()
            for number in range(2 if tp.topic == GATHERED else 1)
        ]
        self._is_judged = False

    def begin(self) -> None:
        """Let everybody begin."""
        stage, tp = self.stage, TopicPartition(GATHERED, 0)
        stage.follow("gateway", self.gateway.script())
        for follower in self.followers:
            stage.follow(follower.name, follower.script())
        for number in range(3):
            writer = GatheringWriter(self.gateway, f"gathering{number}", tp, stage.random.randint(2, 8))
            stage.run(writer.name, writer.script())
        stage.follow("fan-in", self.gateway.send_writes(tp))

    def judge(self) -> None:
        """Hold what readers have against the logs. Of page-cache streams only once: power may fail meanwhile."""
        for follower in self.followers:
            if self.stage.scene.is_stable(follower.tp) or not (self._is_judged or self.stage.positions.has_damage):
                follower.judge()
        self._is_judged = True


def key_of(tp: TopicPartition) -> StreamKey:
    """Of its ring."""
    return tp.topic.encode(), tp.partition


def confirm(stage: StreamStage, tp: TopicPartition, position: Dlsn, fetched: FetchedBytes) -> Script:
    """Raises as `find_place` unless what was fetched goes on from the record that the position is behind."""
    found = fetched.data
    if not found and position.offset > max(START.offset, fetched.log_start_offset):
        before = yield from fetched_bytes(stage.scene, tp, position.offset - 1, max_bytes=1)
        found = found if before is None else before.data
    if not is_confirmed(position, found):
        yield from locate(stage.scene, tp, position)
