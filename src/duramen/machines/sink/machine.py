"""The sink machine: epochs, handles and commits of one partition's worth of sinks, behind `__duramen_sink_state`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import NO_TICKET, LogRecord, Outcome, ProducerEpoch, TimerFired, TransactionMarks
from duramen.machines.sink import records
from duramen.machines.sink.commands import (
    COMMITTED,
    FINISHED,
    Aborted,
    AbortStaged,
    AdmitStage,
    BatchCommitted,
    Claimed,
    ClaimEpoch,
    CommitStaged,
    DescribeSink,
    FinishCommit,
    ListSinks,
    MoveStaged,
    NewHandle,
    RecordStaged,
    ReleaseSink,
    SlicesRefused,
    TopicIdsDeleted,
)
from duramen.machines.sink.pieces import Parts, Pieces, Target, gathered
from duramen.machines.sink.settings import SinkSettings
from duramen.machines.sink.state import NO_SINK_EPOCH, CommittedShare, Sink, SinkCommit, Staged
from duramen.wire.batch import MAX_SEQUENCE
from duramen.wire.records import sinks as schema

CLEAN: Final = "clean"
"""Timer of what removes records that are not needed any more."""
SLICE_RECORDS: Final = 500
"""Tombstones written in one decision; the rest follows in further ones."""
RETRY_MS: Final = 1000
MAX_HANDLES: Final = 100_000
"""Handles of one sink: a commit that names them all has to fit one batch of the state log."""
MAX_PARTS: Final = 1_000_000
"""Of all handles of one sink: so many are gone through at once when they are committed (1 to 2 s), and kept in memory
until they have been moved (60 MB)."""
MAX_UNFINISHED: Final = 8
"""Committed batches of one sink that are not finished; a driver waits for each, so more come only from trouble."""
MAX_TARGETS: Final = 10_000
"""Partitions of one commit: so many positions, too, fit the batch that says that it is finished."""
MAX_UNDER_WAY: Final = 1 << 30
"""Records of one sink on their way to one partition. Sequences go round at twice as many; nearer to that, what a
partition has could not be told from what it has not."""
MAX_REMOVED: Final = 12_000
"""Records that one decision removes; they fit one batch, whatever their names."""
MAX_RUNS: Final = 10_000
"""Of one sink, that are known, so that an older one stays refused. A write of Spark's that names its batch is a run of
its own, and there may be one a second for years. All of them are removed with the sink, by one decision."""
MAX_ID_BYTES: Final = 249
MAX_METADATA_BYTES: Final = 64 << 10
FIRST_EPOCHS_SINCE_MS: Final = 1_577_836_800_000
"""2020-01-01. A new sink's epoch counts seconds from here, so that it lies above those of one released before."""


class SinkMachine:
    """State machine over one partition of `__duramen_sink_state`; all of its state is durable.

    `sinks` changes in `apply` alone. `_garbage` are keys whose last record in the log means nothing any more.
    """

    transaction_marks: TransactionMarks | None = None

    def __init__(self, settings: SinkSettings | None = None) -> None:
        self.settings = settings or SinkSettings()
        self.sinks: dict[str, Sink] = {}
        self._garbage: dict[bytes, None] = {}
        self._released_epoch = NO_SINK_EPOCH
        """Greatest of removed sinks: its second may not be over when its name is claimed anew, or time goes back."""

    # ------------------------------------------------------------------ the log

    def apply(self, record: LogRecord, offset: int, timestamp: int, producer: ProducerEpoch | None = None) -> None:
        """Make one record of the partition part of the durable state."""
        if record.key is None:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a record of a sink has no key")
        decoded = schema.decode_record(record.key, record.value)
        if decoded.kind not in _APPLY:
            return
        self._garbage.pop(record.key, None)
        if decoded.value is None:
            self._remove(decoded)
            return
        sink_id = decoded.key.sink_id
        sink = self.sinks.get(sink_id)
        if sink is None:
            sink = self.sinks[sink_id] = Sink(sink_id)
        _APPLY[decoded.kind](self, sink, decoded)

    def apply_control(self, record: LogRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        """Transaction markers: none are written here."""

    def _remove(self, decoded: schema.SinkRecord) -> None:
        sink = self.sinks.get(decoded.key.sink_id)
        if sink is None:
            return
        if decoded.kind == schema.SINK:
            for handle in list(sink.staged):
                self._discard(sink, handle)
            self._released_epoch = max(self._released_epoch, sink.epoch)
            del self.sinks[sink.id]
        elif decoded.kind == schema.RUN:
            sink.runs.pop(decoded.key.run_id, None)
        elif decoded.kind == schema.STAGED:
            sink.unstage(decoded.key.handle)
        elif decoded.kind == schema.COMMIT:
            sink.commits.pop(decoded.key.batch_id, None)
        else:
            sink.sequences.pop((decoded.key.topic_id, decoded.key.partition), None)

    def _apply_sink(self, sink: Sink, decoded: schema.SinkRecord) -> None:
        value = decoded.value
        sink.epoch, sink.run_id, sink.producer_id = value.epoch, value.run_id, value.producer_id
        sink.ephemeral, sink.claimed_ms = value.ephemeral, value.claimed_ms
        for handle in [handle for handle, staged in sink.staged.items() if staged.epoch < sink.epoch]:
            self._discard(sink, handle)

    def _apply_run(self, sink: Sink, decoded: schema.SinkRecord) -> None:
        sink.runs[decoded.key.run_id] = decoded.value.epoch
        for oldest in _forgotten_runs(sink):
            self._garbage[records.run_key(sink.id, oldest)] = None

    def _apply_staged(self, sink: Sink, decoded: schema.SinkRecord) -> None:
        sink.stage(decoded.key.handle, records.staged_of(decoded))

    def _apply_commit(self, sink: Sink, decoded: schema.SinkRecord) -> None:
        commit = records.commit_of(decoded)
        before = sink.commits.get(commit.batch_id)
        if commit.state == COMMITTED and commit.handles:
            commit = _taken(sink, commit)
        sink.commits[commit.batch_id] = commit
        sink.last_batch = max(sink.last_batch, commit.batch_id)
        for handle in [handle for handle, staged in sink.staged.items() if staged.batch_id <= commit.batch_id]:
            self._discard(sink, handle)
        if commit.state == COMMITTED:
            for share in commit.shares:
                sink.sequences[share.target] = sequence_behind(share)
            return
        for handle in before.handles if before is not None else ():
            self._garbage[records.staged_key(sink.id, handle)] = None
        for batch_id in sink.forgettable():
            del sink.commits[batch_id]
            self._garbage[records.commit_key(sink.id, batch_id)] = None

    def _apply_position(self, sink: Sink, decoded: schema.SinkRecord) -> None:
        sink.sequences[(decoded.key.topic_id, decoded.key.partition)] = decoded.value.next_sequence

    def _discard(self, sink: Sink, handle: int) -> None:
        """A handle means nothing any more; its record is still in the log."""
        sink.unstage(handle)
        self._garbage[records.staged_key(sink.id, handle)] = None

    def on_loaded(self, now: int) -> Outcome:
        """Begin to clean. What is committed and unfinished is for the host's owner to take up: see `unfinished`."""
        for sink in [sink for sink in self.sinks.values() if sink.epoch == NO_SINK_EPOCH]:
            # Its sink record is removed: what else there is of it was to follow.
            for handle in list(sink.staged):
                self._discard(sink, handle)
            for record in records.tombstones(sink)[:-1]:
                self._garbage[record.key or b""] = None
            del self.sinks[sink.id]
        return Outcome(timers=[(CLEAN, now)])

    # ------------------------------------------------------------------ what its owner asks

    def unfinished(self) -> Iterator[tuple[Sink, SinkCommit]]:
        """Every committed batch that is still to be moved, each sink's in order."""
        for sink in self.sinks.values():
            for commit in sink.unfinished():
                yield sink, commit

    def oldest_needed(self) -> int | None:
        """Lowest offset of the staging log that anybody here may still read; None when nobody needs any."""
        needed = (sink.oldest_needed() for sink in self.sinks.values())
        return min((offset for offset in needed if offset is not None), default=None)

    # ------------------------------------------------------------------ decisions

    def decide(self, command: Any, ticket: int, now: int) -> Outcome:
        """Judge one command of `commands`, or a timer; TypeError for anything else."""
        decision = _DECISIONS.get(type(command))
        if decision is None:
            raise TypeError(f"not a sink command: {command!r}")
        out = Outcome()
        answer = decision(self, command, now, out)
        if ticket != NO_TICKET:
            out.replies.append((ticket, answer))
        return out

    def _sink(self, sink_id: str, epoch: int | None = None) -> Sink:
        """The sink, if there is one and a call of this epoch may change it."""
        sink = self.sinks.get(sink_id)
        if sink is None:
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, f"there is no sink {sink_id}; claim it first")
        if epoch is not None:
            sink.check_epoch(epoch)
        return sink

    def _claim(self, command: ClaimEpoch, now: int, out: Outcome) -> Claimed:
        for text in (command.sink_id, command.run_id):
            if not 0 < len(text.encode()) <= MAX_ID_BYTES:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"ids of sinks and runs are 1 to {MAX_ID_BYTES} bytes")
        sink = self.sinks.get(command.sink_id)
        epoch = max((now - FIRST_EPOCHS_SINCE_MS) // 1000, self._released_epoch + 1)
        producer_id = command.producer_id
        if sink is not None:
            known = sink.runs.get(command.run_id)
            if known == sink.epoch:
                return Claimed(known, sink.last_batch)
            if known is not None:
                raise KafkaError(
                    ErrorCode.PRODUCER_FENCED,
                    f"sink {sink.id}: run {command.run_id} was superseded by run {sink.run_id} and stays refused",
                )
            epoch, producer_id = sink.epoch + 1, sink.producer_id
        out.records = [
            records.sink(command.sink_id, epoch, command.run_id, producer_id, command.ephemeral, now),
            records.run(command.sink_id, command.run_id, epoch),
        ]
        return Claimed(epoch, -1 if sink is None else sink.last_batch)

    def _admit(self, command: AdmitStage, now: int, out: Outcome) -> bool:
        sink = self._sink(command.sink_id, command.epoch)
        if sink.check_batch(command.batch_id) is not None:
            return True
        _check_room(sink, command.parts)
        return False

    def _record_staged(self, command: RecordStaged, now: int, out: Outcome) -> bool:
        count = sum(len(handle.parts) for handle in command.handles)
        if self._admit(AdmitStage(command.sink_id, command.epoch, command.batch_id, count), now, out):
            return True
        out.records = [
            records.staged(command.sink_id, handle.first_offset, _new_staged(command, handle, now))
            for handle in command.handles
        ]
        return False

    def _move(self, command: MoveStaged, now: int, out: Outcome) -> bool:
        sink = self.sinks.get(command.sink_id)
        staged = None if sink is None else sink.staged.get(command.handle)
        if staged is None or staged.first_offset != command.first_offset:
            return False
        out.records = [records.staged(command.sink_id, command.handle, staged.at(command.new_first_offset))]
        return True

    def _commit(self, command: CommitStaged, now: int, out: Outcome) -> BatchCommitted:
        sink = self._sink(command.sink_id, command.epoch)
        if sink.check_batch(command.batch_id) is not None:
            return BatchCommitted(True)
        if len(command.metadata or b"") > MAX_METADATA_BYTES:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"metadata of a batch is at most {MAX_METADATA_BYTES} bytes")
        if sum(1 for _ in sink.unfinished()) >= MAX_UNFINISHED:
            raise KafkaError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"sink {sink.id}: {MAX_UNFINISHED} committed batches are on their way",
            )
        shares = tuple(_shares(sink, command))
        commit = SinkCommit(
            command.batch_id,
            command.epoch,
            now,
            COMMITTED,
            sink.producer_id,
            command.metadata,
            shares,
            command.handles,
        )
        out.records = [records.commit(sink.id, commit)]
        out.timers.append((CLEAN, now))
        return BatchCommitted(False)

    def _finish(self, command: FinishCommit, now: int, out: Outcome) -> bool:
        sink = self.sinks.get(command.sink_id)
        commit = None if sink is None else sink.commits.get(command.batch_id)
        if sink is None or commit is None or commit.state == FINISHED or commit.producer_id != command.producer_id:
            return True  # it was told before, and perhaps the sink was released since, and its name claimed anew
        shares = tuple(
            share._replace(pieces=Pieces(), **done._asdict())
            for share, done in zip(commit.shares, command.shares, strict=True)
        )
        out.records = [records.commit(sink.id, replace(commit, state=FINISHED, shares=shares, handles=()))]
        for share in shares:
            next_sequence = sink.sequences.get(share.target)
            if next_sequence is None:
                continue  # a later batch has found its topic gone, and finished first
            if not share.dropped:
                out.records.append(records.position(sink.id, share.target, next_sequence))
            else:
                out.records.append(LogRecord(records.position_key(sink.id, share.target), None))
        out.timers.append((CLEAN, now))
        return True

    def _abort(self, command: AbortStaged, now: int, out: Outcome) -> Aborted:
        sink = self._sink(command.sink_id, command.epoch)
        if sink.check_batch(command.batch_id) is not None:
            return Aborted(True, 0, 0)
        named = None if command.handles is None else set(command.handles)
        gone = [
            handle
            for handle, staged in sink.staged.items()
            if staged.batch_id == command.batch_id and (named is None or handle in named)
        ]
        out.records = [LogRecord(records.staged_key(sink.id, handle), None) for handle in gone[:MAX_REMOVED]]
        return Aborted(False, len(out.records), len(gone) - len(out.records))

    def _describe(self, command: DescribeSink, now: int, out: Outcome) -> Any:
        return self._sink(command.sink_id).describe()

    def _list(self, command: ListSinks, now: int, out: Outcome) -> Any:
        return [sink.describe() for sink in self.sinks.values()]

    def _release(self, command: ReleaseSink, now: int, out: Outcome) -> bool:
        sink = self._sink(command.sink_id, command.epoch)
        if any(sink.unfinished()):
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS, f"sink {sink.id}: a committed batch is on its way")
        out.records = records.tombstones(sink)
        out.timers.append((CLEAN, now))
        return True

    # ------------------------------------------------------------------ cleaning

    def _topics_deleted(self, command: TopicIdsDeleted, now: int, out: Outcome) -> bool:
        """Sequences of partitions that are gone; a batch under way to one keeps them until it is finished."""
        gone = set(command.topic_ids)
        for sink in self.sinks.values():
            under_way = {share.target for commit in sink.unfinished() for share in commit.shares}
            for target in sink.sequences:
                if target[0] in gone and target not in under_way:
                    self._garbage[records.position_key(sink.id, target)] = None
        out.timers.append((CLEAN, now))
        return True

    def _timer(self, command: TimerFired, now: int, out: Outcome) -> None:
        """Next slice of tombstones: for what is dead, for handles nobody committed, for sinks of one job."""
        found = [LogRecord(key, None) for key, _ in zip(self._garbage, range(SLICE_RECORDS), strict=False)]
        limit = now - self.settings.staging_retention_ms
        for sink in self.sinks.values():
            if (room := SLICE_RECORDS - len(found)) > 0:
                given_up = islice(sink.given_up(limit), room)
                found += [LogRecord(records.staged_key(sink.id, handle), None) for handle in given_up]
            if len(found) < SLICE_RECORDS and self._is_over(sink, now):
                gone = records.tombstones(sink)  # all together: half a sink would be taken for a young one
                found += gone if len(found) + len(gone) <= MAX_REMOVED else []
        out.records = found
        out.if_refused = SlicesRefused()
        is_all = len(found) < SLICE_RECORDS
        out.timers.append((CLEAN, now + (self.settings.sweep_interval_ms if is_all else 0)))

    def _is_over(self, sink: Sink, now: int) -> bool:
        idle_since = now - self.settings.ephemeral_retention_ms
        return sink.ephemeral and not sink.staged and not any(sink.unfinished()) and sink.last_used_ms <= idle_since

    def _slices_refused(self, command: SlicesRefused, now: int, out: Outcome) -> None:
        out.timers.append((CLEAN, now + RETRY_MS))


def _check_room(sink: Sink, parts: int) -> None:
    """KafkaError RECORD_LIST_TOO_LARGE when so many more parts, in a handle, are more than a commit can take."""
    if len(sink.staged) >= MAX_HANDLES:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"sink {sink.id} has {len(sink.staged)} handles, {MAX_HANDLES} are the most: stage more with a call",
        )
    if sink.staged_parts + parts > MAX_PARTS:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"sink {sink.id} has {sink.staged_parts} parts of partitions in its handles, {MAX_PARTS} are the most:"
            " stage more of a partition with a call",
        )


def _new_staged(command: RecordStaged, handle: NewHandle, now: int) -> Staged:
    parts = handle.parts
    return Staged(
        command.epoch,
        command.batch_id,
        command.task,
        handle.first_offset,
        handle.first_offset + sum(part.records for part in parts),
        sum(part.bytes for part in parts),
        now,
        Parts(parts),
    )


def _forgotten_runs(sink: Sink) -> Iterator[str]:
    """The oldest ones beyond MAX_RUNS, which are known no more."""
    while len(sink.runs) > MAX_RUNS:
        oldest = next(iter(sink.runs))  # they come in the order of their epochs
        del sink.runs[oldest]
        yield oldest


def sequence_behind(share: CommittedShare) -> int:
    """Sequence of the first record behind a share; they go on at 0 behind MAX_SEQUENCE."""
    return (share.base_sequence + share.records) & MAX_SEQUENCE


def _shares(sink: Sink, command: CommitStaged) -> list[CommittedShare]:
    """What each partition gets, in the order of the handles. KafkaError when one is not there to be committed."""
    chosen: list[tuple[int, Parts]] = []
    seen: set[int] = set()
    for handle in command.handles:
        if handle in seen:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"handle {handle} is named twice")
        seen.add(handle)
        staged = sink.staged.get(handle)
        if staged is None or staged.batch_id != command.batch_id or staged.epoch != command.epoch:
            raise KafkaError(
                ErrorCode.RESOURCE_NOT_FOUND,
                f"sink {sink.id}: handle {handle} is not staged for batch {command.batch_id} (any more: it waits for "
                "its commit for duramen.sink.staging.retention.ms, from the last one of its batch on); nothing was "
                "committed",
            )
        chosen.append((staged.first_offset, staged.parts))
    found = gathered(chosen)
    shares = [
        CommittedShare(target, sink.sequences.get(target, 0), pieces.records, pieces.bytes, pieces)
        for target, pieces in found.items()
    ]
    _check_extent(sink, shares)
    return shares


def _taken(sink: Sink, commit: SinkCommit) -> SinkCommit:
    """The commit with its shares' pieces out of the handles it names, which are its own from now on."""
    held = [staged for staged in map(sink.unstage, commit.handles) if staged is not None]
    pieces = gathered((staged.first_offset, staged.parts) for staged in held)
    return replace(
        commit,
        shares=tuple(share._replace(pieces=pieces.get(share.target, Pieces())) for share in commit.shares),
        needed_from=min((staged.first_offset for staged in held), default=None),
    )


def _check_extent(sink: Sink, shares: list[CommittedShare]) -> None:
    """KafkaError RECORD_LIST_TOO_LARGE for a commit that could not be carried out safely."""
    if len(shares) > MAX_TARGETS:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"sink {sink.id}: a batch for {len(shares)} partitions, {MAX_TARGETS} are the most; nothing was committed",
        )
    under_way: dict[Target, int] = {share.target: share.records for share in shares}
    for commit in sink.unfinished():
        for share in commit.shares:
            under_way[share.target] = under_way.get(share.target, 0) + share.records
    if max(under_way.values(), default=0) > MAX_UNDER_WAY:
        raise KafkaError(
            ErrorCode.RECORD_LIST_TOO_LARGE,
            f"sink {sink.id}: more than {MAX_UNDER_WAY} records on their way to one partition; nothing was committed",
        )


_APPLY: Final[dict[int, Callable[[SinkMachine, Sink, schema.SinkRecord], None]]] = {
    schema.SINK: SinkMachine._apply_sink,
    schema.RUN: SinkMachine._apply_run,
    schema.STAGED: SinkMachine._apply_staged,
    schema.COMMIT: SinkMachine._apply_commit,
    schema.POSITION: SinkMachine._apply_position,
}

_DECISIONS: Final[dict[type, Callable[[SinkMachine, Any, int, Outcome], Any]]] = {
    ClaimEpoch: SinkMachine._claim,
    AdmitStage: SinkMachine._admit,
    RecordStaged: SinkMachine._record_staged,
    MoveStaged: SinkMachine._move,
    CommitStaged: SinkMachine._commit,
    FinishCommit: SinkMachine._finish,
    AbortStaged: SinkMachine._abort,
    DescribeSink: SinkMachine._describe,
    ListSinks: SinkMachine._list,
    ReleaseSink: SinkMachine._release,
    TopicIdsDeleted: SinkMachine._topics_deleted,
    TimerFired: SinkMachine._timer,
    SlicesRefused: SinkMachine._slices_refused,
}
