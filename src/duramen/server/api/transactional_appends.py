"""Batches of transactions on their way into partitions: the first of each transaction waits for its coordinator's word.

A batch of a transaction that is open at its partition is appended at once. Another one takes a guard there, and its
coordinator is asked whether the partition is part of the transaction, or told that it is from now on (KIP-890, from
Produce 12 on). What the same producer sends to the partition meanwhile waits behind it, so that batches keep their
order, and one question is enough.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

from duramen.config import BrokerConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.partition.replica import transactional_writes
from duramen.partition.replica.parked_appends import Done
from duramen.partition.replica.partition import Partition
from duramen.ports import Clock
from duramen.storage import COPIED_BYTES, TransactionGuard
from duramen.wire.batch import transactional_producer

FIRST_VERSION_WITH_ABORTABLE: Final = 11
FIRST_VERSION_THAT_ADDS: Final = 12
"""Of Produce. The client's epoch rises with each transaction, and the partition becomes part of it by the batch."""
MOST_WAITING_BYTES: Final = 64 << 20
"""Of all batches that wait for words; more are refused, and come again."""

_UNREACHED: Final = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
"""Producers do not expect these here. NOT_ENOUGH_REPLICAS lets each of them send again, without asking for metadata."""

Refused = dict[TopicPartition, ErrorCode]


class Verifier(Protocol):
    """The transaction coordinators, as far as they are asked here."""

    def verify(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: tuple[TopicPartition, ...],
        verify_only: bool,
        done: Callable[[Refused], None],
    ) -> None:
        """Whether these partitions are part of the transaction; `done` gets what was refused."""


class TransactionalBatch(NamedTuple):
    """One batch of a Produce request. `done` is called as by `Partition.append`."""

    partition: Partition
    view: memoryview
    done: Done


class _Waiting(NamedTuple):
    transactional_id: str
    version: int
    acks: int
    producer: ProducerEpoch
    sequence: int
    batch: TransactionalBatch


Key = tuple[Partition, int]
"""A partition and a producer id."""


class TransactionalAppends:
    """Of one node; loop thread only."""

    def __init__(self, clock: Clock, config: Callable[[], BrokerConfig], coordinators: Verifier) -> None:
        self._clock = clock
        self._config = config
        self._coordinators = coordinators
        self._waiting: dict[Key, deque[_Waiting]] = {}
        """Behind a question: the first one's."""
        self.waiting_bytes = 0

    def append(self, transactional_id: str, version: int, acks: int, batches: Iterable[TransactionalBatch]) -> None:
        """Append the batches of a Produce request with a transactional id."""
        asked: list[_Waiting] = []
        producers: dict[ProducerEpoch, None] = {}
        for batch in batches:
            named = transactional_producer(batch.view)
            if named is None:  # plain, or refused for what it is
                batch.partition.append(batch.view, acks, self._clock.wall_ms(), batch.done)
                continue
            producer = ProducerEpoch(*named[:2])
            asked.append(_Waiting(transactional_id, version, acks, producer, named[2], batch))
            producers[producer] = None
        if len(producers) > 1:
            for each in asked:
                each.batch.done(
                    KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a request with batches of several producers")
                )
            return
        self._start(asked)

    # ---- one batch -------------------------------------------------------------------------------------------

    def _start(self, batches: list[_Waiting]) -> None:
        """Of one request: append what can be, and ask about the others at once."""
        guards: dict[Key, TransactionGuard] = {}
        for each in batches:
            key = each.batch.partition, each.producer.id
            if key in self._waiting:
                self._hold(key, each)
                continue
            guard = self._guard(each)
            if guard is None:
                self._append(each, None)
            elif self._hold(key, each):
                guards[key] = guard
        if guards:
            _Verification(self, batches[0], guards).ask()

    def _guard(self, each: _Waiting) -> TransactionGuard | None:
        """None where the partition decides by itself: the transaction is open, or the batch refused anyway."""
        try:
            return transactional_writes.transaction_guard(
                each.batch.partition, each.producer, each.sequence, each.version >= FIRST_VERSION_THAT_ADDS
            )
        except KafkaError:
            return None

    def _hold(self, key: Key, each: _Waiting) -> bool:
        size = len(each.batch.view)
        if self.waiting_bytes + size > MOST_WAITING_BYTES:
            self._refuse(each, KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, "too many batches wait for coordinators"))
            return False
        self.waiting_bytes += size
        if size <= COPIED_BYTES:  # what the log would copy, its owner may write over
            copy = memoryview(bytearray(each.batch.view))
            each = each._replace(batch=each.batch._replace(view=copy))
        self._waiting.setdefault(key, deque()).append(each)
        return True

    def _append(self, each: _Waiting, guard: TransactionGuard | None) -> None:
        partition, view, done = each.batch
        partition.append(view, each.acks, self._clock.wall_ms(), done, guard)

    def _refuse(self, each: _Waiting, error: KafkaError) -> None:
        """Those behind it are held back until it has come again, where it will."""
        each.batch.partition.retry_gate.remember(each.batch.view, error)
        each.batch.done(error)

    def _answered(self, key: Key, guard: TransactionGuard, code: ErrorCode) -> None:
        """The first that waits has its word, and so have those that wait with it."""
        waiting = self._waiting.pop(key)
        self.waiting_bytes -= sum(len(each.batch.view) for each in waiting)
        first = waiting[0]
        if code is ErrorCode.NONE:
            self._append(waiting.popleft(), guard)
        elif code not in _UNREACHED and code is not ErrorCode.CONCURRENT_TRANSACTIONS:
            first.batch.partition.log.producers.drop_guard(guard)
        while waiting and waiting[0].producer == first.producer and code is not ErrorCode.NONE:
            each = waiting.popleft()
            self._refuse(each, _refusal(code, each.version))
        for each in waiting:  # appended, where the first one was; else they ask for themselves
            self._start([each])


class _Verification:
    """What one request asks its coordinator."""

    __slots__ = ("_appends", "_asks_until", "_first", "_guards")

    def __init__(self, appends: TransactionalAppends, first: _Waiting, guards: dict[Key, TransactionGuard]) -> None:
        self._appends = appends
        self._first = first
        self._guards = guards
        config = appends._config()
        longest = min(
            config.integer("add.partitions.to.txn.retry.backoff.max.ms"), config.integer("request.timeout.ms")
        )
        self._asks_until = appends._clock.monotonic() + longest / 1000

    def ask(self) -> None:
        first, appends = self._first, self._appends
        adds = first.version >= FIRST_VERSION_THAT_ADDS
        if not adds and not appends._config().boolean("transaction.partition.verification.enable"):
            self._answered({})
            return
        partitions = tuple(partition.tp for partition, _ in self._guards)
        appends._coordinators.verify(first.transactional_id, first.producer, partitions, not adds, self._answered)

    def _answered(self, refused: Refused) -> None:
        appends = self._appends
        is_concurrent = ErrorCode.CONCURRENT_TRANSACTIONS in refused.values()
        may_ask = self._first.version >= FIRST_VERSION_THAT_ADDS and appends._clock.monotonic() < self._asks_until
        if is_concurrent and may_ask:
            # The transaction before is being completed: soon over, and sending the batch again takes longer.
            backoff = appends._config().integer("add.partitions.to.txn.retry.backoff.ms")
            appends._clock.call_later(backoff / 1000, self.ask)
            return
        for (partition, producer_id), guard in self._guards.items():
            appends._answered((partition, producer_id), guard, refused.get(partition.tp, ErrorCode.NONE))


def _refusal(code: ErrorCode, version: int) -> KafkaError:
    """As this version of Produce is told it (KafkaApis and ReplicaManager of 4.3.1)."""
    if code is ErrorCode.PRODUCER_FENCED:
        return KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH, "a newer epoch of the producer is known")
    if code in _UNREACHED or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < FIRST_VERSION_THAT_ADDS):
        what = f"unable to verify that the partition is part of the transaction: {code.name}"
        return KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, what)
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (
        code is ErrorCode.TRANSACTION_ABORTABLE and version < FIRST_VERSION_WITH_ABORTABLE
    ):
        code = ErrorCode.INVALID_TXN_STATE
    return KafkaError(code, f"the partition is not part of the transaction: {code.name}")
