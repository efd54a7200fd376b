"""Transactions that ended twice, for somebody else, or never."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.museum.exhibit import Replaced, exhibit, promise
from tests.worlds.partition_world import NOW, Bench, plain
from tests.worlds.transaction_world import ID, P0, Coordinator

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction import EndTransaction, InitProducer, TransactionMachine, records
from duramen.machines.transaction.state import LAST_EPOCH, Transaction
from duramen.partition.replica import transactional_writes
from duramen.storage.segment.producer_state import ProducerStates


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
