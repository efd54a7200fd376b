"""Turns a transaction into its record, and back."""

from __future__ import annotations

from typing import Any, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord, ProducerEpoch
from duramen.machines.transaction.commands import SECOND_GENERATION
from duramen.machines.transaction.state import Transaction
from duramen.machines.transaction.transitions import EMPTY, TransactionState
from duramen.model import TopicPartition
from duramen.wire.errors import DecodeError
from duramen.wire.records import transactions as schema
from duramen.wire.records.transactions import TransactionLogValue


class StoredTransaction(NamedTuple):
    """One record. transaction: None where it removes the id."""

    transactional_id: str
    transaction: Transaction | None


def record(transactional_id: str, transaction: Transaction, level: int) -> LogRecord:
    """The record of this state at this level of `transaction.version`: from 1 on it has room for all fields."""
    version = 1 if level >= 1 or transaction.client_version >= SECOND_GENERATION else 0
    value = TransactionLogValue.new(
        producer_id=transaction.producer.id,
        previous_producer_id=transaction.previous_id,
        next_producer_id=transaction.next_id,
        producer_epoch=transaction.producer.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=int(transaction.state),
        transaction_partitions=None if transaction.state is EMPTY else _by_topic(transaction.partitions),
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
        client_transaction_version=transaction.client_version,
    )
    return LogRecord(schema.encode_key(transactional_id), schema.encode_value(value, version))


def tombstone(transactional_id: str) -> LogRecord:
    """What removes an id."""
    return LogRecord(schema.encode_key(transactional_id), None)


def _by_topic(partitions: frozenset[TopicPartition]) -> list[Any]:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    return [TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in topics.items()]


def decode(record: LogRecord) -> StoredTransaction | None:
    """What a record says; None for one of a newer kind. KafkaError CORRUPT_MESSAGE for a bad one."""
    if record.key is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record of a transaction has no key")
    try:
        decoded = schema.decode_record(record.key, record.value)
    except DecodeError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a record of a transaction: {error}") from error
    if not decoded.is_known:
        return None
    transactional_id = decoded.key.transactional_id
    return StoredTransaction(transactional_id, None if decoded.value is None else _stored(decoded.value))


def _stored(value: Any) -> Transaction:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a transaction of status {value.transaction_status}") from error
    return Transaction(
        ProducerEpoch(value.producer_id, value.producer_epoch),
        value.transaction_timeout_ms,
        value.transaction_last_update_timestamp_ms,
        state,
        frozenset(
            TopicPartition(each.topic, partition)
            for each in value.transaction_partitions or ()
            for partition in each.partition_ids
        ),
        value.transaction_start_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.client_transaction_version,
    )
