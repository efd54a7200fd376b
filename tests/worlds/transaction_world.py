"""A transaction machine, its log, and a replay of it that has to know the same."""

from __future__ import annotations

from typing import Any

from duramen.errors import KafkaError
from duramen.machines.contract import NO_TICKET, LogRecord, Outcome, ProducerEpoch, TimerFired
from duramen.machines.transaction import (
    AddPartitions,
    DrawProducerId,
    EndTransaction,
    InitProducer,
    MarkersWritten,
    TransactionMachine,
    TransactionSettings,
    WriteMarkers,
)
from duramen.machines.transaction.state import Transaction
from duramen.model import TopicPartition

START = 1_764_000_000_000
ID = "shop"
P0, P1, P2 = (TopicPartition("orders", partition) for partition in range(3))


class Coordinator:
    """What a host would do with the machine, without a disk: everything is committed at once.

    refuses: the log takes nothing. effects, timers: what the decisions asked for. draws: producer ids are given.
    """

    def __init__(self, level: int = 2, **settings: Any) -> None:
        self.settings = TransactionSettings(**settings)
        self.log: list[LogRecord] = []
        self.now = START
        self.refuses = False
        self.draws = True
        self.next_id = 1000
        self.level = level
        self.answers: dict[int, Any] = {}
        self._ticket = 0
        self.restart()

    def restart(self) -> Outcome:
        """Another machine replays the log."""
        self.machine = TransactionMachine(self.settings)
        self.machine.transaction_version = self.level
        for offset, record in enumerate(self.log):
            self.machine.apply(record, offset, self.now)
        self.effects: list[Any] = []
        self.timers: dict[Any, int | None] = {}
        out = self.machine.on_loaded(self.now)
        self._follow(out)
        return out

    def _follow(self, out: Outcome) -> None:
        for record in out.records:
            self.log.append(record)
            self.machine.apply(record, len(self.log), self.now)
        self.timers.update(out.timers)
        for effect in out.effects:
            if isinstance(effect, DrawProducerId) and self.draws:
                self.next_id += 1
                self._decide(effect.command._replace(fresh_id=self.next_id), effect.ticket)
            else:
                self.effects.append(effect)

    def _decide(self, command: Any, ticket: int) -> None:
        try:
            out = self.machine.decide(command, ticket, self.now)
        except KafkaError as error:
            out = Outcome(replies=[(ticket, error)])
        if out.records and self.refuses:
            self.answers[ticket] = "refused"
            if out.if_refused is not None:
                self._decide(out.if_refused, NO_TICKET)
            return
        self.answers.update(out.replies)
        self._follow(out)

    def ask(self, command: Any) -> Any:
        """The answer; a refusal is raised. "refused" when the log did not take it, "none" while there is none."""
        self._ticket += 1
        self._decide(command, self._ticket)
        answer = self.answers.pop(self._ticket, "none")
        if isinstance(answer, KafkaError):
            raise answer
        return answer

    def code(self, command: Any) -> str:
        """The name of the refusal's error, or the answer."""
        try:
            return str(self.ask(command))
        except KafkaError as error:
            return error.code.name

    def fire(self, timer: Any) -> None:
        self._decide(TimerFired(timer), NO_TICKET)

    def wait(self, ms: int) -> None:
        """Time passes; every timer that is due fires, once."""
        self.now += ms
        for timer, due in list(self.timers.items()):
            if due is not None and due <= self.now:
                del self.timers[timer]
                self.fire(timer)

    # ------------------------------------------------------------------ what is asked most

    @property
    def transaction(self) -> Transaction:
        return self.machine.transactions[ID]

    def init(self, sent: tuple[int, int] = (-1, -1), timeout_ms: int = 60_000) -> ProducerEpoch:
        producer: ProducerEpoch = self.ask(InitProducer(ID, timeout_ms, *sent))
        return producer

    def add(self, producer: ProducerEpoch, *partitions: TopicPartition, version: int = 2) -> None:
        self.ask(AddPartitions(ID, producer, partitions or (P0,), version))

    def end(self, producer: ProducerEpoch, commit: bool = True, version: int = 2) -> ProducerEpoch:
        after: ProducerEpoch = self.ask(EndTransaction(ID, producer, commit, version))
        return after

    def markers(self) -> WriteMarkers:
        """The markers that were asked for last."""
        last = self.effects[-1]
        assert isinstance(last, WriteMarkers)
        return last

    def written(self, *partitions: TopicPartition) -> MarkersWritten:
        """That of the markers that were asked for last those of these partitions are written."""
        last = self.markers()
        return MarkersWritten(last.transactional_id, last.producer, partitions, last.decided_ms)

    def write_markers(self) -> None:
        """They are all written."""
        last = self.markers()
        self.ask(self.written(*last.partitions))
