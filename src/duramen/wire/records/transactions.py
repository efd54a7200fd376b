"""Records of `__transaction_state`: one key for each transactional id, and how its transaction stands.

A null value deletes the id. Keys of newer kinds and values of newer versions come back as Unknown.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.ports import Buffer
from duramen.wire.records.versioned import Unknown, decode, encode, read_version
from duramen.wire.schema import Message
from duramen.wire.types import INT8, INT16, INT32, INT64, STRING, Array, Field, Struct

TransactionLogKey = Message("TransactionLogKey", "0-0", None, Field("transactional_id", STRING))

PartitionsSchema = Struct(
    "PartitionsSchema",
    Field("topic", STRING),
    Field("partition_ids", Array(INT32)),
)

TransactionLogValue = Message(
    "TransactionLogValue",
    "0-1",
    1,
    Field("producer_id", INT64),
    Field("previous_producer_id", INT64, "1+", tagged="1+", tag=0, default=-1, ignorable=True),
    Field("next_producer_id", INT64, "1+", tagged="1+", tag=1, default=-1, ignorable=True),
    Field("producer_epoch", INT16),
    Field("next_producer_epoch", INT16, "1+", tagged="1+", tag=3, default=-1, ignorable=True),
    Field("transaction_timeout_ms", INT32),
    Field("transaction_status", INT8),
    Field("transaction_partitions", Array(PartitionsSchema), nullable="0+"),
    Field("transaction_last_update_timestamp_ms", INT64),
    Field("transaction_start_timestamp_ms", INT64),
    Field("client_transaction_version", INT16, "1+", tagged="1+", tag=2, default=0, ignorable=True),
)

KEY_VERSION: Final = 0
"""Part of a key's identity for compaction, so it never changes."""


class TransactionRecord(NamedTuple):
    """One decoded record. value: None for a tombstone; key or value are Unknown when they are newer."""

    key: Any
    value: Any

    @property
    def is_known(self) -> bool:
        return not isinstance(self.key, Unknown) and not isinstance(self.value, Unknown)


def encode_key(transactional_id: str) -> bytes:
    """The bytes of an id's key."""
    return encode(TransactionLogKey, TransactionLogKey.new(transactional_id=transactional_id), KEY_VERSION)


def encode_value(value: Any, version: int) -> bytes:
    """The bytes of a TransactionLogValue. Version 0 has no room for what is tagged."""
    return encode(TransactionLogValue, value, version)


def decode_record(key: Buffer, value: Buffer | None) -> TransactionRecord:
    """The record as objects; a key or value of a newer kind becomes an Unknown in its place."""
    kind = read_version(key)
    if kind != KEY_VERSION:
        return TransactionRecord(Unknown(kind, kind, bytes(key)), None if value is None else bytes(value))
    return TransactionRecord(
        decode(TransactionLogKey, key), None if value is None else decode(TransactionLogValue, value)
    )
