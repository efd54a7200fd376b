"""Transactional producers and copiers: they commit, abort, die, come back under their id, and wake late as zombies."""

from __future__ import annotations

from typing import Any, Final

from duramen.client.loop.node_client import call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.workload.cluster_client import GROUP, TRANSACTION
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.transaction_stage import (
    BALANCES,
    CACHED,
    COPIES,
    DOOMED,
    HANGS_S,
    ORDERS,
    CommittedReader,
    TransactionStage,
)
from duramen.sim.workload.transactional_client import FENCED, Fate, TransactionalClient
from duramen.sim.workload.workload import RETRY_S, unexpected

POLL_S: Final = 0.02
MORE_WHILE_FAULTS: Final = 6
DIES: Final = 0.03
DIES_ENDING: Final = 0.2
"""With its EndTxn on the way: nobody repeats it, and what became of it shows in the logs alone."""
SLEEPS: Final = 0.04
"""Between two steps of a life."""
LATE: Final = 0.2
"""Of the transactions of the second generation, of how many something comes once more, later."""
COPIER_GROUP: Final = "copier"


class TransactionalProgram:
    """Lives under one transactional id, one after the other; the next begins when one has died, or sleeps."""

    def __init__(self, stage: TransactionStage, transactional_id: str) -> None:
        self.stage = stage
        self.id = transactional_id
        self.lives = 0
        self.newest: TransactionalClient | None = None
        self._asleep: set[str] = set()
        self._over: set[str] = set()

    def script(self) -> Script:
        """Until there is nothing to do any more."""
        stage, random = self.stage, self.stage.scene.random
        while self.goes_on():
            self.lives += 1
            generation = random.choice((1, 2))
            life = self.newest = TransactionalClient(
                stage.scene, stage.book, self.id, self.lives, generation=generation
            )
            life.asleep = lambda life=life: self._between(life)  # type: ignore[misc]
            if self.lives > 1:
                stage.scene.coverage.hit("transactional id begun again")
            stage.run(life.name, self._life(life))
            while life.name not in self._over and life.name not in self._asleep:
                yield POLL_S
            yield random.choice((0.0, 0.1, 2.0)) * random.random()

    def _life(self, life: TransactionalClient) -> Script:
        yield from self.work(life)
        self._over.add(life.name)

    def goes_on(self) -> bool:
        """Whether there is something to do."""
        raise NotImplementedError

    def work(self, life: TransactionalClient) -> Script:
        """What one life does."""
        raise NotImplementedError

    def is_newest(self, life: TransactionalClient) -> bool:
        """Whether no other life has begun since."""
        return life is self.newest

    def _between(self, life: TransactionalClient) -> Steps[None]:
        """Sometimes a life stands still here, for so long that another one may begin."""
        scene = self.stage.scene
        if self.is_newest(life) and scene.faults_on and scene.random.random() < SLEEPS:
            self._asleep.add(life.name)
            scene.note(f"{life.name} sleeps")
            yield scene.random.choice((0.1, 1.0, 5.0)) * scene.random.random()
            self._asleep.discard(life.name)
            scene.note(f"{life.name} wakes")
            if not self.is_newest(life):
                scene.coverage.hit("zombie woke")
        elif scene.random.random() < 0.3:
            yield scene.random.uniform(0.0, 0.1)

    def dies(self) -> bool:
        """Whether a life ends here, without a word."""
        scene = self.stage.scene
        if scene.faults_on and scene.random.random() < DIES:
            scene.coverage.hit("client died in a transaction")
            return True
        return False

    def end(self, life: TransactionalClient, *, commit: bool) -> Steps[Fate | None]:
        """The end of a transaction; None: the client died asking for it."""
        scene = self.stage.scene
        if life.is_begun and scene.faults_on and scene.random.random() < DIES_ENDING:
            self.stage.unheard.add(self.id)
            yield from life.end_unheard(commit=commit)
            return None
        self.stage.unheard.discard(self.id)
        return (yield from life.end(commit=commit))

    def over(self, life: TransactionalClient) -> None:
        """The life was told that it is over."""
        if not self.is_newest(life):
            self.stage.scene.coverage.hit("zombie fenced")
        self.stage.scene.note(f"{life.name} is over")


class TransactionalProducer(TransactionalProgram):
    """Writes to several partitions in each transaction. total: how many transactions at least."""

    def __init__(self, stage: TransactionStage, transactional_id: str, total: int) -> None:
        super().__init__(stage, transactional_id)
        self.total = total
        self.done = 0
        self.leaves_one_open = stage.scene.random.random() < 0.3
        stage.at_work += 1

    def script(self) -> Script:
        """See TransactionalProgram."""
        if (yield from self.stage.begun()):
            yield from super().script()
        self.stage.at_work -= 1

    def _life(self, life: TransactionalClient) -> Script:
        self.stage.at_work += 1  # one that sleeps may write when its program has ended
        yield from super()._life(life)
        self.stage.at_work -= 1

    def goes_on(self) -> bool:
        limit = self.total * (MORE_WHILE_FAULTS if self.stage.scene.faults_on else 1)
        return self.done < limit

    def work(self, life: TransactionalClient) -> Script:
        zombie_does = self.stage.scene.random.randint(1, 3)
        while self.goes_on() and zombie_does:
            zombie_does -= not self.is_newest(life)
            fate: Fate | None = yield from life.begin()
            if fate is Fate.DONE:
                fate = yield from self._write(life)
                if fate is None:
                    return
                if fate is not Fate.OVER:
                    fate = yield from self._end(life, may_commit=fate is Fate.DONE)
                    if fate is None:
                        return
            if fate is Fate.OVER:
                self.over(life)
                return
            self.done += 1

    def _write(self, life: TransactionalClient) -> Steps[Fate | None]:
        """Everything of one transaction but its end; None: the client died."""
        stage, random = self.stage, self.stage.scene.random
        everywhere = stage.partitions(ORDERS) * 3 + stage.partitions(CACHED) * 2 + stage.partitions(DOOMED, BALANCES)
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            tps = sorted({random.choice(everywhere) for _ in range(random.choice((1, 1, 2, 3)))})
            if self.dies():
                return None
            # Not before AddPartitions has answered: where the last transaction's marker is missing, the batch would be
            # taken for a part of that one, as in Kafka. In the first generation both have one epoch.
            if life.generation == 1 and life.added and random.random() < 0.05:
                strange = [tp for tp in stage.partitions(ORDERS) if tp not in life.added]
                if strange:
                    return (yield from life.produce_unasked(strange[0]))
            fate = yield from life.add(tps)
            if fate is not Fate.DONE:
                return fate
            yield from life.asleep()
            batches = [(tp, random.choice((1, 1, 2, 5))) for tp in tps for _ in range(random.choice((1, 1, 1, 2)))]
            fate = yield from life.produce(batches)
            if fate is not Fate.DONE:
                return fate
            yield from life.asleep()
        return None if self.dies() else Fate.DONE

    def _end(self, life: TransactionalClient, *, may_commit: bool) -> Steps[Fate | None]:
        stage, random = self.stage, self.stage.scene.random
        if self.leaves_one_open and self.is_newest(life) and not stage.scene.faults_on:
            self.leaves_one_open = False
            stage.scene.coverage.hit("transaction left open")
            return Fate.OVER
        commit = may_commit and random.random() < 0.75
        producer, batches = life.producer, life.sent
        fate = yield from self.end(life, commit=commit)
        if fate is Fate.DONE and life.generation > 1 and random.random() < LATE:
            late = [life.request(batch) for batch in batches[-1:]] + [life.end_request(producer, commit=commit)]
            stage.run(f"{life.name}, late", self._late(life.name, random.choice(late)))
        return fate

    def _late(self, name: str, wanted: Any) -> Script:
        """A packet that has been on its way for long: whatever it is answered, it must have no effect."""
        scene = self.stage.scene
        yield scene.random.choice((0.0, 0.1, 1.0)) * scene.random.random()
        yield call("FindCoordinator", 4, key_type=TRANSACTION, coordinator_keys=[self.id])
        answer = yield wanted
        if answer is None:
            return
        is_batch = wanted.api.name == "Produce"
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code if is_batch else answer.error_code)
        scene.note(f"{name}: late {wanted.api.name}: {code.name}")
        if code in FENCED:
            scene.coverage.hit("late batch refused" if is_batch else "late EndTxn refused")


class Copier(TransactionalProgram):
    """Copies what is committed in one partition to another, and its position with it, in one transaction each."""

    def __init__(self, stage: TransactionStage, partition: int) -> None:
        super().__init__(stage, f"copier{partition}")
        self.source = TopicPartition(ORDERS, partition)
        self.target = TopicPartition(COPIES, partition)
        self.is_done = False

    def script(self) -> Script:
        """See TransactionalProgram."""
        if (yield from self.stage.begun()):
            yield from super().script()
        self.is_done = True

    def goes_on(self) -> bool:
        return not self.is_done

    def work(self, life: TransactionalClient) -> Script:
        """Copy; a position that was told before it was overtaken is worth nothing to a zombie, which uses it."""
        stage, random = self.stage, self.stage.scene.random
        reader = CommittedReader(stage, self.source)
        is_positioned, zombie_does = False, 2
        while not self.is_done and zombie_does:
            zombie_does -= not self.is_newest(life)
            fate: Fate | None = yield from life.begin()
            if fate is Fate.DONE and not is_positioned:
                yield from self._position(life, reader)
                is_positioned = True
            found: list[bytes] = []
            waits_from = stage.scene.clock.monotonic()
            while fate is Fate.DONE and not found:
                found = yield from reader.read(random.choice((300, 2000, 20000)))
                stored = stage.scene.stored.get(self.source, 0)  # a new leader may not know of all that yet
                if not found and not stage.at_work and stored <= reader.offset and 0 <= reader.end <= reader.offset:
                    self.is_done = True
                if self.is_done or not self.is_newest(life):
                    return
                if found or stage.at_work or stage.scene.faults_on:
                    waits_from = stage.scene.clock.monotonic()
                elif stage.scene.clock.monotonic() > waits_from + HANGS_S:
                    what = f"{HANGS_S} s later it is not read further than to {reader.offset} of {reader.end}"
                    raise InvariantViolated("StableAdvances", f"{self.source}: {what}")
                if not found:
                    yield random.uniform(0.01, 0.2)
            if fate is Fate.DONE:
                fate = yield from self._copy(life, found, reader.offset)
                if fate is None:
                    return
            if fate is not Fate.OVER:
                commit = fate is Fate.DONE and random.random() < 0.8
                is_positioned = commit
                fate = yield from self.end(life, commit=commit)
                if fate is None:
                    return
            if fate is Fate.OVER:
                self.over(life)
                return
            if life.has_lost_its_way:
                is_positioned = False

    def _copy(self, life: TransactionalClient, found: list[bytes], position: int) -> Steps[Fate | None]:
        if self.dies():
            return None
        fate = yield from life.add([self.target])
        if fate is not Fate.DONE:
            return fate
        yield from life.asleep()
        sources = [value.split(b" ", 1)[0].decode() for value in found]
        batches = [life.batch_of(self.target, life.values(part)) for part in halves(sources)]
        fate = yield from life.deliver(batches)
        if fate is not Fate.DONE:
            return fate
        yield from life.asleep()
        if self.dies():
            return None
        fate = yield from life.commit_offsets(COPIER_GROUP, {self.source: position})
        yield from life.asleep()
        return None if self.dies() else fate

    def _position(self, life: TransactionalClient, reader: CommittedReader) -> Script:
        """Where the group is; what is about to be committed is waited for."""
        stage = self.stage
        while True:
            yield from life.find(GROUP, COPIER_GROUP)
            wanted = call("OffsetFetch", 8, require_stable=True)
            kinds = wanted.api.request
            topic = kinds.OffsetFetchRequestTopics(name=ORDERS, partition_indexes=[self.source.partition])
            wanted.request.groups.append(kinds.OffsetFetchRequestGroup(group_id=COPIER_GROUP, topics=[topic]))
            asked = stage.scene.ledger.facts
            answer = yield wanted
            code = ErrorCode.NETWORK_EXCEPTION
            if answer is not None:
                told = answer.groups[0].topics[0].partitions[0] if answer.groups[0].topics else None
                code = ErrorCode(answer.groups[0].error_code or (told.error_code if told is not None else 0))
            stage.scene.note(f"{life.name} position: {code.name}")
            if code is ErrorCode.NONE and told is not None:
                stage.book.position_fetched(COPIER_GROUP, self.source, told.committed_offset, asked)
                reader.offset = max(0, told.committed_offset)
                return
            if code is ErrorCode.UNSTABLE_OFFSET_COMMIT:
                stage.scene.coverage.hit("position waited for a transaction")
            if code in (ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                life.forget(GROUP, COPIER_GROUP)
            if not code.retriable:
                raise unexpected(f"{life.name} position", code)
            yield RETRY_S


def halves(sources: list[str]) -> list[list[str]]:
    """In two batches, or in one."""
    middle = len(sources) // 2
    return [part for part in (sources[:middle], sources[middle:]) if part]


def check_copies(stage: TransactionStage) -> None:
    """Behind the verdict on the logs: each committed order was copied once, in order, and no other."""
    if not stage.offered:
        return
    for number in range(stage.topics[COPIES]):
        orders = [value.split(b" ", 1)[0] for value in stage.book.found(TopicPartition(ORDERS, number))]
        copied = [value.split(b" ")[2] for value in stage.book.found(TopicPartition(COPIES, number))]
        if orders != copied:
            missing, extra = len(set(orders) - set(copied)), len(copied) - len(set(copied))
            raise InvariantViolated(
                "Atomic", f"{COPIES}-{number}: {len(orders)} orders, {len(copied)} copies: {missing} missing, "
                f"{extra} twice, first other at {first_difference(orders, copied)}"
            )  # fmt: skip


def first_difference(left: list[bytes], right: list[bytes]) -> str:
    """Where two lists part."""
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return f"{place}: {one!r}, {other!r}"
    return f"{min(len(left), len(right))}"


class TransactionWorld:
    """Everybody who has to do with transactions in one simulation."""

    def __init__(self, stage: TransactionStage) -> None:
        random = stage.scene.random
        self.stage = stage
        total = random.choice((2, 4))
        self._programs: list[TransactionalProgram] = [
            TransactionalProducer(stage, f"t{number}", total) for number in range(random.choice((1, 2, 3)))
        ]
        self._programs += [Copier(stage, number) for number in range(stage.topics[COPIES])]
        self._readers = [CommittedReader(stage, tp) for tp in stage.partitions(ORDERS, CACHED, COPIES)]

    def begin(self) -> None:
        """Let everybody begin."""
        stage = self.stage
        stage.spawn("transactions", stage.set_up())
        for program in self._programs:
            stage.run(program.id, program.script())
        stage.run("recreator of topics in transactions", stage.recreate())
        for reader in self._readers:
            stage.watch(f"reader of committed {reader.tp}", reader.script())

    @property
    def is_over(self) -> bool:
        """Whether everybody but the readers has ended."""
        return not self.stage.running

    @property
    def is_read(self) -> bool:
        """Whether the readers have ended, too."""
        return not self.stage.watching

    def judge(self) -> Script:
        """Read the logs, and ask for the verdict."""
        yield from self.stage.read_all()
        check_copies(self.stage)
