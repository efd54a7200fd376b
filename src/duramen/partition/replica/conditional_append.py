"""Appends under a condition: only where the log ends at a named offset, and such after which it is closed.

Conditions are looked at in the turn in which the batch gets its offset, so nothing can come between. A batch that is
there already is found first: who sends again what was stored has no other condition to meet. The record that closes
follows its batch in the same turn.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from duramen.dlsn import LogEnd
from duramen.errors import ErrorCode, KafkaError, StorageError, StreamClosedError
from duramen.model import INTERNAL_TOPICS, NO_EPOCH, NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from duramen.partition.replica.append_times import stamp_batch
from duramen.partition.replica.batch_rules import TxidRefusedError
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.refusals import OF_THE_LOG, refuse
from duramen.partition.replica.writer_rule import check_exclusive
from duramen.storage import Duplicate
from duramen.wire.batch import MAX_SEQUENCE, BatchHeader, parse_header
from duramen.wire.records.control import ControlType, StreamClosedRecord, build_own

NO_CONDITION = -1
ALL_IN_SYNC = -1


class ConditionalBatch(NamedTuple):
    """What is to be appended. batch: None for nothing but closing, or (not `closes`) to ask how things are.

    expected_offset: where the log has to end; -1: anywhere. expected_epoch: the leader epoch that the record in front
    of it has; -1: any. closes: nothing is appended after it, by anybody. producer_id: who closes an exclusive topic
    without a batch, or who is asked about.
    """

    batch: memoryview | None
    expected_offset: int = NO_CONDITION
    closes: bool = False
    producer_id: int = NO_PRODUCER_ID
    expected_epoch: int = NO_EPOCH


class ConditionalResult(NamedTuple):
    """It took effect, or had done so before (`is_duplicate`). Offsets of a batch, -1 where they are not known.

    append_time_ms: -1 unless the topic stamps its own; end_offset: of the log after it; end_epoch: see there.
    writer: of who is asked about, the sequence that has to come next in its newest epoch, and that (-1: not known).
    """

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    end_offset: int
    leader_epoch: int
    is_duplicate: bool
    end_epoch: int
    writer: tuple[int, int] | None = None


class EndIsElsewhereError(KafkaError):
    """The log does not end where it was expected to; end: where it did."""

    def __init__(self, partition: Partition, expected: int) -> None:
        found = partition.log_end_offset
        self.end = LogEnd(found, end_epoch(partition))
        super().__init__(ErrorCode.END_IS_ELSEWHERE, f"{partition.tp} ends at {found}, not at {expected}")


class HistoryDivergedError(KafkaError):
    """The log ends where it was expected to, after another record than was expected. end: as it was."""

    def __init__(self, partition: Partition, expected_epoch: int) -> None:
        self.end = LogEnd(partition.log_end_offset, end_epoch(partition))
        where = f"{partition.tp} ends at {self.end.offset}"
        why = f"after a record of leader epoch {self.end.epoch}, not {expected_epoch}: what was there was lost"
        super().__init__(ErrorCode.OFFSET_OUT_OF_RANGE, f"{where}, {why}")


WhenDone = Callable[[ConditionalResult | KafkaError], None]


def append_conditionally(partition: Partition, wanted: ConditionalBatch, now_ms: int, done: WhenDone) -> None:
    """Append as `wanted` says, or nothing; `done` when all in-sync replicas have it, and a close is on stable storage.

    `done` may be called before this returns. KafkaErrors: what `Partition.append` says with acks -1; END_IS_ELSEWHERE;
    HistoryDivergedError; UNKNOWN_LEADER_EPOCH where a later leader is expected to have written, and there may be one;
    StreamClosedError; to close: CONCURRENT_TRANSACTIONS while a transaction is open, INVALID_TOPIC_EXCEPTION for a
    topic of the broker's own, PRODUCER_FENCED for an exclusive one that is somebody else's.
    """
    try:
        if partition.rewrites.is_busy:
            if wanted.batch is not None:
                wanted = wanted._replace(batch=memoryview(bytearray(wanted.batch)))
            partition.rewrites.add(partial(append_conditionally, partition, wanted, now_ms, done))
            return
        if wanted.batch is None:
            partition.admit_own()
            _append(partition, wanted, None, now_ms, done)
            return
        header = partition.admit(wanted.batch, ALL_IN_SYNC)
        if partition.must_be_decoded(header, now_ms):
            failed = partial(_failed, done)
            partition.start_rewrite(wanted.batch, now_ms, failed, partial(_decoded, partition, wanted, now_ms, done))
        else:
            _append(partition, wanted, header, now_ms, done)
    except (KafkaError, OSError, StorageError) as why:
        storage = ErrorCode.KAFKA_STORAGE_ERROR
        error = why if isinstance(why, KafkaError) else KafkaError(storage, f"{partition.tp}: {why}")
        if wanted.batch is not None:
            partition.retry_gate.remember(wanted.batch, error)
        refuse(partition, error, partial(_failed, done), OF_THE_LOG)


def producer_state(partition: Partition, producer_id: int, epoch: int) -> tuple[int, int]:
    """(sequence that has to come next from a producer in `epoch`, its newest epoch or -1 where it is not known)."""
    producer = partition.log.producers.get(producer_id)
    if producer is None:
        return 0, NO_PRODUCER_EPOCH
    is_known = epoch == producer.epoch and producer.last_sequence >= 0
    return (producer.last_sequence + 1) & MAX_SEQUENCE if is_known else 0, producer.epoch


def end_epoch(partition: Partition) -> int:
    """Leader epoch of the record in front of the log end; of whoever leads where nothing is left; -1 of a new log."""
    log = partition.log
    end = log.end_offset
    if log.start_offset < end:
        return log.epochs.epoch_at(end - 1)
    return partition.leader_epoch if end else NO_EPOCH


def end_of(partition: Partition, error: KafkaError) -> LogEnd:
    """Where the log ended when that was refused, if that is why; else where it does."""
    if isinstance(error, EndIsElsewhereError | HistoryDivergedError):
        return error.end
    return LogEnd(partition.log_end_offset, end_epoch(partition))


def own_code(error: KafkaError) -> ErrorCode:
    """Errors that Kafka has no code for are told by ours here."""
    if isinstance(error, StreamClosedError):
        return ErrorCode.STREAM_CLOSED
    return ErrorCode.TXID_OUT_OF_ORDER if isinstance(error, TxidRefusedError) else error.code


def _failed(done: WhenDone, error: Appended | KafkaError) -> None:
    assert isinstance(error, KafkaError)
    done(error)


def _decoded(
    partition: Partition,
    wanted: ConditionalBatch,
    now_ms: int,
    done: WhenDone,
    view: memoryview,
    header: BatchHeader,
) -> None:
    partition.admit_own()
    _append(partition, wanted._replace(batch=view), header, now_ms, done)


def _append(
    partition: Partition, wanted: ConditionalBatch, header: BatchHeader | None, now_ms: int, done: WhenDone
) -> None:
    log = partition.log
    log.check_whole()
    if partition.is_exclusive and header is not None:
        partition.check_writer(header)
    duplicate = log.producers.check(header) if header is not None and header.producer_id >= 0 else None
    found = None if duplicate is None else _stored(partition, duplicate)
    if found is None:
        found = _closed_before(partition, wanted)
    if found is None:
        if log.producers.stream is not None:
            partition.check_open()
        if wanted.expected_offset != NO_CONDITION:
            _check_end(partition, wanted.expected_offset, wanted.expected_epoch)
    closes = wanted.closes and log.producers.closed_at is None
    if closes:
        _check_closable(partition)
        if partition.is_exclusive and header is None:
            check_exclusive(partition.tp, log.producers, wanted.producer_id)
    view = wanted.batch
    result = found
    if result is None and (header is None or view is None):
        result = ConditionalResult(-1, -1, NO_TIMESTAMP, log.start_offset, -1, partition.leader_epoch, False, NO_EPOCH)
    marker = build_own(ControlType.STREAM_CLOSED, StreamClosedRecord.new(version=0), now_ms) if closes else b""
    log.journal.admit((0 if view is None or found is not None else len(view)) + len(marker))
    if result is None:
        assert header is not None
        assert view is not None
        result = _append_batch(partition, view, header, now_ms)
    if closes:
        close = memoryview(marker)
        partition.append_own(close, parse_header(close), now_ms)
    elif partition.is_exclusive and header is not None:
        partition.repeat_writer(now_ms)
    end = log.end_offset
    if header is not None and not wanted.closes:
        end = (result.last_offset if duplicate is None else duplicate.last_offset) + 1
    result = result._replace(end_offset=log.end_offset, end_epoch=end_epoch(partition))
    if view is None and not wanted.closes:
        if wanted.producer_id >= 0:
            _, newest = producer_state(partition, wanted.producer_id, NO_PRODUCER_EPOCH)
            result = result._replace(writer=producer_state(partition, wanted.producer_id, newest))
        when_done = partial(_answer, done, result)
    else:
        when_done = partial(_answer_stored, done, result)
    answer = Appended(result.base_offset, NO_TIMESTAMP, log.start_offset)
    partition.park(end, ALL_IN_SYNC, when_done, answer)


def _check_end(partition: Partition, offset: int, epoch: int) -> None:
    """Raise unless the log ends at `offset`, after a record of this leader epoch (-1: any).

    A log that was emptied only knows that it is none of a later history: positions after what was there are in the
    epoch of whoever led then.
    """
    log, replication = partition.log, partition.replication
    leads_for_certain = replication.lease is None or (replication.is_alone and not replication.lacks_lease())
    if epoch > partition.leader_epoch and not leads_for_certain:
        later = f"{partition.tp}: leader epoch {epoch} is later than {partition.leader_epoch}, in which this node leads"
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH, later)
    if offset != log.end_offset:
        raise EndIsElsewhereError(partition, offset)
    if epoch == NO_EPOCH or not offset:
        return
    is_same = end_epoch(partition) == epoch
    if log.start_offset == offset:
        is_same = log.epochs.latest <= epoch <= partition.leader_epoch
    if not is_same:
        raise HistoryDivergedError(partition, epoch)


def _stored(partition: Partition, duplicate: Duplicate) -> ConditionalResult:
    """Where the batch is that its producer has sent before."""
    log = partition.log
    base, last = duplicate.base_offset, duplicate.last_offset
    epoch = log.epochs.epoch_at(base) if base >= 0 else NO_EPOCH
    if epoch == NO_EPOCH:  # of what was deleted it may not be known any more, and without it a place names no record
        base = last = -1
    config = partition.config
    has_own = config.message_timestamp_type != "LogAppendTime" and config.txid != "assigned"
    time = NO_TIMESTAMP if has_own or base < 0 else duplicate.timestamp
    return ConditionalResult(base, last, time, log.start_offset, -1, epoch, True, NO_EPOCH)


def _closed_before(partition: Partition, wanted: ConditionalBatch) -> ConditionalResult | None:
    """What answers a close without records once more."""
    closed_at = partition.log.producers.closed_at
    if closed_at is None or wanted.batch is not None:
        return None
    before = partition.log.epochs.epoch_at(closed_at - 1)
    if wanted.expected_offset not in (NO_CONDITION, closed_at) or wanted.expected_epoch not in (NO_EPOCH, before):
        partition.check_open()
    start, epoch = partition.log_start_offset, partition.leader_epoch
    return ConditionalResult(-1, -1, NO_TIMESTAMP, start, -1, epoch, wanted.closes, NO_EPOCH)


def _check_closable(partition: Partition) -> None:
    if partition.tp.topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"{partition.tp.topic} is written by its coordinator only")
    if partition.log.producers.open_transactions:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"{partition.tp}: a transaction is open; close it later")


def _append_batch(partition: Partition, view: memoryview, header: BatchHeader, now_ms: int) -> ConditionalResult:
    header, append_time = stamp_batch(partition.tp, partition.config, partition.last_txid, view, header, now_ms)
    base = partition.log_end_offset
    end = partition.append_own(view, header, now_ms)
    start, epoch = partition.log_start_offset, partition.leader_epoch
    return ConditionalResult(base, end - 1, append_time, start, end, epoch, False, epoch)


def _answer(done: WhenDone, result: ConditionalResult, answer: Appended | KafkaError) -> None:
    done(answer if isinstance(answer, KafkaError) else result)


def _answer_stored(done: WhenDone, result: ConditionalResult, answer: Appended | KafkaError) -> None:
    done(_outcome_open(answer) if isinstance(answer, KafkaError) else result)


def _outcome_open(error: KafkaError) -> KafkaError:
    """The error for what is in the log here. Where another one leads by now it may have it, too: NOT_LEADER_OR_FOLLOWER
    would say that nothing was stored, and who has no producer id would append once more.
    """
    if error.code != ErrorCode.NOT_LEADER_OR_FOLLOWER:
        return error
    return KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"appended, but another node leads before it is committed: {error}")
