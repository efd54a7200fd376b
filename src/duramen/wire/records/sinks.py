"""Records of `__duramen_sink_state`: sinks and their runs, what is staged, what was committed, sequences.

The key's version tells what the record is about, as in Kafka's coordinator topics. A null value deletes what the key
names.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.ports import Buffer
from duramen.wire.errors import EncodeError
from duramen.wire.records.versioned import Unknown, decode, encode, read_version
from duramen.wire.schema import Message
from duramen.wire.types import BOOL, BYTES, INT8, INT32, INT64, STRING, UUID, Array, Field, Struct

SINK: Final = 0
RUN: Final = 1
STAGED: Final = 2
COMMIT: Final = 3
POSITION: Final = 4

SinkKey = Message("SinkKey", "0-4", None, Field("sink_id", STRING))

SinkValue = Message(
    "SinkValue",
    "0-0",
    0,
    Field("epoch", INT32),
    Field("run_id", STRING),
    Field("producer_id", INT64),
    Field("ephemeral", BOOL),
    Field("claimed_ms", INT64),
)

RunKey = Message("RunKey", "0-4", None, Field("sink_id", STRING), Field("run_id", STRING))

RunValue = Message("RunValue", "0-0", 0, Field("epoch", INT32))

StagedKey = Message("StagedKey", "0-4", None, Field("sink_id", STRING), Field("handle", INT64))

StagedPart = Struct(
    "StagedPart",
    Field("topic_id", UUID),
    Field("partition", INT32),
    Field("records", INT64),
    Field("bytes", INT64),
)

StagedValue = Message(
    "StagedValue",
    "0-2",
    0,
    Field("epoch", INT32),
    Field("batch_id", INT64),
    Field("task", STRING),
    # Before version 2 a handle was of one partition.
    Field("topic_id", UUID, versions="0-1"),
    Field("partition", INT32, versions="0-1"),
    Field("next_offset", INT64),
    Field("bytes", INT64),
    Field("staged_ms", INT64),
    # Where the records are, also when they were moved within the staging log; in version 0 the handle says it.
    Field("first_offset", INT64, versions="1+", default=-1),
    Field("parts", Array(StagedPart), versions="2+"),
)

CommitKey = Message("CommitKey", "0-4", None, Field("sink_id", STRING), Field("batch_id", INT64))

StagedPiece = Struct("StagedPiece", Field("first_offset", INT64), Field("next_offset", INT64), Field("bytes", INT64))

CommittedShare = Struct(
    "CommittedShare",
    Field("topic_id", UUID),
    Field("partition", INT32),
    Field("producer_epoch", INT32),
    Field("base_sequence", INT32),
    Field("records", INT64),
    Field("bytes", INT64),
    Field("pieces", Array(StagedPiece), versions="0-0"),
    Field("base_offset", INT64, default=-1),
    Field("last_offset", INT64, default=-1),
    Field("dropped", BOOL),
)

CommitValue = Message(
    "CommitValue",
    "0-1",
    0,
    Field("epoch", INT32),
    Field("committed_ms", INT64),
    Field("state", INT8),
    Field("producer_id", INT64),
    Field("metadata", BYTES, nullable="0+", default=None),
    Field("shares", Array(CommittedShare)),
    # In order: the shares' records are theirs. Until the batch is finished, their own records stay. In version 0 each
    # share lists its pieces.
    Field("handles", Array(INT64), versions="1+"),
)

PositionKey = Message(
    "PositionKey", "0-4", None, Field("sink_id", STRING), Field("topic_id", UUID), Field("partition", INT32)
)

PositionValue = Message("PositionValue", "0-0", 0, Field("next_sequence", INT32))

_KEYS: Final = {SINK: SinkKey, RUN: RunKey, STAGED: StagedKey, COMMIT: CommitKey, POSITION: PositionKey}
_VALUES: Final = {SINK: SinkValue, RUN: RunValue, STAGED: StagedValue, COMMIT: CommitValue, POSITION: PositionValue}
_KINDS: Final = {message.name: kind for kind, message in _KEYS.items()}
_BY_NAME: Final = {message.name: message for message in _VALUES.values()}


class SinkRecord(NamedTuple):
    """One decoded record. kind: SINK to POSITION, -1 for one that is not declared; value: None for a tombstone."""

    kind: int
    key: Any
    value: Any


def encode_key(key: Any) -> bytes:
    """The bytes of one of the keys; its version is its kind."""
    kind = _KINDS.get(type(key).__name__)
    if kind is None:
        raise EncodeError(f"{type(key).__name__} is no key of a sink's record")
    return encode(_KEYS[kind], key, kind)


def encode_value(value: Any) -> bytes:
    """The bytes of one of the values, in its newest version."""
    message = _BY_NAME.get(type(value).__name__)
    if message is None:
        raise EncodeError(f"{type(value).__name__} is no value of a sink's record")
    return encode(message, value, message.max_version)


def decode_record(key: Buffer, value: Buffer | None) -> SinkRecord:
    """The record as objects; kind -1 where key or value is of a kind or version that is not declared."""
    kind = read_version(key)
    if kind not in _KEYS:
        return SinkRecord(-1, bytes(key), None if value is None else bytes(value))
    decoded = None if value is None else decode(_VALUES[kind], value, kind)
    return SinkRecord(-1 if isinstance(decoded, Unknown) else kind, decode(_KEYS[kind], key), decoded)
