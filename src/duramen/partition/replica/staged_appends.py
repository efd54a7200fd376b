"""Appends in two steps: a batch is checked when it is taken, and appended later, whatever the settings say by then."""

from __future__ import annotations

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.partition.replica.batch_rules import needs_rewriting, rewrite
from duramen.partition.replica.parked_appends import Done
from duramen.partition.replica.partition import Partition
from duramen.partition.replica.refusals import refuse
from duramen.wire.batch import parse_header


def check_append(partition: Partition, view: memoryview, acks: int, now_ms: int) -> None:
    """Raise the KafkaError with which `Partition.append` would refuse this batch as things are; nothing is changed."""
    header = partition.admit(view, acks)
    if needs_rewriting(partition.config, header):
        rewrite(bytearray(view), partition.config, now_ms)


def append_staged(partition: Partition, view: memoryview, now_ms: int, done: Done) -> None:
    """Append a batch that was checked when it was staged, by a sink's coordinator; as `Partition.append` with acks -1.

    What the topic's settings say by now refuses it no more. One that is here already is answered with its first home.
    """
    try:
        partition.admit_own()
        partition.append_checked(view, parse_header(view), -1, now_ms, done)
    except KafkaError as error:
        refuse(partition, error, done)
    except (OSError, StorageError) as error:
        done(KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{partition.tp}: {error}"))
