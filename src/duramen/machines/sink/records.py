"""The sink machine's records as bytes: from its state, and back."""

from __future__ import annotations

from duramen.machines.contract import LogRecord
from duramen.machines.sink.pieces import Parts, Pieces, StagedPart, StagedRange, Target
from duramen.machines.sink.state import PRODUCER_EPOCH, CommittedShare, Sink, SinkCommit, Staged
from duramen.wire.records import sinks as schema
from duramen.wire.records.sinks import CommitValue, SinkRecord, StagedValue


def sink_key(sink_id: str) -> bytes:
    return schema.encode_key(schema.SinkKey.new(sink_id=sink_id))


def run_key(sink_id: str, run_id: str) -> bytes:
    return schema.encode_key(schema.RunKey.new(sink_id=sink_id, run_id=run_id))


def staged_key(sink_id: str, handle: int) -> bytes:
    return schema.encode_key(schema.StagedKey.new(sink_id=sink_id, handle=handle))


def commit_key(sink_id: str, batch_id: int) -> bytes:
    return schema.encode_key(schema.CommitKey.new(sink_id=sink_id, batch_id=batch_id))


def position_key(sink_id: str, target: Target) -> bytes:
    return schema.encode_key(schema.PositionKey.new(sink_id=sink_id, topic_id=target[0], partition=target[1]))


def sink(sink_id: str, epoch: int, run_id: str, producer_id: int, ephemeral: bool, claimed_ms: int) -> LogRecord:
    """Whose sink it is from now on."""
    value = schema.SinkValue.new(
        epoch=epoch, run_id=run_id, producer_id=producer_id, ephemeral=ephemeral, claimed_ms=claimed_ms
    )
    return LogRecord(sink_key(sink_id), schema.encode_value(value))


def run(sink_id: str, run_id: str, epoch: int) -> LogRecord:
    """A run and its epoch, for ever."""
    return LogRecord(run_key(sink_id, run_id), schema.encode_value(schema.RunValue.new(epoch=epoch)))


def staged(sink_id: str, handle: int, staged: Staged) -> LogRecord:
    """A handle and what it holds."""
    value = StagedValue.new(
        epoch=staged.epoch,
        batch_id=staged.batch_id,
        task=staged.task,
        next_offset=staged.next_offset,
        bytes=staged.bytes,
        staged_ms=staged.staged_ms,
        first_offset=staged.first_offset,
        parts=[StagedValue.StagedPart(**part._asdict()) for part in staged.parts],
    )
    return LogRecord(staged_key(sink_id, handle), schema.encode_value(value))


def commit(sink_id: str, commit: SinkCommit) -> LogRecord:
    """The commit point of a batch, or (FINISHED) that nothing of it is left to be done."""
    value = CommitValue.new(
        epoch=commit.epoch,
        committed_ms=commit.committed_ms,
        state=commit.state,
        producer_id=commit.producer_id,
        metadata=commit.metadata,
        shares=[
            CommitValue.CommittedShare(
                topic_id=share.target[0],
                partition=share.target[1],
                producer_epoch=PRODUCER_EPOCH,
                base_sequence=share.base_sequence,
                records=share.records,
                bytes=share.bytes,
                base_offset=share.base_offset,
                last_offset=share.last_offset,
                dropped=share.dropped,
            )
            for share in commit.shares
        ],
        handles=list(commit.handles),
    )
    return LogRecord(commit_key(sink_id, commit.batch_id), schema.encode_value(value))


def position(sink_id: str, target: Target, next_sequence: int) -> LogRecord:
    """Where a partition's sequence goes on, once the commits that say so are forgotten."""
    value = schema.PositionValue.new(next_sequence=next_sequence)
    return LogRecord(position_key(sink_id, target), schema.encode_value(value))


def tombstones(sink: Sink) -> list[LogRecord]:
    """What removes a sink but for its handles."""
    keys = [run_key(sink.id, run_id) for run_id in sink.runs]
    keys += [commit_key(sink.id, batch_id) for batch_id in sink.commits]
    keys += [position_key(sink.id, target) for target in sink.sequences]
    return [LogRecord(key, None) for key in (*keys, sink_key(sink.id))]


# ---------------------------------------------------------------------- reading


def staged_of(record: SinkRecord) -> Staged:
    """The handle in a decoded STAGED record."""
    value = record.value
    first = value.first_offset if value.first_offset >= 0 else record.key.handle
    parts = [StagedPart(part.topic_id, part.partition, part.records, part.bytes) for part in value.parts]
    if not parts:  # of a version before 2
        parts = [StagedPart(value.topic_id, value.partition, value.next_offset - first, value.bytes)]
    return Staged(
        value.epoch, value.batch_id, value.task, first, value.next_offset, value.bytes, value.staged_ms, Parts(parts)
    )


def commit_of(record: SinkRecord) -> SinkCommit:
    """The batch in a decoded COMMIT record; its shares have pieces in version 0 only."""
    value = record.value
    shares = tuple(
        CommittedShare(
            (share.topic_id, share.partition),
            share.base_sequence,
            share.records,
            share.bytes,
            Pieces(StagedRange(piece.first_offset, piece.next_offset, piece.bytes) for piece in share.pieces),
            share.base_offset,
            share.last_offset,
            share.dropped,
        )
        for share in value.shares
    )
    return SinkCommit(
        record.key.batch_id,
        value.epoch,
        value.committed_ms,
        value.state,
        value.producer_id,
        value.metadata,
        shares,
        tuple(value.handles),
        min((piece.first_offset for share in shares for piece in share.pieces), default=None),
    )
