"""Transactions that ended twice, for somebody else, or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.museum.exhibit import Replaced, exhibit, promise
from tests.worlds.partition_world import NOW, Bench, plain
from tests.worlds.transaction_world import ID, P0, P1, Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction import EndTransaction, InitProducer, TransactionMachine, records
from duramen.machines.transaction.state import LAST_EPOCH, Transaction
from duramen.partition.replica import transactional_writes
from duramen.storage.segment.producer_state import Duplicate, ProducerStates

JEPSEN_BUFSTREAM = "https://jepsen.io/analyses/bufstream-0.1.0"


def _same_epoch(original: Callable[..., Transaction]) -> Callable[..., Transaction]:
    def prepared(self: Transaction, *arguments: Any) -> Transaction:
        return original(self, *arguments)._replace(producer=self.producer)

    return prepared


@exhibit(
    "an-abort-that-came-late",
    source="https://issues.apache.org/jira/browse/KAFKA-17754",
    guard="EndTxn of the second generation raises the epoch, so that a request of one transaction is none of the next",
    without=Replaced(Transaction, "prepared", _same_epoch),
)
def late_abort() -> None:
    """A request that the network kept was taken for one of the producer's next transaction, and ended that."""
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first)
    second = coordinator.end(first)
    coordinator.write_markers()
    coordinator.add(second)
    coordinator.code(EndTransaction(ID, first, False, 2))
    promise(coordinator.transaction.state.title == "Ongoing", "a late abort does not end the next transaction")


def _raised_in_memory(original: Callable[..., bool]) -> Callable[..., bool]:
    def fence(self: TransactionMachine, transactional_id: str, transaction: Transaction, *arguments: Any) -> bool:
        self.transactions[transactional_id] = _raised(transaction)
        return original(self, transactional_id, transaction, *arguments)

    return fence


def _raised(transaction: Transaction) -> Transaction:
    return transaction._replace(producer=ProducerEpoch(transaction.producer.id, transaction.producer.epoch + 1))


@exhibit(
    "an-epoch-raised-for-nothing",
    source="https://issues.apache.org/jira/browse/KAFKA-9666",
    guard="a fence is in its record alone: where the log refuses that, nothing has changed",
    without=Replaced(TransactionMachine, "_fence", _raised_in_memory),
)
def raised_for_nothing() -> None:
    """Each fence that could not be written raised the epoch in memory, until the epochs were used up."""
    coordinator = Coordinator(level=1)
    first = coordinator.init()
    coordinator.add(first, version=0)
    coordinator.refuses = True
    for _ in range(3):
        coordinator.ask(InitProducer(ID, 1000))
    coordinator.refuses = False
    promise(coordinator.transaction.producer == first, "what the log refused has not happened")
    coordinator.code(InitProducer(ID, 1000))
    promise(coordinator.markers().producer.epoch == first.epoch + 1, "the fence raises the epoch by one")


def _raised_twice(original: Callable[..., bool]) -> Callable[..., bool]:
    def fence(self: TransactionMachine, transactional_id: str, transaction: Transaction, *arguments: Any) -> bool:
        return original(self, transactional_id, _raised(transaction), *arguments)

    return fence


@exhibit(
    "an-epoch-raised-twice",
    source="https://issues.apache.org/jira/browse/KAFKA-19367",
    guard="with the second generation the abort raises the epoch, and the fence that causes it does not",
    without=Replaced(TransactionMachine, "_fence", _raised_twice),
)
def raised_twice() -> None:
    """A new life fenced the old one and then aborted: two epochs were gone, and a retry of the old one was unknown."""
    coordinator = Coordinator()
    first = coordinator.init()
    coordinator.add(first)
    coordinator.code(InitProducer(ID, 1000))
    coordinator.write_markers()
    promise(coordinator.transaction.producer.epoch == first.epoch + 1, "a fence raises the epoch once")


def _never(original: Any) -> Any:
    return property(lambda self: False)


@exhibit(
    "a-fence-at-the-last-epoch",
    source="https://issues.apache.org/jira/browse/KAFKA-20090",
    guard="a fence of the second generation draws a producer id where EndTxn would: behind the last epoch",
    without=Replaced(Transaction, "is_exhausted", _never),
)
def fence_at_the_last_epoch() -> None:
    """The abort of a time-out left the id with an epoch beyond which there is none."""
    coordinator = Coordinator()
    first = coordinator.init()
    last = coordinator.transaction._replace(producer=ProducerEpoch(first.id, LAST_EPOCH))
    coordinator.log.append(records.record(ID, last, 2))
    coordinator.restart()
    coordinator.add(last.producer)
    coordinator.wait(70_000)
    coordinator.write_markers()
    promise(coordinator.transaction.producer.epoch == 0, "the id has another producer id, whose epochs begin anew")
    promise(coordinator.transaction.producer.id != first.id, "and nobody else has it")


def _no_equal(original: Callable[..., bool]) -> Callable[..., bool]:
    def check(self: ProducerStates, header: Any, marker: Any, transaction_version: int) -> bool:
        known = self.get(header.producer_id)
        if known is not None and header.producer_epoch <= known.epoch:
            raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
        return original(self, header, marker, transaction_version)

    return check


@exhibit(
    "a-marker-that-was-there-already",
    source="https://issues.apache.org/jira/browse/KAFKA-19999",
    guard="a marker of the known epoch, where nothing is open, is the same one again: it is answered, not refused",
    without=Replaced(ProducerStates, "check_marker", _no_equal),
)
def marker_again() -> None:
    """A coordinator that had to write its markers once more was refused for ever, and the transaction never ended."""
    bench = Bench()
    coordinator = Coordinator()
    producer = coordinator.init()
    coordinator.add(producer)
    batch = plain(b"paid", producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=0, transactional=True)
    bench.partition.append_local(bytearray(batch), NOW)
    coordinator.end(producer)
    answers: list[KafkaError | None] = []
    for coordinator_epoch in (1, 2):
        marker = coordinator.markers()
        transactional_writes.append_marker(
            bench.partition, marker.producer, True, coordinator_epoch, 2, NOW, answers.append
        )
        bench.run()
        coordinator.restart()
    promise(answers == [None, None], "a coordinator that was loaded anew has its marker taken again")
    coordinator.ask(coordinator.written(P0))
    promise(coordinator.transaction.state.title == "CompleteCommit", "and the transaction ends")


def _write(bench: Bench, producer: ProducerEpoch, value: bytes) -> None:
    fields: dict[str, Any] = {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "base_sequence": 0,
        "transactional": True,
    }
    bench.local(plain(value, **fields))


def _mark(bench: Bench, coordinator: Coordinator) -> None:
    """The decided transaction is ended in its partition, if one is."""
    if coordinator.transaction.is_prepared:
        marker = coordinator.markers()
        transactional_writes.append_marker(bench.partition, marker.producer, marker.commit, 1, 2, NOW, lambda _: None)
        bench.run()
        coordinator.write_markers()


def _any_marker(original: Callable[..., bool]) -> Callable[..., bool]:
    return lambda self, *arguments: False


@exhibit(
    "half-of-a-transaction",
    source=JEPSEN_BUFSTREAM,
    guard="EndTxn of the second generation raises the epoch, and the marker that it leads to has to be of a later one",
    without=(Replaced(Transaction, "prepared", _same_epoch), Replaced(ProducerStates, "check_marker", _any_marker)),
)
def torn_transaction() -> None:
    """A commit that the network kept ended the producer's next transaction in the middle: readers saw one half."""
    bench, coordinator = Bench(), Coordinator()
    first = coordinator.init()
    coordinator.add(first)
    _write(bench, first, b"whole")
    second = coordinator.end(first)
    _mark(bench, coordinator)
    coordinator.add(second)
    _write(bench, second, b"one half")
    coordinator.code(EndTransaction(ID, first, True, 2))
    _mark(bench, coordinator)
    promise(bench.values(isolation=1) == [b"whole"], "nothing of a transaction is seen before its own commit")


def _unasked(original: Callable[..., None]) -> Callable[..., None]:
    return lambda self, *arguments: None


@exhibit(
    "a-batch-that-came-late",
    source=JEPSEN_BUFSTREAM,
    guard="the coordinator's word under which a batch is let in is cancelled by the end of the transaction",
    without=Replaced(ProducerStates, "check_guard", _unasked),
)
def late_batch() -> None:
    """A batch arrived behind the end of its transaction and began one that nobody would end: consumers were stuck."""
    bench = Bench()
    producer = ProducerEpoch(7, 0)
    guard = transactional_writes.transaction_guard(bench.partition, producer, 0, False)
    transactional_writes.append_marker(bench.partition, producer, False, 1, 0, NOW, lambda _: None)
    bench.run()
    late = plain(b"late", producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    bench.partition.append(memoryview(late), -1, NOW, lambda _: None, guard)
    bench.produce(plain(b"behind"))
    promise(
        bench.values(isolation=1) == [b"behind"], "readers of committed data get on, and see nothing of the aborted"
    )


@exhibit(
    "a-write-that-no-commit-knew",
    source=JEPSEN_BUFSTREAM,
    guard="a batch goes in where its coordinator has the partition in the transaction, and nowhere else",
    without=Replaced(ProducerStates, "check_guard", _unasked),
)
def unknown_write() -> None:
    """A write was acknowledged, its transaction was committed, and nobody ever read it: its partition got no marker."""
    bench, coordinator = Bench(), Coordinator()
    producer = coordinator.init()
    coordinator.add(producer, P1)  # of this partition the coordinator has not heard
    batch = plain(b"paid", producer_id=producer.id, producer_epoch=producer.epoch, base_sequence=0, transactional=True)
    answers: list[Any] = []
    bench.partition.append(memoryview(batch), -1, NOW, answers.append, None)
    bench.run()
    coordinator.end(producer)
    promise(coordinator.markers().partitions == (P1,), "the commit goes to the partitions that the coordinator knows")
    is_refused = isinstance(answers[0], KafkaError)
    promise(is_refused or bench.values(isolation=1) == [b"paid"], "what was acknowledged and committed is read")


@exhibit(
    "a-transaction-that-nobody-ends",
    source=JEPSEN_BUFSTREAM,
    guard="the coordinator aborts what is open for longer than its time-out",
    without=Replaced(TransactionMachine, "_abort_timed_out", _unasked),
)
def left_open() -> None:
    """Consumers were stuck behind a transaction whose producer had gone."""
    bench, coordinator = Bench(), Coordinator()
    producer = coordinator.init(timeout_ms=60_000)
    coordinator.add(producer)
    _write(bench, producer, b"half")
    bench.produce(plain(b"behind"))
    promise(bench.values(isolation=1) == [], "readers of committed data wait for the end of what is open")
    coordinator.wait(70_000)
    _mark(bench, coordinator)
    promise(b"behind" in bench.values(isolation=1), "and it ends, whatever becomes of its producer")


def _nowhere(original: Callable[..., Duplicate | None]) -> Callable[..., Duplicate | None]:
    def check(self: ProducerStates, header: Any) -> Duplicate | None:
        found = original(self, header)
        return None if found is None else Duplicate(0, found.timestamp, 0)

    return check


@exhibit(
    "offset-zero-for-a-repeated-batch",
    source=JEPSEN_BUFSTREAM,
    guard="a producer's last batches are remembered with their places, and who repeats one is told its first place",
    without=Replaced(ProducerStates, "check", _nowhere),
)
def repeated_batch() -> None:
    """A producer that sent a batch again was told that it is at offset 0, where another one's record was."""
    bench = Bench()
    bench.produce(plain(b"of somebody else"))
    batch = plain(b"mine", producer_id=7, producer_epoch=0, base_sequence=0)
    answers = [bench.produce(batch) for _ in range(2)]
    places = [None if isinstance(answer, KafkaError) else answer.base_offset for answer in answers]
    promise(places == [1, 1], "both answers have the offset of the record")
    promise(bench.values() == [b"of somebody else", b"mine"], "and it is there once")
