"""One life of a transactional client in a simulation, speaking the protocol as Kafka's clients do.

Two generations: the first adds partitions and offsets to its transaction before it writes there, and keeps its epoch;
the second (KIP-890) lets the brokers add them, and gets another epoch with each end. A life of the first generation
that has lost a reply asks for a new epoch before its next transaction: what may still be under way is refused then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import NodeRequest, call
from duramen.errors import ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.transaction_book import KnownTransaction, TransactionBook, rank
from duramen.sim.workload.cluster_client import GROUP, TRANSACTION
from duramen.sim.workload.scripts import Steps
from duramen.sim.workload.workload import RETRY_S, Scene, unexpected
from duramen.wire.batch import build_batch

NOBODY: Final = ProducerEpoch(-1, -1)

FENCED: Final = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH)
ABORTABLE: Final = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.UNKNOWN_PRODUCER_ID,
    ErrorCode.OPERATION_NOT_ATTEMPTED,
)
"""What says that this transaction cannot be committed."""
OVER_FOR_MEMBERS: Final = (
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.STALE_MEMBER_EPOCH,
)
"""What says that a commit's member has lost its place in the group."""


class Fate(Enum):
    """How a step ended: done; the transaction has to be aborted; this life is over."""

    DONE = auto()
    ABORT = auto()
    OVER = auto()


class CommitMember(NamedTuple):
    """As what somebody commits a group's offsets; the default: a program that is in no group."""

    generation: int = -1
    member_id: str = ""
    instance_id: str | None = None


OUTSIDE: Final = CommitMember()


class SentBatch(NamedTuple):
    """A batch that waits for its acknowledgement, as it is sent."""

    tp: TopicPartition
    sequence: int
    keys: list[bytes]
    values: list[bytes]
    data: bytes


class TransactionalClient:
    """One life of `transactional_id`. generation: 1 or 2. patience_s: how long it tries a step before it gives it up.

    produce_version: of a first generation's batches.
    """

    def __init__(
        self, scene: Scene, book: TransactionBook, transactional_id: str, number: int, *, generation: int
    ) -> None:
        random = scene.random
        self.scene = scene
        self.book = book
        self.id = transactional_id
        self.name = f"{transactional_id}:{number}"
        self.generation = generation
        self.producer = NOBODY
        self.timeout_ms = random.choice((1000, 3000, 10_000))
        self.patience_s = random.choice((0.5, 3.0, 20.0))
        self.produce_version = 12 if generation > 1 else random.choice((9, 11))
        self.transaction: KnownTransaction | None = None
        self.numbers = 0
        self.made = 0
        self.asleep: Callable[[], Steps[None]] = _awake
        """Called between two steps: sometimes a life is overtaken by its successor there."""
        self.sent: list[SentBatch] = []
        """The batches of this transaction."""
        self._sequences: dict[TopicPartition, int] = {}
        self.added: set[TopicPartition | str] = set()
        """To the transaction, by this client itself."""
        self.is_begun = False
        self._lost = False
        self._again = False
        """Whether it needs a new epoch before the next transaction."""
        self._found: set[tuple[int, str]] = set()

    @property
    def has_lost_its_way(self) -> bool:
        """Whether it does not know how its last transaction ended."""
        return self._again

    # ---- the steps ---------------------------------------------------------------------------------------------

    def begin(self) -> Steps[Fate]:
        """Get an epoch where there is none, or where the last one may still be used by what is under way."""
        if self.producer == NOBODY or self._again:
            fate = yield from self._init()
            if fate is not Fate.DONE:
                return fate
        self.numbers += 1
        name = f"{self.name}:{self.numbers}"
        self.transaction = self.book.began(self.id, name, self.generation, self.producer)
        self.made = 0
        self.sent = []
        self.added = set()
        self.is_begun = self._lost = False
        return Fate.DONE

    def _init(self) -> Steps[Fate]:
        known = self.producer
        while True:
            code, answer = yield from self._ask(
                "init",
                TRANSACTION,
                lambda: call(
                    "InitProducerId",
                    4,
                    transactional_id=self.id,
                    transaction_timeout_ms=self.timeout_ms,
                    producer_id=known.id,
                    producer_epoch=known.epoch,
                ),
                patient=False,
            )
            if code is None:
                if known != NOBODY and not self.scene.faults_on:
                    continue
                return Fate.OVER
            if code in FENCED:
                return Fate.OVER
            if code != ErrorCode.NONE:
                raise unexpected(f"{self.name} init", code)
            break
        self.producer = ProducerEpoch(answer.producer_id, answer.producer_epoch)
        self.scene.note(f"{self.name} is producer {self.producer.id}/{self.producer.epoch}")
        self.book.began_life(self.id, self.producer)
        self._sequences = {}
        self._again = False
        return Fate.DONE

    def add(self, tps: Sequence[TopicPartition]) -> Steps[Fate]:
        """Add partitions to the transaction; the second generation leaves that to the brokers."""
        missing = [tp for tp in tps if tp not in self.added]
        if self.generation > 1 or not missing:
            return Fate.DONE

        def make() -> NodeRequest:
            wanted = call(
                "AddPartitionsToTxn",
                3,
                v3_and_below_transactional_id=self.id,
                v3_and_below_producer_id=self.producer.id,
                v3_and_below_producer_epoch=self.producer.epoch,
            )
            kinds = wanted.api.request
            for topic in sorted({tp.topic for tp in missing}):
                numbers = [tp.partition for tp in missing if tp.topic == topic]
                wanted.request.v3_and_below_topics.append(kinds.AddPartitionsToTxnTopic(name=topic, partitions=numbers))
            return wanted

        def code_of(answer: Any) -> int:
            codes = [
                result.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for result in topic.results_by_partition
            ]
            worse = [code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)]
            return int(worse[0] if worse else max(codes))

        fate = yield from self._step("add partitions", TRANSACTION, make, code_of)
        if fate is Fate.DONE:
            self.added.update(missing)
            self.is_begun = True
        return fate

    def produce(self, wanted: Sequence[tuple[TopicPartition, int]]) -> Steps[Fate]:
        """Write so many records to each of the partitions, in batches that are all under way at once."""
        return self.deliver([self._batch(tp, count) for tp, count in wanted])

    def deliver(self, waiting: Sequence[SentBatch]) -> Steps[Fate]:
        """Send batches until they are acknowledged."""
        deadline = self.scene.clock.monotonic() + self.patience_s
        while waiting:
            asked = self.scene.ledger.facts
            replies = yield [self.request(batch) for batch in waiting]
            refused: set[TopicPartition] = set()
            left: list[SentBatch] = []
            for batch, reply in zip(waiting, replies, strict=True):
                code = None if reply is None else ErrorCode(reply.responses[0].partition_responses[0].error_code)
                self.scene.note(f"{self.name} {batch.tp} {batch.sequence}+{len(batch.values)}: {code}")
                if code is ErrorCode.NONE:
                    self.is_begun = True
                    self.book.accepted(self.id, self.producer, "a batch", asked)
                    offset = reply.responses[0].partition_responses[0].base_offset
                    self.book.stored(batch.tp, offset, batch.values, batch.keys)
                    end = offset + len(batch.values)
                    self.scene.stored[batch.tp] = max(end, self.scene.stored.get(batch.tp, 0))
                    continue
                left.append(batch)
                self._lost |= code is None
                behind = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.tp in refused
                refused.add(batch.tp)
                if code is None or behind or code.retriable or code is ErrorCode.REQUEST_TIMED_OUT:
                    continue
                self._again = True
                if code in FENCED:
                    return Fate.OVER
                if code in ABORTABLE:
                    return Fate.ABORT
                raise unexpected(f"{self.name} produce to {batch.tp}", code)
            waiting = left
            if waiting:
                if self.scene.clock.monotonic() > deadline:
                    self.scene.note(f"{self.name} gives up")
                    self._again = True
                    return Fate.ABORT
                yield RETRY_S * self.scene.random.uniform(0.5, 1.5)
        return Fate.DONE

    def _batch(self, tp: TopicPartition, count: int) -> SentBatch:
        return self.batch_of(tp, self.values([""] * count))

    def values(self, sources: Sequence[str]) -> list[bytes]:
        """A value for each, of its own. sources: what it is a copy of."""
        assert self.transaction is not None
        padding = "." * self.scene.random.choice((0, 10, 100, 700))
        values = []
        for source in sources:
            self.made += 1
            values.append(f"{self.transaction.name}:{self.made:06} of {source} {padding}".encode())
        return values

    def batch_of(self, tp: TopicPartition, values: list[bytes]) -> SentBatch:
        """The next batch for the partition; the book knows of it from now on."""
        assert self.transaction is not None
        self.book.sent(self.transaction, tp, values)
        now = self.scene.clock.wall_ms()
        sequence = self._sequences.get(tp, 0)
        self._sequences[tp] = sequence + len(values)
        # Of few keys each transactional id has its own and shares others.
        keys = [f"{self.id}-{self.made % 2}".encode() if self.made % 3 else b"shared" for _ in values]
        data = build_batch(
            [(key, value, [], now) for key, value in zip(keys, values, strict=True)],
            producer_id=self.producer.id,
            producer_epoch=self.producer.epoch,
            base_sequence=sequence,
            transactional=True,
        )
        batch = SentBatch(tp, sequence, keys, values, bytes(data))
        self.sent.append(batch)
        return batch

    def request(self, batch: SentBatch) -> NodeRequest:
        """The Produce that brings it, as it is sent again and again."""
        wanted = call("Produce", self.produce_version, transactional_id=self.id, acks=-1, timeout_ms=30000)
        kinds = wanted.api.request
        data = kinds.PartitionProduceData(index=batch.tp.partition, records=batch.data)
        wanted.request.topic_data.append(kinds.TopicProduceData(name=batch.tp.topic, partition_data=[data]))
        return wanted

    def produce_unasked(self, tp: TopicPartition) -> Steps[Fate]:
        """Write to a partition that is not in the transaction, as a client with a bug might: it must be refused."""
        assert self.generation == 1
        assert tp not in self.added
        batch = self._batch(tp, 1)
        asked = self.scene.ledger.facts
        reply = yield self.request(batch)
        code = None if reply is None else ErrorCode(reply.responses[0].partition_responses[0].error_code)
        self.scene.note(f"{self.name} {tp} unasked: {code}")
        self._again = True
        if code is ErrorCode.NONE:
            raise InvariantViolated("NoLateMarker", f"{tp}: a batch is taken that is in no transaction, at {asked}")
        if code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE):
            self.scene.coverage.hit("batch in no transaction refused")
        return Fate.OVER if code in FENCED else Fate.ABORT

    def commit_offsets(
        self, group: str, positions: dict[TopicPartition, int], member: CommitMember = OUTSIDE
    ) -> Steps[Fate]:
        """Make a group's positions a part of the transaction."""
        assert self.transaction is not None
        if self.generation == 1 and group not in self.added:
            fate = yield from self._step(
                "add offsets",
                TRANSACTION,
                lambda: call(
                    "AddOffsetsToTxn",
                    3,
                    transactional_id=self.id,
                    producer_id=self.producer.id,
                    producer_epoch=self.producer.epoch,
                    group_id=group,
                ),
            )
            if fate is not Fate.DONE:
                return fate
            self.added.add(group)
            self.is_begun = True
            yield from self.asleep()
        for tp, offset in positions.items():
            self.book.offsets_sent(self.transaction, group, tp, offset)

        def make() -> NodeRequest:
            wanted = call(
                "TxnOffsetCommit",
                5 if self.generation > 1 else 3,
                transactional_id=self.id,
                group_id=group,
                producer_id=self.producer.id,
                producer_epoch=self.producer.epoch,
                generation_id=member.generation,
                member_id=member.member_id,
                group_instance_id=member.instance_id,
            )
            kinds = wanted.api.request
            for topic in sorted({tp.topic for tp in positions}):
                partitions = [
                    kinds.TxnOffsetCommitRequestPartition(
                        partition_index=tp.partition, committed_offset=offset, committed_metadata=self.name
                    )
                    for tp, offset in positions.items()
                    if tp.topic == topic
                ]
                wanted.request.topics.append(kinds.TxnOffsetCommitRequestTopic(name=topic, partitions=partitions))
            return wanted

        fate = yield from self._step(
            "commit offsets",
            GROUP,
            make,
            lambda answer: max(part.error_code for topic in answer.topics for part in topic.partitions),
            group,
        )
        self.is_begun |= fate is Fate.DONE
        return fate

    def end(self, *, commit: bool) -> Steps[Fate]:
        """Commit or abort, as often as it takes."""
        transaction = self.transaction
        assert transaction is not None
        if self.generation == 1 and not self.is_begun:
            self.scene.coverage.hit("empty transaction")
            self.transaction = None
            self._again |= self._lost
            if self._lost:
                transaction.abort_asked = True
            return Fate.DONE
        if commit:
            transaction.commit_asked = True
        else:
            transaction.abort_asked = True
        before = self.producer
        code, answer = yield from self._end(before, commit=commit)
        if code is None or code in FENCED:
            return Fate.OVER
        if code in ABORTABLE:
            # It was aborted meanwhile, or had never begun; or it is of another epoch, which a new one tells.
            self._again = True
            self.transaction = None
            return Fate.DONE
        if code != ErrorCode.NONE:
            raise unexpected(f"{self.name} end", code)
        self.book.told(transaction, committed=commit)
        self.scene.coverage.hit("transaction committed" if commit else "transaction aborted")
        if self.scene.random.random() < 0.15:
            yield from self._end_again(before, answer, commit=commit)
        if self.generation > 1:
            self._learn(answer)
            self._again = False
        else:
            self._again |= self._lost
        self.transaction = None
        return Fate.DONE

    def end_unheard(self, *, commit: bool) -> Steps[None]:
        """Ask for the end once, and die: whatever the answer is, nobody hears it."""
        transaction = self.transaction
        assert transaction is not None
        if commit:
            transaction.commit_asked = True
        else:
            transaction.abort_asked = True
        self.scene.coverage.hit("client died with its EndTxn on the way")
        self.scene.note(f"{self.name} dies asking for the end")
        yield from self.find(TRANSACTION, self.id)
        yield self.end_request(self.producer, commit=commit)

    def _learn(self, answer: Any) -> None:
        """The epoch of the next transaction."""
        before, self.producer = self.producer, ProducerEpoch(answer.producer_id, answer.producer_epoch)
        if rank(self.producer) <= rank(before):
            raise InvariantViolated("FencedAnsweredOnce", f"{self.name}: {self.producer} follows {before}")
        self._sequences = {}

    def _end(self, producer: ProducerEpoch, *, commit: bool) -> Steps[tuple[ErrorCode | None, Any]]:
        return (
            yield from self._ask(
                "commit" if commit else "abort",
                TRANSACTION,
                lambda: self.end_request(producer, commit=commit),
                patient=True,
                accepts=producer,
            )
        )

    def end_request(self, producer: ProducerEpoch, *, commit: bool) -> NodeRequest:
        """The EndTxn of a transaction of this epoch."""
        return call(
            "EndTxn",
            5 if self.generation > 1 else 3,
            transactional_id=self.id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=commit,
        )

    def _end_again(self, producer: ProducerEpoch, first: Any, *, commit: bool) -> Steps[None]:
        """What is repeated is answered as it was, and has no second effect."""
        self.scene.coverage.hit("EndTxn repeated")
        code, answer = yield from self._end(producer, commit=commit)
        if code is None or code in FENCED:
            return  # a successor may have begun
        if code != ErrorCode.NONE:
            raise InvariantViolated("FencedAnsweredOnce", f"{self.name}: the same EndTxn is answered with {code.name}")
        told = answer.producer_id, answer.producer_epoch
        if self.generation > 1 and told != (first.producer_id, first.producer_epoch):
            raise InvariantViolated("FencedAnsweredOnce", f"{self.name}: the same EndTxn is answered with {told}")

    # ---- asking ------------------------------------------------------------------------------------------------

    def _step(
        self,
        what: str,
        kind: int,
        make: Callable[[], NodeRequest],
        code_of: Callable[[Any], int] = lambda answer: answer.error_code,
        key: str = "",
    ) -> Steps[Fate]:
        code, _ = yield from self._ask(what, kind, make, code_of, key, accepts=self.producer)
        if code is ErrorCode.NONE:
            return Fate.DONE
        if code in FENCED:
            return Fate.OVER
        if code is None or code in ABORTABLE or code in OVER_FOR_MEMBERS:
            self._again = True
            return Fate.ABORT
        raise unexpected(f"{self.name} {what}", code)

    def _ask(
        self,
        what: str,
        kind: int,
        make: Callable[[], NodeRequest],
        code_of: Callable[[Any], int] = lambda answer: answer.error_code,
        key: str = "",
        *,
        patient: bool = False,
        accepts: ProducerEpoch | None = None,
    ) -> Steps[tuple[ErrorCode | None, Any]]:
        """Ask the coordinator until it says what is not to be tried again; (None, None) where patience ended.

        patient: for as long as there are no faults any more, and longer than else before.
        """
        scene = self.scene
        deadline = scene.clock.monotonic() + self.patience_s * (4 if patient else 1)
        while True:
            yield from self.find(kind, key or self.id)
            asked = scene.ledger.facts
            answer = yield make()
            code = None if answer is None else ErrorCode(code_of(answer))
            scene.note(f"{self.name} {what}: {code}")
            if code is None:
                self._lost = True
                self.forget(kind, key or self.id)
            elif code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
                self.forget(kind, key or self.id)
            elif not code.retriable:
                if code is ErrorCode.NONE and accepts is not None:
                    self.book.accepted(self.id, accepts, what, asked)
                return code, answer
            if scene.clock.monotonic() > deadline and (scene.faults_on or not patient):
                self.scene.note(f"{self.name} gives up")
                return None, None
            yield RETRY_S * scene.random.uniform(0.5, 1.5)

    def forget(self, kind: int, key: str) -> None:
        """Whoever coordinates it may be another one now."""
        self._found.discard((kind, key))

    def find(self, kind: int, key: str) -> Steps[None]:
        """Ask who coordinates this, unless that is known."""
        while (kind, key) not in self._found:
            found = yield call("FindCoordinator", 4, key_type=kind, coordinator_keys=[key])
            code = None if found is None else ErrorCode(found.coordinators[0].error_code)
            if code is ErrorCode.NONE:
                self._found.add((kind, key))
                return
            if code is not None and not code.retriable:
                raise unexpected(f"{self.name} finds the coordinator of {key}", code)
            yield RETRY_S


def _awake() -> Steps[None]:
    """A step that is none."""
    return
    yield 0.0
