"""Writers of streams: named ones that send again and live twice, those who close what others write to, those who race
for a position, and those who open a stream that others have open.
"""

from __future__ import annotations

from typing import Final

from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import NO_EPOCH, TopicPartition, named_producer_id
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.stream_book import Sent
from duramen.sim.workload.position_lookups import PositionHolder, Truncator
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.stream_stage import (
    ASSIGNED,
    CLOSED,
    CLOSED_CACHED,
    CLOSED_CODES,
    FENCED_CODES,
    NAMED,
    OWNED,
    OWNED_CACHED,
    RACED,
    TXIDS,
    TXIDS_CACHED,
    StreamStage,
    Told,
)
from duramen.sim.workload.tail_workload import TailWorld
from duramen.sim.workload.txid_workload import StampedWriter, TxidWriter
from duramen.sim.workload.workload import RETRY_S, unexpected

MORE_WHILE_FAULTS: Final = 5
IN_FLIGHT: Final = 4
AGAIN: Final = 0.15
"""Of the acknowledged batches of a named writer, how many come once more, later."""
CUT: Final = 0.6
"""Share of the worlds in which records of streams are deleted."""
REFUSALS: Final = 3
"""So often is a closed stream written to by each writer."""


class NamedProgram:
    """Lives of one name, each with the next epoch; one may go on while the next has begun. total: batches of a life."""

    def __init__(self, stage: StreamStage, name: str, tp: TopicPartition, lives: int, total: int) -> None:
        self.stage = stage
        self.name = name
        self.tp = tp
        self.lives = lives
        self.total = total

    def script(self) -> Script:
        """Begin one life behind the other."""
        random = self.stage.random
        for epoch in range(self.lives):
            self.stage.run(f"{self.name} {epoch}", self._life(epoch))
            yield random.choice((0.05, 0.5, 3.0)) * random.random()

    def _life(self, epoch: int) -> Script:
        stage, random, scene = self.stage, self.stage.random, self.stage.scene
        producer = ProducerEpoch(named_producer_id(self.name), epoch)
        waiting: list[Sent] = []
        stored: list[Sent] = []
        made = refused = 0
        while waiting or made < self.total or (scene.faults_on and made < self.total * MORE_WHILE_FAULTS):
            while len(waiting) < random.randint(1, IN_FLIGHT):
                waiting.append(self._batch(producer, made))
                made += 1
            if scene.faults_on:
                yield random.choice((0.0, 0.05, 0.4)) * random.random()
            if stored and random.random() < AGAIN:
                scene.coverage.hit("batch of a named writer sent once more")
                again = random.choice(stored[-8:])
                (told,) = yield from stage.append(self.name, self.tp, again)
                if told.code == ErrorCode.NONE and not told.stored.is_duplicate:
                    raise InvariantViolated("NamedOnce", f"{self.tp}: {again.values} is appended once more: {told}")
                self._check_known(told, again)
            found = yield from stage.append(self.name, self.tp, *waiting, by_produce=random.random() < 0.3)
            for told in found:
                if told.code != ErrorCode.NONE:
                    break
                stored.append(waiting.pop(0))
            else:
                continue
            if told.code in FENCED_CODES:
                scene.coverage.hit("older epoch of a named writer refused")
                return
            if told.code in CLOSED_CODES and self.tp in stage.book.close_asked:
                scene.coverage.hit("append to a closed stream refused")
                refused += 1
                if refused == REFUSALS:
                    return
            elif len(found) == 1 or told is found[0]:
                self._check_known(told, waiting[0])
            yield RETRY_S * random.uniform(0.5, 1.5)

    def _check_known(self, told: Told, sent: Sent) -> None:
        """What was acknowledged before it must be known."""
        if told.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and self.stage.scene.ledger.lasts(self.tp):
            expected = told.expected_sequence
            raise InvariantViolated("NamedOnce", f"{self.tp}: sequence {sent.sequence} is sent, {expected} expected")
        is_meant = told.code in (ErrorCode.NONE, *FENCED_CODES, *CLOSED_CODES)
        if not told.is_open and not is_meant and told.code is not None:
            raise unexpected(f"{self.name} append", told.code)

    def _batch(self, producer: ProducerEpoch, number: int) -> Sent:
        random = self.stage.random
        count = random.choice((1, 1, 2, 4))
        padding = b"." * random.choice((0, 10, 300))
        values = tuple(f"{self.name}:{producer.epoch}:{number}:{at} ".encode() + padding for at in range(count))
        return Sent(values, producer, number)


class PlainProgram:
    """Appends without a producer until the stream is closed."""

    def __init__(self, stage: StreamStage, name: str, tp: TopicPartition) -> None:
        self.stage = stage
        self.name = name
        self.tp = tp

    def script(self) -> Script:
        """Until it was refused often enough."""
        stage, random = self.stage, self.stage.random
        made = refused = 0
        while refused < REFUSALS:
            if stage.book.has_damage and not stage.scene.is_stable(self.tp):
                return  # its close may be gone
            sent = Sent((f"{self.name}:{made} ".encode() + b"." * random.choice((0, 100)),))
            made += 1
            (told,) = yield from stage.append(self.name, self.tp, sent, by_produce=random.random() < 0.5)
            if told.code in CLOSED_CODES and self.tp in stage.book.close_asked:
                stage.scene.coverage.hit("append to a closed stream refused")
                refused += 1
            elif told.code != ErrorCode.NONE and not told.is_open:
                assert told.code is not None
                raise unexpected(f"{self.name} append", told.code)
            yield random.choice((0.02, 0.1, 0.5)) * random.random()


class Closer:
    """Closes a stream, with a last record or without, as often as it takes, and sometimes once more."""

    def __init__(self, stage: StreamStage, name: str, tp: TopicPartition) -> None:
        self.stage = stage
        self.name = name
        self.tp = tp

    def script(self) -> Script:
        """Close it."""
        stage, random = self.stage, self.stage.random
        yield random.choice((0.3, 2.0, 6.0)) * random.random()
        last = (f"{self.name}:last".encode(),)
        stage.book.close_asked.add(self.tp)
        producer = ProducerEpoch(named_producer_id(self.name), 0)
        sent = random.choice((Sent((), closes=True), Sent(last, closes=True), Sent(last, producer, 0, closes=True)))
        while not (yield from self._close(sent)):
            yield RETRY_S * random.uniform(0.5, 1.5)
        stage.scene.coverage.hit("stream closed")
        if random.random() < 0.5:
            yield 3.0 * random.random()
            yield from self._close(Sent((), closes=True))

    def _close(self, sent: Sent) -> Steps[bool]:
        """Once; whether it is closed."""
        (told,) = yield from self.stage.append(self.name, self.tp, sent)
        if told.code != ErrorCode.NONE and told.code not in CLOSED_CODES and not told.is_open:
            assert told.code is not None
            raise unexpected(f"{self.name} close", told.code)
        return told.code == ErrorCode.NONE or told.code in CLOSED_CODES


class Racer:
    """Appends where it believes the log to end, as others do. is_named: whether it does so as a named writer."""

    def __init__(self, stage: StreamStage, name: str, tp: TopicPartition, total: int, *, is_named: bool) -> None:
        self.stage = stage
        self.name = name
        self.tp = tp
        self.total = total
        self.producer = ProducerEpoch(named_producer_id(name), 0) if is_named else None
        self._end = 0
        self._epoch = NO_EPOCH

    def script(self) -> Script:
        """Until so many appends are acknowledged."""
        random, scene = self.stage.random, self.stage.scene
        won = made = 0
        while won < self.total or (scene.faults_on and won < self.total * MORE_WHILE_FAULTS):
            values = tuple(f"{self.name}:{made}:{at}".encode() for at in range(random.choice((1, 1, 3))))
            made += 1
            number = won if self.producer is not None else -1
            sent = Sent(values, self.producer, number, self._end, epoch=self._epoch)
            told = yield from self._try(sent)
            while told.is_open and (self.producer is not None or random.random() < 0.5):
                yield RETRY_S * random.uniform(0.5, 1.5)
                told = yield from self._try(sent)
            if told.code == ErrorCode.NONE:
                won += 1
                self._end, self._epoch = told.stored.end, told.stored.end_epoch
            elif told.code == ErrorCode.END_IS_ELSEWHERE:
                scene.coverage.hit("append expected another end")
                if told.stored.end == self._end:
                    raise InvariantViolated("OneAtAPosition", f"{self.tp} ends at {self._end}, and that was refused")
                self._end, self._epoch = told.stored.end, told.stored.end_epoch
            elif told.is_open:
                yield from self._look()
            else:
                assert told.code is not None
                raise unexpected(f"{self.name} append", told.code)
            yield random.choice((0.0, 0.05, 0.3)) * random.random()

    def _try(self, sent: Sent) -> Steps[Told]:
        (told,) = yield from self.stage.append(self.name, self.tp, sent)
        return told

    def _look(self) -> Script:
        """Ask where the log ends."""
        while True:
            told = yield from self._try(Sent(()))
            if told.code == ErrorCode.NONE:
                self._end, self._epoch = told.stored.end, told.stored.end_epoch
                return
            yield RETRY_S


class Owner:
    """Opens a stream for itself, writes until it is fenced and a bit longer, and opens it again."""

    def __init__(self, stage: StreamStage, name: str, tp: TopicPartition, total: int) -> None:
        self.stage = stage
        self.name = name
        self.tp = tp
        self.total = total

    def script(self) -> Script:
        """So many times."""
        random, scene = self.stage.random, self.stage.scene
        opened = 0
        while opened < self.total or (scene.faults_on and opened < self.total * MORE_WHILE_FAULTS):
            producer_id = yield from self._open()
            opened += 1
            yield from self._write(ProducerEpoch(producer_id, 0), opened)
            yield random.choice((0.0, 0.3, 2.0)) * random.random()

    def _open(self) -> Steps[int]:
        while True:
            code, producer_id = yield from self.stage.open(self.name, self.tp)
            if code == ErrorCode.NONE:
                self.stage.scene.coverage.hit("stream opened for one writer")
                return producer_id
            self._check(code)
            yield RETRY_S * self.stage.random.uniform(0.5, 1.5)

    def _check(self, code: ErrorCode | None) -> None:
        if code not in (None, ErrorCode.NONE, ErrorCode.PRODUCER_FENCED) and not code.retriable:
            raise unexpected(f"{self.name} opens", code)

    def _write(self, producer: ProducerEpoch, opened: int) -> Script:
        stage, random = self.stage, self.stage.random
        sequence, refused, total = 0, 0, random.randint(1, 12)
        while sequence < total and refused < REFUSALS:
            values = tuple(f"{self.name}:{opened}:{sequence}:{at}".encode() for at in range(random.choice((1, 1, 3))))
            sent = Sent(values, producer, sequence)
            while True:
                (told,) = yield from stage.append(self.name, self.tp, sent, by_produce=random.random() < 0.3)
                if not told.is_open:
                    break
                yield RETRY_S * random.uniform(0.5, 1.5)
            if told.code == ErrorCode.PRODUCER_FENCED:
                stage.scene.coverage.hit("fenced writer refused")
                refused += 1
            elif told.code == ErrorCode.NONE:
                sequence += len(values)
            elif told.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not stage.scene.is_stable(self.tp):
                return  # power failed, and took what precedes
            else:
                assert told.code is not None
                raise unexpected(f"{self.name} append", told.code)
            yield random.choice((0.0, 0.05, 0.5)) * random.random()
        if random.random() < 0.2:
            code, _ = yield from stage.open(self.name, self.tp, release=producer.id)
            self._check(code)
            if code == ErrorCode.NONE:
                stage.scene.coverage.hit("stream given up by its writer")


class StreamWorld:
    """All who write to streams in one world."""

    def __init__(self, stage: StreamStage) -> None:
        self.stage = stage
        self.tails = TailWorld(stage)
        self.holder = PositionHolder(stage)

    def begin(self) -> None:
        """Let everybody begin."""
        stage, random = self.stage, self.stage.random
        stage.running += 1

        def set_up() -> Script:
            yield from stage.set_up()
            stage.running -= 1

        stage.spawn("streams", set_up())
        for number in range(2):
            tp = TopicPartition(NAMED, 0)
            named = NamedProgram(stage, f"n{number}", tp, random.randint(1, 3), random.randint(3, 12))
            stage.run(named.name, named.script())
        for topic in (CLOSED, CLOSED_CACHED):
            tp = TopicPartition(topic, 0)
            stage.run(f"plain-{topic}", PlainProgram(stage, f"plain-{topic}", tp).script())
            stage.run(f"closer-{topic}", Closer(stage, f"closer-{topic}", tp).script())
            if topic == CLOSED:
                stage.run("n-closed", NamedProgram(stage, "n-closed", tp, random.randint(1, 2), 1000).script())

        for number in range(3):
            raced = TopicPartition(RACED, 0)
            racer = Racer(stage, f"racer{number}", raced, random.randint(2, 8), is_named=number == 0)
            stage.run(racer.name, racer.script())
            for topic in (OWNED, OWNED_CACHED)[: 2 if number else 1]:
                owner = Owner(stage, f"{topic}{number}", TopicPartition(topic, 0), random.randint(1, 3))
                stage.run(owner.name, owner.script())
        for topic in (TXIDS, TXIDS_CACHED):
            for number in range(2):
                tp = TopicPartition(topic, 0)
                writer = TxidWriter(stage, f"{topic}{number}", tp, random.randint(2, 8), is_named=number == 0)
                stage.run(writer.name, writer.script())
        stamped = StampedWriter(stage, "stamped", TopicPartition(ASSIGNED, 0), random.randint(2, 8))
        stage.run(stamped.name, stamped.script())
        self.tails.begin()
        stage.follow("holder", self.holder.script())
        if random.random() < CUT:
            stage.follow("truncator", Truncator(stage).script())

    @property
    def is_over(self) -> bool:
        """Whether everybody has ended."""
        return not self.stage.running and not self.stage.following

    def judge(self) -> Script:
        """Hold the logs against what writers know."""
        yield from self.stage.read_all()
        self.tails.judge()
        yield from self.holder.at_last()
