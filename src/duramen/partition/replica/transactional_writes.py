"""A producer's transaction at one of its partitions: what lets its batches in, and the marker that ends it."""

from __future__ import annotations

from collections.abc import Callable

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.machines.contract import ProducerEpoch
from duramen.model import NO_TIMESTAMP
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.storage import TransactionGuard, journal_marker
from duramen.wire.batch import ABORT, COMMIT, Marker, build_marker, parse_header


def transaction_guard(
    partition: Partition, producer: ProducerEpoch, base_sequence: int, is_second_generation: bool
) -> TransactionGuard | None:
    """What to hand to `Partition.append` with this producer's batch: None where its transaction is open here; else a
    guard, once its coordinator has said that the partition is part of the transaction.

    Raises KafkaError INVALID_PRODUCER_EPOCH for an older epoch, and what refuses the batch anyway.
    """
    if partition.closed or not partition.replication.is_leader:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition.tp} is not led here")
    partition.log.check_whole()
    producers = partition.log.producers
    if producers.has_transaction(producer.id, producer.epoch):
        return None
    return producers.guard(producer.id, producer.epoch, base_sequence, is_second_generation)


def check_guard(partition: Partition, producer: ProducerEpoch, guard: TransactionGuard | None) -> None:
    """Whether a batch of the producer's transaction could be appended now: KafkaError INVALID_PRODUCER_EPOCH, or
    INVALID_TXN_STATE where no transaction is open and the guard holds no more.
    """
    partition.log.check_whole()
    partition.log.producers.check_guard(producer.id, producer.epoch, guard)


def append_marker(
    partition: Partition,
    producer: ProducerEpoch,
    commit: bool,
    coordinator_epoch: int,
    transaction_version: int,
    now_ms: int,
    done: Callable[[KafkaError | None], None],
    *,
    is_ordered: bool = False,
) -> None:
    """End the producer's transaction here; `done` when the marker is committed, and no power cut takes it back.

    One that is there already is not written again. `done` may be called before this returns. is_ordered: who asks does
    nothing with the answer but append to a log that is not there without the markers in this one
    (`Store.keep_order`): it need not wait.
    """
    log = partition.log
    is_journaled = log.stable
    try:
        partition.admit_own()
        log.check_whole()
        marker = Marker(COMMIT if commit else ABORT, coordinator_epoch)
        batch = memoryview(build_marker(*producer, *marker, now_ms))
        header = parse_header(batch)
        is_there = log.producers.check_marker(header, marker, transaction_version)
        if not is_there and log.producers.closed_at is None:  # it is closed while no transaction is open, or not at all
            partition.append_own(batch, header, now_ms)
            if journals_markers(partition):
                journal_marker(log, bytes(batch))
                is_journaled = True  # one that was there may have been appended while there were other copies
    except KafkaError as error:
        done(error)
        return
    except (OSError, StorageError) as error:
        done(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.tp}: {error}"))
        return
    if is_ordered and is_journaled:
        done(None)
        return
    end = log.end_offset

    def committed(result: Appended | KafkaError) -> None:
        if isinstance(result, KafkaError):
            done(result)
        elif log.durable_end >= end:
            done(None)
        else:  # the transaction is over for its coordinator then, and would not have the marker written again
            partition.harden(partition, end, is_journaled, done)

    partition.park(end, -1, committed, Appended(end - 1, NO_TIMESTAMP, log.start_offset))


def journals_markers(partition: Partition) -> bool:
    """Whether a start finds a marker again that a power cut took from the segment: where there is no other copy, which
    has what this one lost at other offsets.
    """
    return not partition.log.stable and len(partition.replication.replicas) == 1
