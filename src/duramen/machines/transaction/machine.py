"""The transaction machine: one partition's worth of transactional ids, on `__transaction_state`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.ages import Ages
from duramen.machines.contract import NO_TICKET, LogRecord, Outcome, ProducerEpoch, TimerFired, TransactionMarks
from duramen.machines.transaction import descriptions, endings, records, sweeps, takeovers
from duramen.machines.transaction.commands import (
    NO_PRODUCER,
    SECOND_GENERATION,
    AbortTransaction,
    AddPartitions,
    DescribeTransactions,
    DrawFailed,
    DrawProducerId,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    MarkersAbandoned,
    MarkersWritten,
    ResumeParked,
    SweepRefused,
    TransactionDescription,
    VerifyPartitions,
    WriteMarkers,
)
from duramen.machines.transaction.endings import Verdict
from duramen.machines.transaction.settings import TransactionSettings
from duramen.machines.transaction.state import FIRST_STATE, Transaction
from duramen.machines.transaction.transitions import PREPARE_COMMIT, TransactionEvent, TransactionState
from duramen.model import MOST_ID_CHARACTERS, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

MAX_IDS: Final = 200_000
"""Transactional ids of one partition; more are turned away (COORDINATOR_NOT_AVAILABLE) until some expire."""
MAX_PARTITIONS: Final = 10_000
"""Of one transaction. Each change writes them all into one record."""
MAX_NAME_BYTES: Final = 512 << 10
"""Of the names of all topics of one transaction: its record has to fit a batch."""

NEW_LIFE: Final = "another InitProducerId"
TIME_OUT: Final = "time-out"
"""Why the coordinator itself aborts."""


class TransactionMachine:
    """State machine over one partition of `__transaction_state`.

    Durable: `transactions`, changed in `apply` alone. Soft: `unmarked`, of each prepared transaction the partitions
    whose marker is not known to be written; `_continued`, what an InitProducerId continued (see `Takeover`).
    transaction_version: the level of the feature, set from the committed image.
    """

    transaction_marks: TransactionMarks | None = None

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.transaction_version = SECOND_GENERATION
        self.transactions: dict[str, Transaction] = {}
        self.unmarked: dict[str, set[TopicPartition]] = {}
        self.ongoing: dict[str, int] = {}
        """Ids whose transaction is open, the one that was begun first in front, and since when that is counted: what
        was begun by a clock that has been set back since is as old as the first look at it, or would hang so long."""
        self.ages = Ages()
        self.fenced = 0
        """Transactions that the coordinator itself aborted, since the load: time-outs and new lives."""
        self.parks_ms = 0
        """So long an AddPartitions waits for the markers of the last transaction, before it is asked to retry."""
        self._parked: dict[str, tuple[int, AddPartitions]] = {}
        """Of each id at most one that waits so, and its ticket."""
        self._continued: dict[str, tuple[ProducerEpoch, int]] = {}
        self._sweep = sweeps.ExpirySweep()

    # ------------------------------------------------------------------ the log

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None:
        """Make one record of the partition part of the durable state."""
        stored = records.decode(record)
        if stored is None:
            return
        transactional_id, transaction = stored
        self.unmarked.pop(transactional_id, None)
        if transaction is None:
            self.transactions.pop(transactional_id, None)
            self._continued.pop(transactional_id, None)
            self.ongoing.pop(transactional_id, None)
            return
        self.transactions[transactional_id] = transaction
        if transaction.is_prepared:
            self.unmarked[transactional_id] = set(transaction.partitions)
        if transaction.state is TransactionState.ONGOING:
            self.ongoing.setdefault(transactional_id, transaction.started_ms)
        else:
            self.ongoing.pop(transactional_id, None)

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        """Markers: no transaction writes here."""

    def on_loaded(self, now: int) -> Outcome:
        """Take up what the log has as decided: the markers of every prepared transaction are written again."""
        out = Outcome()
        out.timers = [
            (sweeps.TIME_OUTS, now + self.settings.abort_interval_ms),
            (sweeps.EXPIRY, now + self.settings.remove_interval_ms),
        ]
        for transactional_id in self.unmarked:
            self._ask_for_markers(transactional_id, out)
        if any(not unmarked for unmarked in self.unmarked.values()):
            out.timers.append((sweeps.COMPLETIONS, now))
        return out

    # ------------------------------------------------------------------ decisions

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        """Judge one command of `commands`, or a timer; TypeError for anything else."""
        decision = _DECISIONS.get(type(command))
        if decision is None:
            raise TypeError(f"not a transaction command: {command!r}")
        out = Outcome()
        answer = decision(self, command, ticket, now, out)
        if ticket != NO_TICKET and not isinstance(answer, _Later):
            out.replies.append((ticket, answer))
        return out

    def _known(self, transactional_id: str, producer: ProducerEpoch) -> Transaction:
        """The id; INVALID_REQUEST or INVALID_PRODUCER_ID_MAPPING when there is none."""
        if not transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id")
        transaction = self.transactions.get(transactional_id)
        if transaction is None:
            raise endings.wrong_id(transactional_id, producer)
        return transaction

    def _write(self, transactional_id: str, transaction: Transaction, out: Outcome) -> None:
        out.records.append(records.record(transactional_id, transaction, self.transaction_version))

    def _draw(self, command: Any, ticket: int, out: Outcome) -> _Later:
        out.effects.append(DrawProducerId(ticket, command))
        return LATER

    # ------------------------------------------------------------------ producers

    def _init_producer(
        self, command: InitProducer, ticket: int, now: int, out: Outcome
    ) -> ProducerEpoch | KafkaError | _Later:
        transactional_id = command.transactional_id
        if not transactional_id or (command.producer_id == NO_PRODUCER_ID) != (
            command.producer_epoch == NO_PRODUCER_EPOCH
        ):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an empty transactional id, or half of a producer")
        if not 0 < command.timeout_ms <= self.settings.max_timeout_ms:
            what = (
                f"a time-out of {command.timeout_ms} ms; transaction.max.timeout.ms is {self.settings.max_timeout_ms}"
            )
            raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT, what)
        transaction = self.transactions.get(transactional_id)
        if transaction is not None and transaction.is_prepared:
            raise endings.concurrent(transactional_id)
        takeovers.check_claim(command, transaction)
        if transaction is None:
            if len(transactional_id) > MOST_ID_CHARACTERS:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"a transactional id above {MOST_ID_CHARACTERS} characters")
            return self._first(command, ticket, now, out)
        if not transaction.is_idle:
            cause = f"{NEW_LIFE} of client {command.client_id}" if command.client_id else NEW_LIFE
            if self._fence(transactional_id, transaction, cause, command.fresh_id, now, out):
                # The client comes again, and gets an epoch that no older instance has seen.
                return endings.concurrent(transactional_id)
            return self._draw(command, ticket, out)
        takeover = takeovers.take_over(command, transaction, self._continued_epoch(transactional_id, transaction))
        producer = takeover.producer
        if producer is None:
            if command.fresh_id is None:
                return self._draw(command, ticket, out)
            producer = ProducerEpoch(command.fresh_id, 0)
        # Without what was sent, anybody who had the old epoch might take this answer for its own.
        self._continued[transactional_id] = (producer, takeover.continued)
        self._write(transactional_id, transaction.initialised(producer, command.timeout_ms, now), out)
        return producer

    def _first(self, command: InitProducer, ticket: int, now: int, out: Outcome) -> ProducerEpoch | _Later:
        if len(self.transactions) >= MAX_IDS:
            what = f"{MAX_IDS} transactional ids are known here; transactional.id.expiration.ms removes unused ones"
            raise KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, what)
        if command.fresh_id is None:
            return self._draw(command, ticket, out)
        producer = ProducerEpoch(command.fresh_id, 0)
        first = FIRST_STATE.initialised(producer, command.timeout_ms, now)._replace(previous_id=producer.id)
        self._write(command.transactional_id, first, out)
        return producer

    def _continued_epoch(self, transactional_id: str, transaction: Transaction) -> int:
        producer, continued = self._continued.get(transactional_id, (NO_PRODUCER, NO_PRODUCER_EPOCH))
        return continued if producer == transaction.producer else transaction.epoch_before

    # ------------------------------------------------------------------ partitions

    def _add_partitions(self, command: AddPartitions, ticket: int, now: int, out: Outcome) -> _Later | None:
        transaction = self._known(command.transactional_id, command.producer)
        if transaction.is_prepared:
            if self.parks_ms and ticket != NO_TICKET and command.transactional_id not in self._parked:
                # It comes after an EndTxn's answer as a rule, and the markers are written in no time. Clients that are
                # asked to retry take many times as long.
                self._parked[command.transactional_id] = ticket, command
                out.timers.append((sweeps.ParkedTimer(command.transactional_id), now + self.parks_ms))
                return LATER
            # Before id and epoch: where the epochs are used up the client has the next id already (KAFKA-18660).
            raise endings.concurrent(command.transactional_id)
        self._check_producer(command.transactional_id, command.producer, transaction)
        is_open = transaction.state is TransactionState.ONGOING
        if is_open and transaction.partitions.issuperset(command.partitions):
            return None
        after = transaction.added(command.partitions, command.transaction_version, now)
        _check_size(command.transactional_id, after)
        self._write(command.transactional_id, after, out)
        return None

    def _resume_parked(self, command: ResumeParked, ticket: int, now: int, out: Outcome) -> None:
        parked = self._parked.pop(command.transactional_id, None)
        if parked is None:
            return
        waiting, added = parked
        out.timers.append((sweeps.ParkedTimer(command.transactional_id), None))
        try:
            answer: Any = self._add_partitions(added, NO_TICKET, now, out)
        except KafkaError as error:
            answer = error
        out.replies.append((waiting, answer))

    def _verify_partitions(
        self, command: VerifyPartitions, ticket: int, now: int, out: Outcome
    ) -> dict[TopicPartition, ErrorCode]:
        transaction = self._known(command.transactional_id, command.producer)
        if transaction.is_prepared and command.producer == transaction.next_producer:
            raise endings.concurrent(command.transactional_id)
        self._check_producer(command.transactional_id, command.producer, transaction)
        return {
            partition: ErrorCode.NONE if partition in transaction.partitions else ErrorCode.TRANSACTION_ABORTABLE
            for partition in command.partitions
        }

    @staticmethod
    def _check_producer(transactional_id: str, sent: ProducerEpoch, transaction: Transaction) -> None:
        if sent.id != transaction.producer.id:
            raise endings.wrong_id(transactional_id, sent)
        if sent.epoch != transaction.producer.epoch:
            raise takeovers.fenced(transactional_id, sent, transaction)

    # ------------------------------------------------------------------ endings

    def _end_transaction(self, command: EndTransaction, ticket: int, now: int, out: Outcome) -> ProducerEpoch | _Later:
        transaction = self._known(command.transactional_id, command.producer)
        verdict = endings.judge(command, transaction)
        is_second = command.transaction_version >= SECOND_GENERATION
        if verdict is Verdict.REPEATED:
            return transaction.producer if is_second else NO_PRODUCER
        if verdict is not Verdict.PREPARE:
            raise endings.refusal(verdict, command, transaction)
        if is_second and transaction.is_exhausted and command.fresh_id is None:
            return self._draw(command, ticket, out)
        if transaction.is_idle:
            event = TransactionEvent.NOTHING_ABORTED
        else:
            event = TransactionEvent.COMMITTED if command.commit else TransactionEvent.ABORTED
        # What the first generation writes is judged by the first generation's rule, whatever began the transaction.
        version = command.transaction_version if is_second else 0
        next_id = command.fresh_id if is_second and transaction.is_exhausted else None
        prepared = transaction.prepared(event, version, NO_PRODUCER_ID if next_id is None else next_id, now)
        self._prepare(command.transactional_id, prepared, "", now, out)
        return prepared.next_producer if is_second else NO_PRODUCER

    def _prepare(self, transactional_id: str, prepared: Transaction, cause: str, now: int, out: Outcome) -> None:
        self._write(transactional_id, prepared, out)
        if prepared.partitions:
            out.effects.append(_markers(transactional_id, prepared, prepared.partitions, cause))
        else:
            self._write(transactional_id, prepared.completed(now), out)

    def _fence(
        self, transactional_id: str, transaction: Transaction, cause: str, fresh_id: int | None, now: int, out: Outcome
    ) -> bool:
        """Abort what is open with an epoch that no client gets. False: for that a producer id has to be drawn first.

        The epoch is in the record alone: refused, it was never raised, and is not raised twice (KAFKA-9666). With the
        second generation the abort is what raises it, once (KAFKA-19367); after the last one the id is replaced as it
        is after an EndTxn (KAFKA-20090).
        """
        is_second = self.transaction_version >= SECOND_GENERATION
        next_id = NO_PRODUCER_ID
        if is_second and transaction.is_exhausted:
            if fresh_id is None:
                return False
            next_id = fresh_id
        version = SECOND_GENERATION if is_second else 0
        prepared = transaction.prepared(TransactionEvent.FENCED, version, next_id, now)
        self._prepare(transactional_id, prepared, cause, now, out)
        self.fenced += 1
        return True

    def _abort_transaction(self, command: AbortTransaction, ticket: int, now: int, out: Outcome) -> _Later | None:
        transaction = self.transactions.get(command.transactional_id)
        if (
            transaction is None
            or transaction.state is not TransactionState.ONGOING
            or transaction.producer != command.producer
        ):
            return None
        if self._fence(command.transactional_id, transaction, command.cause, command.fresh_id, now, out):
            return None
        return self._draw(command, ticket, out)

    # ------------------------------------------------------------------ markers

    def _ask_for_markers(self, transactional_id: str, out: Outcome, cause: str = "") -> None:
        unmarked = self.unmarked.get(transactional_id)
        if unmarked:
            transaction = self.transactions[transactional_id]
            out.effects.append(_markers(transactional_id, transaction, unmarked, cause))

    def _markers_written(self, command: MarkersWritten, ticket: int, now: int, out: Outcome) -> None:
        transaction = self._decided(command)
        if transaction is None:
            return
        unmarked = self.unmarked[command.transactional_id]
        unmarked.difference_update(command.partitions)
        if not unmarked:
            self._write(command.transactional_id, transaction.completed(now), out)
            out.if_refused = SweepRefused(sweeps.COMPLETIONS)
            if command.transactional_id in self._parked:
                out.effects.append(ResumeParked(command.transactional_id))

    def _markers_abandoned(self, command: MarkersAbandoned, ticket: int, now: int, out: Outcome) -> None:
        if self._decided(command) is not None:
            out.timers.append((sweeps.MarkersTimer(command.transactional_id), now + sweeps.ABANDONED_MS))

    def _decided(self, command: MarkersWritten | MarkersAbandoned) -> Transaction | None:
        """The transaction, if it is the one that these markers are of and is still to be completed."""
        transaction = self.transactions.get(command.transactional_id)
        if transaction is None or not transaction.is_prepared or transaction.producer != command.producer:
            return None
        return transaction if transaction.updated_ms == command.decided_ms else None

    # ------------------------------------------------------------------ administration

    def _describe(
        self, command: DescribeTransactions, ticket: int, now: int, out: Outcome
    ) -> list[TransactionDescription]:
        return [
            descriptions.describe(each, self.transactions.get(each), self.unmarked.get(each))
            for each in command.transactional_ids
        ]

    def _list(self, command: ListTransactions, ticket: int, now: int, out: Outcome) -> list[ListedTransaction]:
        return list(descriptions.matching(self.transactions, command, now))

    def oldest_open_ms(self, now: int) -> int:
        """How long the oldest open transaction has been open; 0 when none is."""
        return max(0, now - min(self.ongoing.values())) if self.ongoing else 0

    # ------------------------------------------------------------------ timers

    def _timer_fired(self, command: TimerFired, ticket: int, now: int, out: Outcome) -> None:
        key = command.key
        if key == sweeps.TIME_OUTS:
            self._abort_timed_out(now, out)
        elif key == sweeps.EXPIRY:
            self._sweep.step(self, now, out)
        elif key == sweeps.COMPLETIONS:
            self._complete(now, out)
        elif isinstance(key, sweeps.ParkedTimer):
            self._resume_parked(ResumeParked(key.transactional_id), ticket, now, out)
        elif isinstance(key, sweeps.MarkersTimer):
            self._ask_for_markers(key.transactional_id, out)

    def _abort_timed_out(self, now: int, out: Outcome) -> None:
        self.ongoing.update({each: now for each, since in self.ongoing.items() if since > now})
        due = [
            each
            for each, since in self.ongoing.items()
            if self.ages.since(since, now) > self.transactions[each].timeout_ms
        ]
        room = sweeps.Room()
        has_room = True
        for transactional_id in due:
            transaction = self.transactions[transactional_id]
            before = len(out.records)
            if not self._fence(transactional_id, transaction, TIME_OUT, None, now, out):
                again = AbortTransaction(transactional_id, transaction.producer, TIME_OUT)
                out.effects.append(DrawProducerId(NO_TICKET, again))
            has_room = room.take(out.records[before:])
            if not has_room:
                break
        out.timers.append((sweeps.TIME_OUTS, now + (self.settings.abort_interval_ms if has_room else 0)))
        if out.records:
            out.if_refused = SweepRefused(sweeps.TIME_OUTS)

    def _complete(self, now: int, out: Outcome) -> None:
        """Complete what has all of its markers, and is not recorded to."""
        room = sweeps.Room()
        for transactional_id, unmarked in self.unmarked.items():
            if unmarked:
                continue
            before = len(out.records)
            self._write(transactional_id, self.transactions[transactional_id].completed(now), out)
            if not room.take(out.records[before:]):
                out.timers.append((sweeps.COMPLETIONS, now))
                break
        if out.records:
            out.if_refused = SweepRefused(sweeps.COMPLETIONS)

    def _sweep_refused(self, command: SweepRefused, ticket: int, now: int, out: Outcome) -> None:
        self._sweep.forget()
        out.timers.append((command.timer, now + sweeps.RETRY_MS))

    def _draw_failed(self, command: DrawFailed, ticket: int, now: int, out: Outcome) -> None:
        """Whoever waits is answered; a time-out is looked for again by its timer."""
        raise command.error


class _Later:
    """Instead of an answer: the ticket is answered by a later decision."""


LATER: Final = _Later()


def _check_size(transactional_id: str, transaction: Transaction) -> None:
    partitions = transaction.partitions
    names = sum(len(topic.encode()) for topic in {partition.topic for partition in partitions})
    if len(partitions) > MAX_PARTITIONS or names > MAX_NAME_BYTES:
        what = f"at most {MAX_PARTITIONS} partitions, and {MAX_NAME_BYTES} bytes of their topics' names"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, f"{transactional_id}: a transaction has {what}")


def _markers(
    transactional_id: str,
    transaction: Transaction,
    partitions: frozenset[TopicPartition] | set[TopicPartition],
    cause: str,
) -> WriteMarkers:
    return WriteMarkers(
        transactional_id,
        transaction.producer,
        transaction.state is PREPARE_COMMIT,
        tuple(sorted(partitions)),
        transaction.client_version,
        transaction.updated_ms,
        cause,
    )


_Decision = Callable[[TransactionMachine, Any, int, int, Outcome], Any]
_DECISIONS: Final[dict[type, _Decision]] = {
    InitProducer: TransactionMachine._init_producer,
    AddPartitions: TransactionMachine._add_partitions,
    VerifyPartitions: TransactionMachine._verify_partitions,
    EndTransaction: TransactionMachine._end_transaction,
    AbortTransaction: TransactionMachine._abort_transaction,
    MarkersWritten: TransactionMachine._markers_written,
    MarkersAbandoned: TransactionMachine._markers_abandoned,
    DescribeTransactions: TransactionMachine._describe,
    ListTransactions: TransactionMachine._list,
    DrawFailed: TransactionMachine._draw_failed,
    ResumeParked: TransactionMachine._resume_parked,
    SweepRefused: TransactionMachine._sweep_refused,
    TimerFired: TransactionMachine._timer_fired,
}
