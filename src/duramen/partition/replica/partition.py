"""One partition: where produce and fetch meet.

A produced batch is checked, given its offset and appended to the log (page cache) and queued for the journal in one
call, without waiting for anything. Three ends then follow each other, and never overtake:

    log end  ≥  durable end  ≥  high watermark  ≥  last stable offset

*Log end* moves when the batch is queued; *durable end* when the journal's group commit has returned (topics whose
`duramen.ack.durability` is page-cache: when the write has); the *high watermark* when every in-sync replica's durable
end has passed; the *last stable offset* stays behind open transactions. A producer's `acks` waits for the high
watermark, a consumer reads up to it (or up to the last stable offset), so nobody is told of, or shown, a record that
a power cut could take back. Everything that waits is a callback parked here and woken by `_settle`, the one function
through which the high watermark moves: it answers producers first, then wakes readers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from duramen.config import TopicConfig
from duramen.errors import ErrorCode, KafkaError, StorageError, StreamClosedError, check
from duramen.machines.replication.leader import LeaderLease, Replication
from duramen.model import NO_TIMESTAMP, TopicPartition
from duramen.partition.replica.append_times import find_last_txid, sets_timestamps, stamp_batch
from duramen.partition.replica.batch_rules import (
    claims_too_late,
    lacks_max_timestamp,
    may_need_rewriting,
    needs_rewriting,
    rewrite,
)
from duramen.partition.replica.parked_appends import Appended, Done, ParkedAppends, answer_duplicate
from duramen.partition.replica.refusals import refuse
from duramen.partition.replica.retry_gate import RetryGate
from duramen.partition.replica.rewrite_queue import RewriteQueue
from duramen.partition.replica.writer_rule import check_exclusive_writer
from duramen.ports import Part, Submit
from duramen.storage import COPIED_BYTES, Log, LogDirectory, Pending, TransactionGuard, configure_log, truncate_log
from duramen.wire.batch import (
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    check_produced,
    parse_header,
    place,
    stamp_append_time,
)
from duramen.wire.records.control import writer_record

READ_UNCOMMITTED = 0
READ_COMMITTED = 1


class Read(NamedTuple):
    """Whole batches for one reader, and how far it could have read."""

    parts: list[Part | Pending]
    size: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    """(producer id, first offset) of aborted transactions in the range; None unless read_committed."""
    next_offset: int
    """Behind the last whole batch (while a part is Pending: as far as it can reach)."""
    is_old: bool = False
    """Much of it is in memory because somebody read it, and not because it was written."""


PLAIN: Final = TransactionGuard(-1, -1, -1, False)
"""In the place of a guard: nobody speaks of a transaction. Transactional batches are refused."""

OnTouched = Callable[["Partition"], None]
Harden = Callable[["Partition", int, bool, Callable[[KafkaError | None], None]], None]
"""Have the markers below an offset on stable storage; the flag says whether the journal has the last one."""


class Partition:
    """One partition led or followed by this process. Owned by the loop thread."""

    __slots__ = (
        "_decodes",
        "_end_watchers",
        "_on_stored",
        "_on_touched",
        "_parked",
        "_stamps",
        "_watchers",
        "bytes_in",
        "bytes_out",
        "closed",
        "config",
        "harden",
        "is_exclusive",
        "last_txid",
        "log",
        "on_candidate",
        "records_in",
        "replication",
        "retry_gate",
        "rewrites",
        "topic_id",
        "tp",
    )

    def __init__(
        self, log: Log, config: TopicConfig, node_id: int, submit: Submit, on_touched: OnTouched, retry_gate: RetryGate
    ) -> None:
        self.tp: TopicPartition = log.tp
        self.topic_id = log.topic_id
        self.log = log
        self.config = config
        self._decodes = may_need_rewriting(config)
        self.is_exclusive = config.writer_exclusive
        self.last_txid: int | None = None
        """While it leads: the greatest transaction id that is stored, 0 where there is none. None: the topic has none
        (`duramen.txid`).
        """
        self._stamps = sets_timestamps(config)
        self.last_txid = find_last_txid(self.config, self.log.segments)
        self.replication = Replication(node_id)
        self._on_touched = self._on_stored = on_touched
        self._parked = ParkedAppends()
        self._watchers: dict[Callable[[], None], Callable[[KafkaError], None] | None] = {}
        self._end_watchers: dict[OnTouched, None] | None = None
        self.on_candidate: OnTouched | None = None
        """Called when a replica that is not in sync has fetched."""
        self.harden: Harden = _harden_nothing
        self.retry_gate = retry_gate
        self.rewrites = RewriteQueue(self.tp, submit)
        self.closed = False
        self.bytes_in = 0
        self.records_in = 0
        self.bytes_out = 0
        """Of records, in replies to clients."""

    # ---- where it stands -------------------------------------------------------------------------------------

    @property
    def leader_epoch(self) -> int:
        return self.replication.epoch

    @property
    def high_watermark(self) -> int:
        return self.replication.high_watermark

    @property
    def log_start_offset(self) -> int:
        return self.log.start_offset

    @property
    def log_end_offset(self) -> int:
        return self.log.end_offset

    @property
    def durable_end(self) -> int:
        """All below it that is written is where it is wanted: a close on stable storage, whatever the durability.

        So nobody hears of a close that a power cut may take back.
        """
        log = self.log
        if log.stable:
            return log.durable_end
        closed_at = log.producers.closed_at
        return log.end_offset if closed_at is None or log.durable_end > closed_at else closed_at

    @property
    def last_stable_offset(self) -> int:
        """First offset a read_committed consumer may not see yet (KIP-98); DeleteRecords may go past an open
        transaction.
        """
        unstable = self.log.producers.first_unstable_offset
        high = self.replication.high_watermark
        if unstable is None or unstable > high:
            return high
        return max(unstable, self.log.start_offset)

    @property
    def is_stable(self) -> bool:
        """Whether acknowledgements wait for stable storage (`duramen.ack.durability=stable`)."""
        return self.log.stable

    def lead(
        self,
        epoch: int,
        replicas: tuple[int, ...],
        isr: tuple[int, ...],
        partition_epoch: int,
        lease: LeaderLease | None = None,
    ) -> None:
        """Lead from `epoch` on, as the metadata log says; in the same epoch: with these in-sync replicas from now on.

        What is not newer than what is known changes nothing. lease: the node's, where it is not the only voter.
        """
        replication = self.replication
        replication.lease = lease if len(replicas) > 1 else None
        if replication.is_leader and replication.epoch == epoch:
            if partition_epoch <= replication.partition_epoch:
                return
            replication.fewest = self.config.fewest_in_sync(len(replicas))
            replication.adopt(replicas, isr, partition_epoch)
        else:
            replication.fewest = self.config.fewest_in_sync(len(replicas))
            replication.lead(epoch, replicas, isr, partition_epoch, self.durable_end, self.log.end_offset)
            self.last_txid = find_last_txid(self.config, self.log.segments)
            self._settle_here()
        self._settle()

    def resign(self, leader: int, epoch: int, replicas: tuple[int, ...] = (), isr: tuple[int, ...] = ()) -> None:
        """`leader` (-1: nobody) leads from `epoch` on: whoever waits for records that were appended here is told so.

        Those who read here are woken, for they have to ask another one.
        """
        was_leader = self.replication.is_leader
        self.replication.resign(leader, epoch, replicas, isr, self.durable_end)
        if was_leader and not self.replication.is_leader:
            self.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} is led by node {leader} now"))

    # ---- produce ---------------------------------------------------------------------------------------------

    def append(
        self, view: memoryview, acks: int, now_ms: int, done: Done, guard: TransactionGuard | None = PLAIN
    ) -> None:
        """Append one producer's batch; `done(Appended | KafkaError)` when `acks` (-1, 0 or 1) is satisfied.

        `view` must be writable; batches above COPIED_BYTES are kept by reference until written. `done` may be called
        before this returns. guard: what `transaction_guard` gave for a transactional batch.
        """
        if self.rewrites.is_busy:
            if len(view) <= COPIED_BYTES:
                view = memoryview(bytearray(view))  # what the log would copy, its owner may write over
            try:
                self.rewrites.add(partial(self.append, view, acks, now_ms, done, guard))
            except KafkaError as error:
                self._refuse(view, error, done)
            return
        try:
            header = self.admit(view, acks, guard)
            if self.must_be_decoded(header, now_ms):
                self.start_rewrite(view, now_ms, done, partial(self._rewritten, acks, now_ms, done, guard))
            else:
                self.append_checked(view, header, acks, now_ms, done, guard)
        except (KafkaError, OSError, StorageError) as error:
            self._refuse(view, error, done)

    def must_be_decoded(self, header: BatchHeader, now_ms: int) -> bool:
        """Whether somebody has to look into this batch before it may be appended (`start_rewrite`)."""
        if header.max_timestamp > now_ms and claims_too_late(self.config, header, now_ms):
            return True
        doubtful = (self._decodes or lacks_max_timestamp(header)) and needs_rewriting(self.config, header)
        # What is there already is not compared with what has come after it.
        return doubtful and not (self.last_txid is not None and self._is_stored(header))

    def _is_stored(self, header: BatchHeader) -> bool:
        is_plain = header.producer_id >= 0 and not header.attributes & TRANSACTIONAL
        return is_plain and self.log.producers.check(header) is not None

    def _refuse(self, view: memoryview, why: Exception, done: Done) -> None:
        error = why if isinstance(why, KafkaError) else KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.tp}: {why}")
        self.retry_gate.remember(view, error)
        refuse(self, error, done)

    @property
    def is_ended(self) -> bool:
        """Whether the log is closed, and the close committed: nothing will follow, whatever becomes of this replica."""
        closed_at = self.log.producers.closed_at
        return closed_at is not None and closed_at < self.replication.high_watermark

    def admit(self, view: memoryview, acks: int, guard: TransactionGuard | None = PLAIN) -> BatchHeader:
        """Everything that can refuse a batch before it costs anything; raises KafkaError."""
        replication = self.replication
        if self.closed:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.tp} was deleted")
        if not replication.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} is not led here")
        if replication.lease is not None:
            self._check_lease(acks)
        too_few = replication.in_sync_error() if acks == -1 else None
        if too_few is not None:
            raise KafkaError(too_few, self._too_few())
        header = check_produced(view, self.config.max_message_bytes)
        if header.attributes & TRANSACTIONAL and guard is PLAIN:
            nameless = "a transactional batch in a request without transactional id; nothing was stored"
            raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, nameless)
        if self.retry_gate:
            self.retry_gate.check(header)
        return header

    def _check_lease(self, acks: int) -> None:
        """NOT_LEADER_OR_FOLLOWER where this replica would answer by itself, and another one may lead by now."""
        if (acks == 1 or (acks == -1 and self.replication.is_alone)) and self.replication.lacks_lease():
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp}: no controller has been heard for too long")

    def append_checked(
        self,
        view: memoryview,
        header: BatchHeader,
        acks: int,
        now_ms: int,
        done: Done,
        guard: TransactionGuard | None = PLAIN,
    ) -> None:
        log = self.log
        is_exclusive = self.is_exclusive
        if is_exclusive:
            self.check_writer(header)
        if header.producer_id >= 0:
            if header.attributes & TRANSACTIONAL:
                log.check_whole()
                duplicate = log.producers.check_transactional(header, guard)
            else:
                duplicate = log.producers.check(header)
            if duplicate is not None:
                # Stored before: answer with its first home, but not before that is committed itself.
                if duplicate.base_offset < 0:
                    done = partial(answer_duplicate, header, done)
                answer = Appended(duplicate.base_offset, duplicate.timestamp, log.start_offset)
                self.park(duplicate.last_offset + 1, acks, done, answer)
                return
        if log.producers.stream is not None:
            self.check_open()
        append_time = NO_TIMESTAMP
        if self._stamps:
            header, append_time = stamp_batch(self.tp, self.config, self.last_txid, view, header, now_ms)
        base = log.end_offset
        end = self.append_own(view, header, now_ms)
        if is_exclusive:
            self.repeat_writer(now_ms)
        self.park(end, acks, done, Appended(base, append_time, log.start_offset))

    def check_open(self) -> None:
        """StreamClosedError where nothing is appended any more."""
        if self.log.producers.closed_at is not None:
            raise StreamClosedError(self.tp)

    def check_writer(self, header: BatchHeader) -> None:
        """Refuse a batch of anybody but the writer that an exclusive topic was opened for last."""
        self.log.check_whole()
        check_exclusive_writer(self.tp, self.log.producers, header)

    def repeat_writer(self, now_ms: int) -> None:
        """Say again for whom the log is open, where its last segment does not: older ones may go, with what they say.

        Where there is no room the next batch sees to it.
        """
        log = self.log
        stream = log.producers.stream
        writer = None if stream is None else stream.writer
        if writer is None or writer.offset >= max(log.active.base_offset, log.start_offset):
            return
        record = memoryview(writer_record(writer.producer_id, writer.name, now_ms))
        with suppress(KafkaError, OSError, StorageError):
            self.append_own(record, parse_header(record), now_ms)

    def _too_few(self) -> str:
        replication = self.replication
        return f"{self.tp}: {len(replication.isr)} in-sync replicas, min.insync.replicas={replication.fewest}"

    def park(self, end: int, acks: int, done: Done, answer: Appended | KafkaError) -> None:
        """acks=1 waits until this replica has it where the topic's durability wants it, acks=all for all in sync."""
        replication = self.replication
        if acks == 0 or end <= (replication.own_end if acks == 1 else replication.high_watermark):
            done(answer)
        else:
            self._parked.add(end, acks, done, answer)

    @property
    def waiting(self) -> int:
        """How many produced batches are in the log and not answered."""
        return len(self._parked)

    def append_local(self, batch: bytearray, now_ms: int, guard: TransactionGuard | None = PLAIN) -> int:
        """Append a batch of the broker's own (coordinator records, control batches); returns the new log end.

        All or nothing: an exception means that nothing was appended. Refused as acks=all is where too few are in sync.
        The batch is committed once the high watermark has reached the returned end. One of a producer's transaction
        has no sequences; an older epoch is refused, and with a guard also what that does not stand for.
        """
        self.admit_own()
        view = memoryview(batch)
        header = parse_header(view)
        if header.producer_id >= 0 and not header.is_control:
            self.log.check_whole()
            self.log.producers.check_epoch(header.producer_id, header.producer_epoch)
            if guard is not PLAIN:
                self.log.producers.check_guard(header.producer_id, header.producer_epoch, guard)
        return self.append_own(view, header, now_ms)

    def admit_own(self) -> None:
        """What refuses a batch of the broker's own, as `admit` those of producers."""
        if self.closed or not self.replication.is_leader:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} is not led here")
        self._check_lease(-1)
        too_few = self.replication.in_sync_error()
        if too_few is not None:
            raise KafkaError(too_few, self._too_few())

    def append_own(self, view: memoryview, header: BatchHeader, now_ms: int) -> int:
        """Append a batch that nothing refuses any more; returns the new log end.

        Control batches of a topic with transaction ids have the last one, too: the log's last batch tells it.
        """
        last_txid = self.last_txid
        if last_txid is not None and header.attributes & CONTROL:
            stamp_append_time(view, last_txid)
            header = parse_header(view)
        place(view, header, self.log.end_offset, self.replication.epoch)
        self.log.append(view, header, now_ms)
        self.bytes_in += header.size
        self.records_in += header.count
        if last_txid is not None and header.max_timestamp > last_txid:
            self.last_txid = header.max_timestamp
        self._on_touched(self)
        return self.log.end_offset

    # ---- batches that must be decoded (recompression, compacted topics): off the loop, others queue behind ----

    def start_rewrite(
        self, view: memoryview, now_ms: int, done: Done, go_on: Callable[[memoryview, BatchHeader], None]
    ) -> None:
        """Decode a batch off the loop, then `go_on` with what it became, or tell `done` what refuses it."""
        config, last_txid = self.config, self.last_txid
        copy = bytearray(view)

        def finish(result: bytearray | None, error: BaseException | None) -> None:
            if error is not None:
                corrupt = ErrorCode.CORRUPT_MESSAGE
                done(error if isinstance(error, KafkaError) else KafkaError(corrupt, f"{self.tp}: {error}"))
            elif result is not None and last_txid != self.last_txid:
                again = f"{self.tp}: the last transaction id has changed while the batch was decoded"
                self._refuse(view, KafkaError(ErrorCode.REQUEST_TIMED_OUT, again), done)
            elif result is not None:
                self._finish_rewrite(memoryview(result), done, go_on)

        self.rewrites.start(lambda: rewrite(copy, config, now_ms, last_txid or 0), finish)

    def _finish_rewrite(self, view: memoryview, done: Done, go_on: Callable[[memoryview, BatchHeader], None]) -> None:
        try:
            if self.closed or not self.replication.is_leader:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} is not led here any more")
            go_on(view, parse_header(view))
        except (KafkaError, OSError, StorageError) as error:
            self._refuse(view, error, done)

    def _rewritten(
        self,
        acks: int,
        now_ms: int,
        done: Done,
        guard: TransactionGuard | None,
        view: memoryview,
        header: BatchHeader,
    ) -> None:
        self._check_lease(acks)
        # The guard may have been cancelled meanwhile, and the transaction may have ended.
        self.append_checked(view, header, acks, now_ms, done, guard)

    # ---- durability ------------------------------------------------------------------------------------------

    def durable(self, end: int) -> None:
        """This replica has everything below `end` where its topic's durability wants it."""
        moved = self.replication.durable(end)
        if self._parked.local is not None:
            self._settle_here()
        if moved:
            self._settle()

    def _settle_here(self) -> None:
        """Answer those who wait for this replica alone, as far as it has got; without a lease they wait for others."""
        end = self.replication.own_end
        if self._parked.is_due(end) and self.replication.lacks_lease():
            self._parked.wait_for_replicas()
            self._refuse_too_few()
        else:
            self._parked.answer_local(end)

    def _settle(self) -> None:
        """The high watermark moved: answer the producers it covers, then wake the readers."""
        high = self.replication.high_watermark
        self.log.producers.committed(high)
        if self._parked.replicated is not None and not self._refuse_too_few():
            self._parked.answer_replicated(high)
        for callback in tuple(self._watchers):
            callback()

    @property
    def may_answer(self) -> bool:
        """Whether what this replica knows may be told, though no other one has confirmed it since it was asked."""
        return not self.replication.lacks_lease()

    def lease_renewed(self) -> None:
        """The node's lease holds again: what stood still for want of it goes on."""
        if self.replication.is_alone and self.replication.advance():
            self._settle()

    def _refuse_too_few(self) -> bool:
        """Tell all who wait for acks=all where fewer are in sync by now than are asked for: it may take for ever."""
        code = self.replication.in_sync_error_when_stored()
        if code is None:
            return False
        error = KafkaError(code, f"stored, but {self._too_few()}")
        for _, done, _ in self._parked.take_replicated():
            done(error)
        return True

    def fail(self, error: KafkaError) -> None:
        """Answer everything that waits with `error` (the disk failed, the topic went away) and wake readers."""
        for _, done, _ in self._parked.take_all():
            done(error)
        for callback, on_failed in list(self._watchers.items()):
            callback() if on_failed is None or self.closed else on_failed(error)

    def configure(self, config: TopicConfig) -> None:
        """Take over the topic's changed configuration, the log included (`Store.configure` says when)."""
        self.config = config
        self.is_exclusive = config.writer_exclusive
        self._decodes, self._stamps = may_need_rewriting(config), sets_timestamps(config)
        configure_log(self.log, config)
        self.last_txid = find_last_txid(self.config, self.log.segments)
        self.replication.fewest = config.fewest_in_sync(len(self.replication.replicas))
        self._refuse_too_few()
        if self.replication.advance():
            self._settle()
        # What was appended and not yet synced counts once it is written, which the next commit sees to.
        self.touched()

    # ---- other replicas --------------------------------------------------------------------------------------

    def fetched_by(self, node_id: int, broker_epoch: int, end: int, now: float) -> bool:
        """A replica's Fetch proves that it has everything below `end`; whether the high watermark moved.

        The Fetch is of this leader epoch, and the replica's history is this one's. Those who wait for the high
        watermark hear of it by `settle_fetched`: all ends that a Fetch names are taken first.
        """
        replication = self.replication
        moved = replication.fetched(node_id, broker_epoch, end, self.log.end_offset, now)
        if self.on_candidate is not None and node_id not in replication.isr:
            self.on_candidate(self)
        return moved

    def settle_fetched(self) -> None:
        """The high watermark moved with `fetched_by`: answer producers, wake readers."""
        self._settle()

    def follow_watermark(self, leader_high: int) -> None:
        """The leader's high watermark is here, too, as far as this replica has what is below it on stable storage."""
        if self.replication.told(leader_high):
            self._settle()

    def read_as_replica(self, offset: int, max_bytes: int, at_least_one: bool) -> Read:
        """Whole batches from the one that contains `offset`, up to the log end as far as that is written: what fails to
        be is the commit's to tell. Raises as `read` does.
        """
        log = self.log
        end = log.written_end
        self._check_readable(offset)
        parts: list[Part | Pending] = []
        size, next_offset, is_old = 0, offset, False
        if offset < end and (max_bytes > 0 or at_least_one):
            found = log.read(offset, max_bytes, end, at_least_one=at_least_one)
            parts, size, next_offset, is_old = found.parts, found.size, found.next_offset, found.is_old
        high = self.replication.high_watermark
        return Read(parts, size, high, self.last_stable_offset, log.start_offset, None, next_offset, is_old)

    def watch_end(self, callback: OnTouched) -> None:
        """Call back with this partition when log end, high watermark, log start or leadership change, until
        `unwatch_end`. It is called in the middle of an append: all it may do is to remember the partition.
        """
        if self._end_watchers is None:
            self._end_watchers = {}
            self._on_stored, self._on_touched = self._on_touched, self._touched_and_watched
            self._watchers[self._tell_end] = None
        self._end_watchers[callback] = None

    def unwatch_end(self, callback: OnTouched) -> None:
        """Undo `watch_end`."""
        if self._end_watchers is None:
            return
        self._end_watchers.pop(callback, None)
        if not self._end_watchers:
            self._end_watchers = None
            self._on_touched = self._on_stored
            self._watchers.pop(self._tell_end, None)

    def _touched_and_watched(self, partition: Partition) -> None:
        """Stands for `_on_touched` while an end is watched, so that an append asks for nothing where none is."""
        self._on_stored(partition)
        self._tell_end()

    def _tell_end(self) -> None:
        for callback in tuple(self._end_watchers or ()):
            callback(self)

    # ---- fetch -----------------------------------------------------------------------------------------------

    def bound(self, isolation: int) -> int:
        """First offset a consumer of this isolation may not read."""
        return self.last_stable_offset if isolation == READ_COMMITTED else self.replication.high_watermark

    def read(self, offset: int, max_bytes: int, isolation: int, *, at_least_one: bool = True) -> Read:
        """Whole batches from the one that contains `offset`, up to what this reader may see.

        Raises KafkaError OFFSET_OUT_OF_RANGE below the log start or above the log end; CorruptLogError for damage.
        """
        log = self.log
        self._check_readable(offset)
        stable = self.last_stable_offset
        high = self.replication.high_watermark
        bound = stable if isolation == READ_COMMITTED else high
        parts: list[Part | Pending] = []
        size, next_offset, is_old = 0, offset, False
        aborted: list[tuple[int, int]] | None = [] if isolation == READ_COMMITTED else None
        if offset < bound and (max_bytes > 0 or at_least_one):
            found = log.read(offset, max_bytes, bound, at_least_one=at_least_one)
            parts, size, next_offset, is_old = found.parts, found.size, found.next_offset, found.is_old
            if aborted is not None and size:
                aborted = log.aborted(offset, found.next_offset)
        return Read(parts, size, high, stable, log.start_offset, aborted, next_offset, is_old)

    def _check_readable(self, offset: int) -> None:
        log = self.log
        if self.closed:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{self.tp} was deleted")
        if offset < log.start_offset or offset > log.end_offset:
            outside = f"{self.tp}: offset {offset} is outside {log.start_offset}..{log.end_offset}"
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, outside)

    def watch(self, callback: Callable[[], None], on_failed: Callable[[KafkaError], None] | None = None) -> None:
        """Call back whenever more may be readable, until `unwatch`; or `on_failed` where a write may be lost."""
        self._watchers[callback] = on_failed

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.pop(callback, None)

    def truncate_to(self, offset: int) -> None:
        """Cut this replica's log, which must not lead, at the start of the batch that holds `offset`; journaled.

        What it has told of its end, and its high watermark, end there, too. Raises as `truncate_log` does; then
        nothing has changed.
        """
        check(not self.replication.is_leader, "a leader's log is what the others follow")
        truncate_log(self.log, offset)
        self.replication.cut(self.log.end_offset)
        self.touched()

    def begin_anew(self, directory: LogDirectory, offset: int, segment_base: int | None = None) -> None:
        """Drop all that this replica has, which must not lead: it begins with `offset`, empty.

        Whoever waits for what was there is sent to the leader. Raises as `LogDirectory.begin_anew` does; where that is
        KafkaError or NoRoomError, nothing has changed.
        """
        check(not self.replication.is_leader, "a leader's log is what the others follow")
        directory.begin_anew(self.log, offset, segment_base)
        self.replication.begin_anew(offset)
        self.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} is read anew from its leader"))
        self.touched()

    def touched(self) -> None:
        """Something was journaled for this partition outside of an append: have it committed."""
        self._on_touched(self)

    def close(self) -> None:
        """No more appends or reads; whoever waits is told that the partition is gone."""
        self.closed = True
        self.fail(KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.tp} was closed"))


def _harden_nothing(
    partition: Partition, end: int, is_journaled: bool, done: Callable[[KafkaError | None], None]
) -> None:
    raise AssertionError(f"{partition.tp} is in no store, which syncs it")
