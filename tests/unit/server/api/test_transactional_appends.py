"""Produce with a transactional id: who is asked, what waits for the word, and what each version is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.partition_world import NOW, TP, Bench, NoTimer, plain

from duramen.config import load_broker_config
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.model import TopicPartition
from duramen.partition.replica import transactional_writes
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import READ_COMMITTED
from duramen.server.api import transactional_appends
from duramen.server.api.transactional_appends import Refused, TransactionalAppends, TransactionalBatch

P = ProducerEpoch(1, 0)
Question = tuple[str, ProducerEpoch, tuple[TopicPartition, ...], bool]


class Coordinators:
    """Asked, they answer when told to."""

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self._waiting: list[Callable[[Refused], None]] = []

    def verify(
        self,
        transactional_id: str,
        producer: ProducerEpoch,
        partitions: tuple[TopicPartition, ...],
        verify_only: bool,
        done: Callable[[Refused], None],
    ) -> None:
        self.questions.append((transactional_id, producer, partitions, verify_only))
        self._waiting.append(done)

    def answer(self, code: ErrorCode = ErrorCode.NONE, which: int = 0) -> None:
        partitions = self.questions[len(self.questions) - len(self._waiting) + which][2]
        self._waiting.pop(which)(dict.fromkeys(partitions, code) if code else {})


class Node:
    """A partition, and who appends to it."""

    def __init__(self, **settings: str) -> None:
        self.bench = Bench()
        self.coordinators = Coordinators()
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.bench.clock.call_later = self._call_later  # type: ignore[method-assign]
        given = {name.replace("_", "."): value for name, value in settings.items()}
        config = load_broker_config(None, given)
        self.appends = TransactionalAppends(self.bench.clock, lambda: config, self.coordinators)

    def _call_later(self, seconds: float, callback: Callable[[], None]) -> NoTimer:
        self.timers.append((seconds, callback))
        return NoTimer()

    def send(self, batch: bytearray, version: int = 9, transactional_id: str = "T") -> list[Appended | KafkaError]:
        answers: list[Appended | KafkaError] = []
        view = memoryview(batch)
        one = TransactionalBatch(self.bench.partition, view, answers.append)
        self.appends.append(transactional_id, version, -1, [one])
        view[:] = bytes(len(view))  # its owner takes the next request into the same buffer
        return answers

    def end(self, producer: ProducerEpoch, *, commit: bool, version: int = 0) -> None:
        answers: list[KafkaError | None] = []
        transactional_writes.append_marker(self.bench.partition, producer, commit, 0, version, NOW, answers.append)
        self.bench.run()
        assert answers == [None]


def told(answers: list[Any]) -> ErrorCode:
    (answer,) = answers
    assert isinstance(answer, KafkaError), answer
    return answer.code


def batch(sequence: int, epoch: int = 0, producer: int = 1) -> bytearray:
    return plain(
        b"%d" % sequence, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


# ---- who is asked ------------------------------------------------------------------------------------------------


def test_the_first_batch_of_a_transaction_waits_for_the_word_and_the_next_ask_nobody() -> None:
    node = Node()
    first = node.send(batch(0))
    node.bench.run()
    assert (first, node.bench.partition.log_end_offset) == ([], 0)
    assert node.coordinators.questions == [("T", P, (TP,), True)]
    node.coordinators.answer()
    second = node.send(batch(1))
    node.bench.run()
    assert [*first, *second] == [Appended(0, -1, 0), Appended(1, -1, 0)]
    assert len(node.coordinators.questions) == 1
    assert node.appends.waiting_bytes == 0


def test_from_12_on_the_question_adds_the_partition() -> None:
    node = Node()
    node.send(batch(0), version=12)
    assert node.coordinators.questions == [("T", P, (TP,), False)]


def test_verification_can_be_switched_off_but_not_the_adding() -> None:
    node = Node(transaction_partition_verification_enable="false")
    answers = node.send(batch(0), version=11)
    node.bench.run()
    assert answers == [Appended(0, -1, 0)]
    node.end(P, commit=True)
    assert node.coordinators.questions == []
    node.send(batch(1), version=12)
    assert len(node.coordinators.questions) == 1


def test_a_plain_batch_asks_nobody_and_waits_for_nobody() -> None:
    node = Node()
    answers = node.send(plain(b"v"))
    node.bench.run()
    assert answers == [Appended(0, -1, 0)]
    assert node.coordinators.questions == []


def test_a_request_is_of_one_producer() -> None:
    node = Node()
    answers: list[Any] = []
    batches = [
        TransactionalBatch(node.bench.partition, memoryview(batch(0, producer=each)), answers.append) for each in (1, 2)
    ]
    node.appends.append("T", 9, -1, batches)
    assert [each.code for each in answers] == [ErrorCode.INVALID_PRODUCER_ID_MAPPING] * 2


def test_a_partition_of_another_leader_says_so_itself() -> None:
    node = Node()
    node.bench.partition.resign(2, 5)
    assert told(node.send(batch(0))) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.coordinators.questions == []


def test_an_older_epoch_is_fenced_without_a_question() -> None:
    node = Node()
    node.end(ProducerEpoch(1, 4), commit=False)
    assert told(node.send(batch(0, epoch=3))) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert node.coordinators.questions == []


# ---- order -------------------------------------------------------------------------------------------------------


def test_batches_keep_their_order_behind_a_question() -> None:
    node = Node()
    answers = [node.send(batch(sequence)) for sequence in range(5)]
    assert len(node.coordinators.questions) == 1
    node.coordinators.answer()
    node.bench.run()
    assert answers == [[Appended(sequence, -1, 0)] for sequence in range(5)]
    assert node.bench.values() == [b"0", b"1", b"2", b"3", b"4"]


def test_what_waits_behind_a_refused_one_is_refused_with_it_until_that_has_come_again() -> None:
    node = Node()
    refused = [node.send(batch(sequence)) for sequence in range(3)]
    node.coordinators.answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    assert [told(each) for each in refused] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 3
    early = node.send(batch(1))
    node.coordinators.answer()
    assert told(early) is ErrorCode.NOT_ENOUGH_REPLICAS, "the one before it is still under way"
    again = [node.send(batch(sequence)) for sequence in range(3)]
    node.coordinators.answer()
    node.bench.run()
    assert again == [[Appended(sequence, -1, 0)] for sequence in range(3)]


def test_a_zombie_behind_a_question_asks_for_itself() -> None:
    node = Node()
    old, new = node.send(batch(0, epoch=3)), node.send(batch(0, epoch=4))
    node.coordinators.answer(ErrorCode.PRODUCER_FENCED)
    assert told(old) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert node.coordinators.questions[1][1] == ProducerEpoch(1, 4)
    node.coordinators.answer()
    node.bench.run()
    assert new == [Appended(0, -1, 0)]


def test_a_word_that_comes_behind_the_marker_is_too_late() -> None:
    node = Node()
    answers = [node.send(batch(sequence)) for sequence in range(2)]
    node.end(P, commit=False)
    node.coordinators.answer()
    assert told(answers[0]) is ErrorCode.INVALID_TXN_STATE
    node.coordinators.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert told(answers[1]) is ErrorCode.INVALID_TXN_STATE
    assert node.bench.partition.last_stable_offset == node.bench.partition.high_watermark == 1


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactional_appends, "MOST_WAITING_BYTES", 200)
    node = Node()
    answers = [node.send(batch(sequence)) for sequence in range(4)]
    assert [told(each) for each in answers if each] == [ErrorCode.NOT_ENOUGH_REPLICAS] * 2
    node.coordinators.answer()
    node.bench.run()
    assert answers[:2] == [[Appended(0, -1, 0)], [Appended(1, -1, 0)]]
    assert node.appends.waiting_bytes == 0


# ---- what is told ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "version", "expected"),
    [
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 12, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 12, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NETWORK_EXCEPTION, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, 12, ErrorCode.INVALID_TXN_STATE),
    ],
)
def test_each_version_is_told_what_it_understands(code: ErrorCode, version: int, expected: ErrorCode) -> None:
    node = Node()
    answers = node.send(batch(0), version=version)
    node.coordinators.answer(code)
    assert told(answers) is expected
    assert node.bench.partition.log_end_offset == 0


def test_a_transaction_before_that_is_being_completed_is_waited_for_a_while() -> None:
    node = Node()
    answers = node.send(batch(0), version=12)
    for _ in range(5):
        node.coordinators.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
        ((seconds, ask),) = node.timers
        assert seconds == 0.02
        node.timers.clear()
        node.bench.clock.now_ms += 20
        ask()
    node.coordinators.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    assert told(answers) is ErrorCode.CONCURRENT_TRANSACTIONS
    assert node.timers == []


def test_the_marker_of_the_transaction_before_may_come_while_the_next_one_waits() -> None:
    """Second generation: the client goes on when its EndTxn is answered, and the markers come behind that."""
    node = Node()
    node.send(batch(0), version=12)
    node.coordinators.answer()
    node.bench.run()
    answers = node.send(batch(0, epoch=1), version=12)
    node.coordinators.answer(ErrorCode.CONCURRENT_TRANSACTIONS)
    node.end(ProducerEpoch(1, 1), commit=True, version=2)
    node.timers.pop()[1]()
    node.coordinators.answer()
    node.bench.run()
    assert answers == [Appended(2, -1, 0)]
    assert node.bench.values(0, READ_COMMITTED) == [b"0"]
