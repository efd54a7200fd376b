"""Moves committed batches of sinks from the staging log to their partitions: each share once, in order, at some time.

A share is moved by reading it in chunks off the loop, with the sink's producer id and sequence stamped into the batch
headers, and appending it. What is there already, from before a crash or an error, is told by the partition's own
producer state and skipped, so that going on is always safe. Nothing here is durable: what is left to move is known from
the coordinator's log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from duramen.errors import CorruptLogError, DuramenError, ErrorCode, KafkaError, StreamClosedError
from duramen.machines.sink.commands import ShareDone
from duramen.machines.sink.pieces import Target
from duramen.machines.sink.state import CommittedShare, SinkCommit
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.replica.partition import Partition
from duramen.partition.sinks.destinations import Destinations, Standing
from duramen.partition.sinks.staging import Chunk, ShareReader
from duramen.ports import Clock, Submit

MOST_MOVES: Final = 4
"""Shares moved at the same time; each holds at most WINDOW_BYTES and two chunks in memory."""
WINDOW_BYTES: Final = 4 << 20
"""Appended bytes of one share that are not yet below the high watermark."""
RETRY_SECONDS: Final = 0.5
CONGESTED_SECONDS: Final = 0.05

BatchKey = tuple[str, int, int]
"""(sink id, batch id, producer id): a name that was released may be another sink's, which counts from 0 again."""
OnReadable = Callable[["tuple[ShareDone, ...]"], None]


def batch_key(sink_id: str, commit: SinkCommit) -> BatchKey:
    """What tells this batch from every other there ever was."""
    return sink_id, commit.batch_id, commit.producer_id


class MoveStatistics:
    """Counters, for metrics."""

    def __init__(self) -> None:
        self.bytes = 0
        self.batches = 0
        self.retries = 0
        self.dropped = 0


class CommitApplier:
    """Every committed batch that this node still has to move. Owned by the loop thread.

    submit: runs work off the loop (`Store.submit`). on_durable(key, shares): a batch is where it belongs for good.
    report(event, **fields): what an operator should see.
    """

    def __init__(
        self,
        clock: Clock,
        submit: Submit,
        targets: Destinations,
        congested: Callable[[], bool],
        on_durable: Callable[[BatchKey, tuple[ShareDone, ...]], None],
        report: Callable[..., None],
    ) -> None:
        self.clock = clock
        self.submit = submit
        self.targets = targets
        self.congested = congested
        self.report = report
        self.statistics = MoveStatistics()
        self.closed = False
        self._on_durable = on_durable
        self._jobs: dict[BatchKey, BatchJob] = {}
        self._lines: dict[tuple[str, Target], deque[Move]] = {}
        self._ready: deque[Move] = deque()
        self._moving = 0

    @property
    def unfinished(self) -> int:
        """Batches that are committed and not yet durable where they belong."""
        return len(self._jobs)

    def start(self, sink_id: str, commit: SinkCommit, staging: Partition) -> None:
        """Begin to move a committed batch, after those of the same sink before it; once, however often called."""
        key = batch_key(sink_id, commit)
        if key in self._jobs or self.closed:
            return
        job = self._jobs[key] = BatchJob(self, key, commit)
        for number, share in enumerate(commit.shares):
            move = Move(self, job, number, share, staging)
            line = self._lines.setdefault((sink_id, share.target), deque())
            line.append(move)
            if len(line) == 1:
                self._ready.append(move)
        if not commit.shares:
            job.is_readable()
        self._feed()

    def when_readable(self, key: BatchKey, callback: OnReadable) -> bool:
        """Call back when every share of the batch can be read; False when this batch is not under way."""
        job = self._jobs.get(key)
        if job is None:
            return False
        job.wait(callback)
        return True

    def forget(self, key: BatchKey, callback: OnReadable) -> None:
        """Whoever asked to be called back does not wait any more."""
        job = self._jobs.get(key)
        if job is not None:
            job.forget(callback)

    def finished(self, key: BatchKey) -> None:
        """The coordinator's log says that nothing of this batch is left to be done."""
        self._jobs.pop(key, None)

    def close(self) -> None:
        """Move nothing more."""
        self.closed = True
        self._jobs.clear()
        self._lines.clear()
        self._ready.clear()

    # ---- for the moves ---------------------------------------------------------------------------------------

    def _feed(self) -> None:
        while self._ready and self._moving < MOST_MOVES:
            self._moving += 1
            self._ready.popleft().begin()

    def moved(self, move: Move, sink_id: str) -> None:
        """A share is there: the next one of its sink for this partition may follow, and another takes its turn."""
        if self.closed:
            return
        self._moving -= 1
        line = self._lines[(sink_id, move.share.target)]
        line.popleft()
        if line:
            self._ready.append(line[0])
        else:
            del self._lines[(sink_id, move.share.target)]
        self._feed()

    def pause(self, move: Move) -> None:
        """A share that cannot go on now gives its turn away, and queues again a while later."""
        self._moving -= 1
        self.clock.call_later(RETRY_SECONDS, partial(self._again, move))
        self._feed()

    def _again(self, move: Move) -> None:
        if not self.closed:
            self._ready.append(move)
            self._feed()

    def durable(self, key: BatchKey, shares: tuple[ShareDone, ...]) -> None:
        """All of a batch is on stable storage."""
        if not self.closed:
            self._on_durable(key, shares)


class BatchJob:
    """One committed batch under way: how many of its shares can be read, and how many are durable."""

    def __init__(self, owner: CommitApplier, key: BatchKey, commit: SinkCommit) -> None:
        self._owner = owner
        self.key = key
        self.producer_id = commit.producer_id
        self._done: list[ShareDone | None] = [None] * len(commit.shares)
        self._unread = self._soft = len(commit.shares)
        self._waiting: list[OnReadable] = []

    @property
    def shares(self) -> tuple[ShareDone, ...]:
        return tuple(done for done in self._done if done is not None)

    def wait(self, callback: OnReadable) -> None:
        if self._unread:
            self._waiting.append(callback)
        else:
            callback(self.shares)

    def forget(self, callback: OnReadable) -> None:
        if callback in self._waiting:
            self._waiting.remove(callback)

    def share_readable(self, number: int, done: ShareDone) -> None:
        self._done[number] = done
        self._unread -= 1
        if not self._unread:
            waiting, self._waiting = self._waiting, []
            for callback in waiting:
                callback(self.shares)

    def share_durable(self) -> None:
        self._soft -= 1
        if not self._soft:
            self._owner.durable(self.key, self.shares)

    def is_readable(self) -> None:
        """A batch without records."""
        self._owner.durable(self.key, ())


class Move:
    """One share on its way to its partition."""

    def __init__(
        self, owner: CommitApplier, job: BatchJob, number: int, share: CommittedShare, staging: Partition
    ) -> None:
        self._owner = owner
        self._job = job
        self._number = number
        self.share = share
        self._staging = staging
        self._reader: ShareReader
        self._base_offset = -1
        self._last_offset = -1
        self._end = 0
        self._first_is_ours = False
        self._reading = False
        self._in_flight = 0
        self._bytes = 0
        self._error: DuramenError | OSError | None = None

    def begin(self) -> None:
        """Ask the partition how far this share is there, and go on after that."""
        if self._owner.closed:
            return
        self._owner.targets.stand(self.share, self._job.producer_id, self._stands)

    def _stands(self, standing: Standing | KafkaError) -> None:
        share = self.share
        if isinstance(standing, KafkaError):
            self._failed(standing)
            return
        if share.pieces.records != share.records:
            # Never so while handles outlive their commit; to go on would be to leave the rest out.
            self._failed(CorruptLogError(str(self._staging.tp), 0, 0, "handles of a committed batch are missing", -1))
            return
        self._error = None
        if standing.records:
            self._end = standing.end
            self._last_offset = standing.last_offset
            if self._base_offset < 0:
                self._base_offset = standing.base_offset
        self._first_is_ours = standing.records == 0
        self._reader = ShareReader(self._staging, share.pieces, self._job.producer_id, share.base_sequence)
        self._reader.skip(standing.records)
        self._go_on()

    # ---- reading ---------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Read the next chunk if there is room for it; when nothing is left, see that all of it can be read."""
        owner = self._owner
        if owner.closed or self._reading:
            return
        if self._error is not None:
            if not self._in_flight:
                self._failed(self._error)
            return
        if self._reader.is_over:
            if not self._in_flight:
                owner.targets.settle(self.share.target, self._end, durable=False, done=self._readable)
            return
        if self._bytes >= WINDOW_BYTES:
            return
        self._reading = True
        if owner.congested():
            owner.clock.call_later(CONGESTED_SECONDS, self._relieved)
            return
        try:
            chunk = self._reader.take()
        except (DuramenError, OSError) as error:
            self._reading = False
            self._error = error
            self._go_on()
            return
        owner.submit("staging", chunk.run, partial(self._have_read, chunk))

    def _relieved(self) -> None:
        self._reading = False
        self._go_on()

    def _have_read(self, chunk: Chunk, _: object, error: BaseException | None) -> None:
        if self._owner.closed:
            return
        if isinstance(error, DuramenError | OSError):
            self._error = error
        elif error is not None:
            raise error
        else:
            chunk.complete()
            self._reader.took(chunk)
            for batch in chunk.out:
                if self._error is None:  # what follows a batch that was refused would be out of order
                    self._append(batch)
        self._reading = False
        self._go_on()

    # ---- appending -------------------------------------------------------------------------------------------

    def _append(self, batch: bytearray) -> None:
        first, self._first_is_ours = self._first_is_ours, False
        self._in_flight += 1
        self._bytes += len(batch)
        self._owner.statistics.batches += 1
        self._owner.statistics.bytes += len(batch)
        self._owner.targets.append(
            self.share.target, memoryview(batch), partial(self._appended, first, len(batch), _count(batch))
        )

    def _appended(self, first: bool, size: int, records: int, result: Appended | KafkaError) -> None:
        self._in_flight -= 1
        self._bytes -= size
        if isinstance(result, KafkaError):
            self._error = result
        else:
            self._last_offset = max(self._last_offset, result.base_offset + records - 1)
            self._end = max(self._end, self._last_offset + 1)
            if first:
                self._base_offset = result.base_offset
        self._go_on()

    def _readable(self, error: KafkaError | None) -> None:
        if self._owner.closed:
            return
        if error is not None:
            self._failed(error)
            return
        self._harden(None)
        self._job.share_readable(self._number, ShareDone(self._base_offset, self._last_offset, False))
        self._owner.moved(self, self._job.key[0])

    def _harden(self, _: object) -> None:
        self._owner.targets.settle(self.share.target, self._end, durable=True, done=self._durable)

    def _durable(self, error: KafkaError | None) -> None:
        if self._owner.closed:
            return
        if error is not None and error.code is not ErrorCode.UNKNOWN_TOPIC_ID:
            self._owner.clock.call_later(RETRY_SECONDS, partial(self._harden, None))
        else:
            self._owner.clock.call_soon(self._job.share_durable)

    # ---- trouble ---------------------------------------------------------------------------------------------

    def _failed(self, error: DuramenError | OSError) -> None:
        """Once all in flight is settled: again later, from what is there then; unless the topic is gone or closed."""
        owner = self._owner
        is_gone = isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_ID
        if is_gone or isinstance(error, StreamClosedError):
            owner.statistics.dropped += 1
            owner.report(
                "sink-share-dropped", sink=self._job.key[0], batch=self._job.key[1], partition=self.share.target[1]
            )
            self._job.share_readable(self._number, ShareDone(-1, -1, True))
            self._job.share_durable()
            owner.moved(self, self._job.key[0])
            return
        owner.statistics.retries += 1
        if not isinstance(error, KafkaError) or error.code not in _EXPECTED:
            sink_id, batch_id, _ = self._job.key
            owner.report("sink-batch-delayed", sink=sink_id, batch=batch_id, reason=str(error))
        owner.pause(self)


_EXPECTED: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""What a restart, an election or a failed disk brings about; it is told elsewhere."""


def _count(batch: bytearray) -> int:
    return int.from_bytes(batch[57:61], "big")
