"""Opening an exclusive topic's partition for one writer, and giving it up.

The record that says so lies in the log: from its append on nobody else is let in, and it is recovered, replicated and
ordered like the records that it divides. Each opening has a producer id that was never given before, so a log that has
lost the record lets nobody in, and takes nobody for the current writer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.model import MOST_ID_CHARACTERS, NO_PRODUCER_ID, NO_TIMESTAMP
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.refusals import refuse
from duramen.wire.batch import parse_header
from duramen.wire.records.control import writer_record


class Opened(NamedTuple):
    """Who may write; producer_id -1: nobody. end_offset: after the record that says so."""

    producer_id: int
    end_offset: int
    leader_epoch: int


WhenOpened = Callable[[Opened | KafkaError], None]


def check_opening(partition: Partition, name: str, *, may_be_empty: bool = False) -> None:
    """What refuses an opening or a release anyway. KafkaErrors as of `open_writer`."""
    partition.admit_own()
    if not partition.is_exclusive:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{partition.tp}: set duramen.writer.exclusive=true first")
    if not (name or may_be_empty) or len(name) > MOST_ID_CHARACTERS:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a writer's name has 1 to {MOST_ID_CHARACTERS} characters")
    partition.log.check_whole()
    partition.check_open()


def open_writer(partition: Partition, name: str, producer_id: int, now_ms: int, done: WhenOpened) -> None:
    """Let the fresh `producer_id` alone write from now on; `done` when that is committed, on stable storage.

    KafkaErrors: INVALID_REQUEST for a topic that is not exclusive and for a name that cannot be; StreamClosedError;
    what refuses an append with acks -1. `done` may be called before this returns.
    """
    _in_order(partition, done, partial(_append, partition, name, producer_id, now_ms, done))


def release_writer(partition: Partition, name: str, producer_id: int, now_ms: int, done: WhenOpened) -> None:
    """Let nobody write from now on. producer_id: the one that is given up, whose name may be left empty; -1: whichever
    was opened by that name.

    PRODUCER_FENCED where somebody else has it. Nothing happens where nobody has.
    """
    _in_order(partition, done, partial(_release, partition, name, producer_id, now_ms, done))


def _in_order(partition: Partition, done: WhenOpened, work: Callable[[], None]) -> None:
    """After a batch that is being decoded, which was sent before."""
    try:
        if partition.rewrites.is_busy:
            partition.rewrites.add(partial(_in_order, partition, done, work))
        else:
            work()
    except KafkaError as error:
        refuse(partition, error, partial(_refused, done))
    except (OSError, StorageError) as error:
        done(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.tp}: {error}"))


def _refused(done: WhenOpened, error: Appended | KafkaError) -> None:
    assert isinstance(error, KafkaError)
    done(error)


def _append(partition: Partition, name: str, producer_id: int, now_ms: int, done: WhenOpened) -> None:
    check_opening(partition, name)
    record = memoryview(writer_record(producer_id, name, now_ms))
    end = partition.append_own(record, parse_header(record), now_ms)
    _answer(partition, producer_id, end, done)


def _release(partition: Partition, name: str, producer_id: int, now_ms: int, done: WhenOpened) -> None:
    check_opening(partition, name, may_be_empty=producer_id >= 0)
    stream = partition.log.producers.stream
    writer = None if stream is None else stream.writer
    if writer is None or writer.producer_id < 0:
        _answer(partition, NO_PRODUCER_ID, partition.log_end_offset, done)
    elif name not in ("", writer.name) or producer_id not in (NO_PRODUCER_ID, writer.producer_id):
        whose = f"{partition.tp} belongs to the writer {writer.name!r} since offset {writer.offset}"
        raise KafkaError(ErrorCode.PRODUCER_FENCED, whose)
    else:
        _append(partition, writer.name, NO_PRODUCER_ID, now_ms, done)


def _answer(partition: Partition, producer_id: int, end: int, done: WhenOpened) -> None:
    opened = Opened(producer_id, end, partition.leader_epoch)
    park_stable(partition, end, lambda error: done(opened if error is None else error))


def park_stable(partition: Partition, end: int, done: Callable[[KafkaError | None], None]) -> None:
    """`done` when all in-sync replicas have everything below `end`, and it is on stable storage here."""
    log = partition.log

    def committed(result: Appended | KafkaError) -> None:
        if isinstance(result, KafkaError):
            done(result)
        elif log.durable_end >= end:
            done(None)
        else:
            partition.harden(partition, end, log.stable, done)

    partition.park(end, -1, committed, Appended(end - 1, NO_TIMESTAMP, log.start_offset))
