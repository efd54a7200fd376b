"""Interesting states: situations in which such engines have lost data, and a probe for each that sees it happen.

A probe wraps a method of the server for the duration of a run, looks and changes nothing. Scripts report what only a
client can see with `Coverage.hit`. A state that a campaign never reached is listed: nothing was proved about it.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from duramen.errors import KafkaError
from duramen.machines.transaction import TransactionMachine
from duramen.machines.transaction.state import Transaction
from duramen.partition.metadata import snapshots
from duramen.partition.metadata.snapshots import Snapshots
from duramen.partition.replica.partition import Partition
from duramen.partition.store.store import Store
from duramen.server.coordinators.staging_relocation import Relocation
from duramen.storage.checkpoint.metadata_snapshot import PART_SUFFIX, WriteSnapshotJob
from duramen.storage.checkpoint.scrub_progress import NO_KEY
from duramen.storage.compaction.cleaner import Cleaner
from duramen.storage.compaction.compaction_pass import CompactionPass
from duramen.storage.directory.housekeeping import Housekeeping
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.directory.scrubber import Scrubber, ScrubJob
from duramen.storage.journal.journal import Journal
from duramen.storage.journal.ring import JournalGrowth, PartRing
from duramen.storage.log.log import Log
from duramen.storage.read.read_plan import Pending
from duramen.storage.read.verified_window import Recall
from duramen.storage.recovery.replay import PartitionRecovery
from duramen.storage.segment.replacement import CLEANED, SWAP
from duramen.storage.segment.seal import SealJob

Hit = Callable[[str], None]

TRANSACTION_STATES = (
    "transaction committed",
    "transaction aborted",
    "transaction aborted although its commit was asked for",
    "transaction aborted by its coordinator",
    "transaction left open",
    "empty transaction",
    "EndTxn repeated",
    "batch in no transaction refused",
    "client died in a transaction",
    "client died with its EndTxn on the way",
    "transactional id begun again",
    "zombie woke",
    "zombie fenced",
    "late batch refused",
    "late EndTxn refused",
    "position waited for a transaction",
    "topic deleted under transactions",
    "records deleted under transactions",
)
"""What transactional clients report."""
SHARED_GROUP_STATES = (
    "member of a shared group died",
    "member of a shared group left",
    "member of a shared group stood still",
    "member of a shared group was fenced",
    "static member of a shared group came back",
    "commit of a fenced member refused",
    "group settled, and settled again",
)
"""What the members of a group of both protocols report."""

STREAM_STATES = (
    "stream closed",
    "append to a closed stream refused",
    "batch of a named writer sent once more",
    "older epoch of a named writer refused",
    "append expected another end",
    "stream opened for one writer",
    "stream given up by its writer",
    "fenced writer refused",
    "records of a stream deleted",
    *(f"stream truncated before a position: {kind}" for kind in ("dlsn", "txid", "offset", "time", "end")),
    "record found by its position",
    "position below the start refused",
    "position of another history refused",
    "transaction id below the last refused",
    "page of a shared read taken",
    "reader fell behind the shared read",
    "follower found its past truncated",
    "follower found its past lost",
    "gateway begun anew",
    "writes left together",
)
"""What writers of streams report."""

SEEN_FROM_OUTSIDE = (
    *STREAM_STATES,
    *TRANSACTION_STATES,
    *SHARED_GROUP_STATES,
    "five batches in flight",
    "batch whose header denies its timestamps",
    "topic without timestamps expires",
    "compacted topic expires",
    "batches in flight behind one that was damaged on the way",
    "group rebalance across a restart",
    "commit of an old generation refused",
    "page-cache topic lost a tail",
    "a driver died between stage and commit",
    "a driver died without knowing whether it had committed",
    "a commit that was repeated",
    "a commit long after the staging",
    "reader found its past truncated",
    "reader below the log start",
    "topic made stable while it was written to",
    "topic created again under its name",
    "partition added to a topic in use",
    "setting changed under producers",
    "static member came back",
    "the disk lied and power failed",
    "a lie was noticed at the start",
    "damage stopped a start",
    "damage told to a client",
    "start failed with the disk",
    "power cut while starting",
    "power cut after a clean stop",
    "recovered twice from one crash",
    "recovery cut short and begun again",
    "partition offline",
    "coordinator failed to load",
)
"""States that scripts and the simulation itself report."""


class Coverage:
    """How often each state was reached in one simulation."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.moments: dict[str, Callable[[], None]] = {}
        """Called when a state is reached next."""

    def hit(self, state: str) -> None:
        """The state was reached."""
        self.counts[state] += 1
        waiting = self.moments.pop(state, None)
        if waiting is not None:
            waiting()


class Probe(NamedTuple):
    """Wraps `owner.method`; `wrapper(original, hit)` is the replacement. states: what it may report."""

    owner: Any
    method: str
    wrapper: Callable[[Any, Hit], Any]
    states: tuple[str, ...]


def _next_part(original: Any, hit: Hit) -> Any:
    def wrapped(ring: PartRing) -> Any:
        if ring._free and ring._free[0].lap:
            hit("journal lap finished")
        hit("journal went on in its next part")
        return original(ring)

    return wrapped


def _full(original: Any, hit: Hit) -> Any:
    def wrapped(ring: PartRing) -> Any:
        hit("journal full, batch refused")
        return original(ring)

    return wrapped


def _grown(original: Any, hit: Hit) -> Any:
    def wrapped(growth: JournalGrowth) -> Any:
        hit("journal grew")
        return original(growth)

    return wrapped


def _idle_mark(original: Any, hit: Hit) -> Any:
    def wrapped(journal: Journal) -> Any:
        group = original(journal)
        if group is not None:
            hit("mark of an idle journal")
        return group

    return wrapped


def _extent(original: Any, hit: Hit) -> Any:
    def wrapped(journal: Journal, *arguments: Any) -> Any:
        hit("batch bypassed the journal")
        return original(journal, *arguments)

    return wrapped


def _end_extents(original: Any, hit: Hit) -> Any:
    def wrapped(journal: Journal) -> Any:
        if journal._open is not None and journal._open.open:
            hit("checkpoint began beside an open extent")
        return original(journal)

    return wrapped


def _complete(original: Any, hit: Hit) -> Any:
    def wrapped(journal: Journal, group: Any) -> Any:
        if journal.failed is not None:
            hit("group commit ended after fencing")
        elif len(group.ends) > 1:
            hit("group commit of several partitions")
        return original(journal, group)

    return wrapped


def _fail(original: Any, hit: Hit) -> Any:
    def wrapped(journal: Journal, group: Any, error: BaseException) -> Any:
        if journal.failed is None:
            hit("directory fenced")
            if journal.in_flight:
                hit("directory fenced during a group commit")
        return original(journal, group, error)

    return wrapped


def _roll(original: Any, hit: Hit) -> Any:
    def wrapped(log: Log) -> Any:
        if getattr(log.journal, "in_flight", False):
            hit("roll during group commit")
        return original(log)

    return wrapped


def _take_checkpoint(original: Any, hit: Hit) -> Any:
    def wrapped(directory: LogDirectory, force: bool = False) -> Any:
        job = original(directory, force)
        if job is not None and directory.journal.in_flight:
            hit("checkpoint during group commit")
        return job

    return wrapped


def _complete_checkpoint(original: Any, hit: Hit) -> Any:
    def wrapped(directory: LogDirectory, job: Any) -> Any:
        if directory.journal.failed is not None:
            hit("checkpoint completed after fencing")
        elif job.files is not None:
            hit("checkpoint round finished")
        return original(directory, job)

    return wrapped


def _fail_checkpoint(original: Any, hit: Hit) -> Any:
    def wrapped(directory: LogDirectory, job: Any, error: BaseException) -> Any:
        hit("checkpoint during fsync failure")
        return original(directory, job, error)

    return wrapped


def _start(original: Any, hit: Hit) -> Any:
    def wrapped(directory: LogDirectory, now_ms: int, **how: Any) -> Any:
        result = original(directory, now_ms, **how)
        report = directory.recovery
        if not report.clean:
            hit("recovery with entries to replay" if report.entries_replayed else "recovery with nothing to replay")
            if report.bytes_cut:
                hit("recovery with torn tail")
            if report.bytes_written:
                hit("recovery wrote from the journal")
            if report.markers:
                hit("recovery appended lost markers")
            if report.partitions_deleted:
                hit("recovery finished a deletion")
        return result

    return wrapped


def _append_checked(original: Any, hit: Hit) -> Any:
    def wrapped(partition: Partition, view: Any, header: Any, *rest: Any) -> Any:
        before, waiting = partition.log.end_offset, partition.waiting
        try:
            result = original(partition, view, header, *rest)
        except KafkaError as error:
            if header.producer_id >= 0:
                hit(f"append refused: {error.code.name}")
            raise
        if partition.log.end_offset == before and header.producer_id >= 0:
            late = partition.waiting > waiting
            hit("duplicate of uncommitted batch" if late else "duplicate of committed batch")
        return result

    return wrapped


def _delete_partition(original: Any, hit: Hit) -> Any:
    def wrapped(store: Store, tp: Any) -> Any:
        home = store._homes.get(tp)
        if home is not None and home.journal.in_flight:
            hit("topic deleted during group commit")
        return original(store, tp)

    return wrapped


def _retain(original: Any, hit: Hit) -> Any:
    def wrapped(house: Housekeeping, log: Log, now_ms: int) -> Any:
        before, base = log.start_offset, log.active.base_offset
        result = original(house, log, now_ms)
        if log.active.base_offset != base:
            hit("active segment rolled to expire")
        if log.start_offset > before:
            hit("retention moved the log start")
        elif log.segments[0].next_offset <= log.start_offset and len(log.segments) > 1:
            hit("segments below a deletion went")
        return result

    return wrapped


def _pending(original: Any, hit: Hit) -> Any:
    def wrapped(pending: Pending) -> Any:
        hit("cold read against a seal" if pending.plan.seal is not None else "cold read by batch CRCs")
        return original(pending)

    return wrapped


def _recall(original: Any, hit: Hit) -> Any:
    def wrapped(recall: Recall) -> Any:
        hit("block that left memory held to its sum")
        return original(recall)

    return wrapped


def _seal(original: Any, hit: Hit) -> Any:
    def wrapped(job: SealJob) -> Any:
        hit("segment sealed")
        return original(job)

    return wrapped


def _passed(original: Any, hit: Hit) -> Any:
    def wrapped(cleaner: Cleaner, now_ms: int) -> Any:
        hit("compaction pass finished")
        return original(cleaner, now_ms)

    return wrapped


def _cleaning_end(original: Any, hit: Hit) -> Any:
    def wrapped(cleaning: CompactionPass) -> Any:
        if not cleaning.over and not cleaning.completed:
            hit("compaction pass given up")
        return original(cleaning)

    return wrapped


def _staged(original: Any, hit: Hit) -> Any:
    def wrapped(log: Log, old: Any, new: Any) -> Any:
        hit("compaction swap")
        if len(old) > 1:
            hit("compaction swap of several segments into one")
        return original(log, old, new)

    return wrapped


def _relocated(original: Any, hit: Hit) -> Any:
    def wrapped(relocation: Relocation, error: Any, *, moved: bool = False) -> Any:
        if moved:
            hit("staged piece moved to the end of its log")
        elif error is None:
            hit("staged piece settled while it was copied")
        return original(relocation, error, moved=moved)

    return wrapped


def _scrub_job_over(original: Any, hit: Hit) -> Any:
    def wrapped(scrubber: Scrubber, job: ScrubJob, logs: Any) -> Any:
        if job.found:
            hit("scrubber found damage")
        if job.ends_round:
            hit("scrub round finished")
        return original(scrubber, job, logs)

    return wrapped


def _scrubbed(original: Any, hit: Hit) -> Any:
    def wrapped(job: ScrubJob, piece: Any) -> Any:
        disk: Any = job.disk  # a CrashDisk, looked at from outside
        try:
            disk.names.find(piece.segment.path)
            hit("sealed segment scrubbed")
        except OSError:
            hit("segment removed before it was scrubbed")
        return original(job, piece)

    return wrapped


def _scrub_begun(original: Any, hit: Hit) -> Any:
    def wrapped(scrubber: Scrubber, logs: Any, now_ms: int) -> Any:
        known = scrubber._known
        if known is not None and known.key != NO_KEY:
            hit("scrub round goes on after a restart")
        return original(scrubber, logs, now_ms)

    return wrapped


def _doubted(original: Any, hit: Hit) -> Any:
    def wrapped(scrubber: Scrubber, logs: Any, budget: int) -> Any:
        pieces = original(scrubber, logs, budget)
        if pieces:
            hit("damage known before a restart is looked at again")
        return pieces

    return wrapped


def _snapshot_written(original: Any, hit: Hit) -> Any:
    def wrapped(job: WriteSnapshotJob) -> Any:
        hit("metadata snapshot begun")
        result = original(job)
        hit("metadata snapshot written")
        return result

    return wrapped


def _snapshot_loaded(original: Any, hit: Hit) -> Any:
    def wrapped(snapshots: Snapshots, machine: Any, **named: Any) -> Any:
        offset = original(snapshots, machine, **named)
        if offset:
            hit("metadata loaded from a snapshot")
        if snapshots._partition.log.start_offset:
            hit("metadata loaded from a snapshot, its log cut before")
        return offset

    return wrapped


def _snapshots_removed(original: Any, hit: Hit) -> Any:
    def wrapped(snapshots: Snapshots, gone: Any, error: Any) -> Any:
        hit("metadata log cut at a snapshot")
        return original(snapshots, gone, error)

    return wrapped


def _snapshots_found(original: Any, hit: Hit) -> Any:
    def wrapped(disk: Any, directory: str) -> Any:
        if any(name.endswith(PART_SUFFIX) for name in disk.names.directory(directory).names):
            hit("metadata snapshot cut, dropped by the start")
        return original(disk, directory)

    return wrapped


def _recovery_run(original: Any, hit: Hit) -> Any:
    def wrapped(recovery: PartitionRecovery) -> Any:
        disk: Any = recovery._disk  # a CrashDisk, looked at from outside: no call is counted
        names = disk.names.directory(recovery._path).names
        if any(name.endswith(SWAP) for name in names):
            hit("compaction swap cut, finished by recovery")
        if any(name.endswith(CLEANED) for name in names):
            hit("compaction copy cut, dropped by recovery")
        return original(recovery)

    return wrapped


def _decided(original: Any, hit: Hit) -> Any:
    def wrapped(machine: TransactionMachine, *arguments: Any) -> Any:
        hit("transaction decided")
        return original(machine, *arguments)

    return wrapped


def _marked(original: Any, hit: Hit) -> Any:
    def wrapped(transaction: Transaction, *arguments: Any) -> Any:
        hit("transaction completed")
        return original(transaction, *arguments)

    return wrapped


PROBES = (
    Probe(TransactionMachine, "_prepare", _decided, ("transaction decided",)),
    Probe(Transaction, "completed", _marked, ("transaction completed",)),
    Probe(Cleaner, "passed", _passed, ("compaction pass finished",)),
    Probe(CompactionPass, "end", _cleaning_end, ("compaction pass given up",)),
    Probe(
        Log,
        "replace_segments",
        _staged,
        ("compaction swap", "compaction swap of several segments into one"),
    ),
    Probe(
        PartitionRecovery,
        "run",
        _recovery_run,
        ("compaction swap cut, finished by recovery", "compaction copy cut, dropped by recovery"),
    ),
    Probe(
        Relocation,
        "ended",
        _relocated,
        ("staged piece moved to the end of its log", "staged piece settled while it was copied"),
    ),
    Probe(Scrubber, "complete", _scrub_job_over, ("scrubber found damage", "scrub round finished")),
    Probe(ScrubJob, "_check", _scrubbed, ("sealed segment scrubbed", "segment removed before it was scrubbed")),
    Probe(Scrubber, "_begin", _scrub_begun, ("scrub round goes on after a restart",)),
    Probe(Scrubber, "_choose_doubted", _doubted, ("damage known before a restart is looked at again",)),
    Probe(WriteSnapshotJob, "run", _snapshot_written, ("metadata snapshot begun", "metadata snapshot written")),
    Probe(
        Snapshots,
        "load",
        _snapshot_loaded,
        ("metadata loaded from a snapshot", "metadata loaded from a snapshot, its log cut before"),
    ),
    Probe(Snapshots, "_remove", _snapshots_removed, ("metadata log cut at a snapshot",)),
    Probe(snapshots, "find_snapshots", _snapshots_found, ("metadata snapshot cut, dropped by the start",)),
    Probe(PartRing, "_next_part", _next_part, ("journal lap finished", "journal went on in its next part")),
    Probe(PartRing, "_full", _full, ("journal full, batch refused",)),
    Probe(JournalGrowth, "run", _grown, ("journal grew",)),
    Probe(Journal, "take_idle_mark", _idle_mark, ("mark of an idle journal",)),
    Probe(Journal, "_open_extent", _extent, ("batch bypassed the journal",)),
    Probe(Journal, "end_extents", _end_extents, ("checkpoint began beside an open extent",)),
    Probe(Journal, "complete", _complete, ("group commit of several partitions", "group commit ended after fencing")),
    Probe(Journal, "fail", _fail, ("directory fenced", "directory fenced during a group commit")),
    Probe(Log, "roll", _roll, ("roll during group commit",)),
    Probe(LogDirectory, "take_checkpoint", _take_checkpoint, ("checkpoint during group commit",)),
    Probe(
        LogDirectory,
        "complete_checkpoint",
        _complete_checkpoint,
        ("checkpoint round finished", "checkpoint completed after fencing"),
    ),
    Probe(LogDirectory, "fail_checkpoint", _fail_checkpoint, ("checkpoint during fsync failure",)),
    Probe(
        LogDirectory,
        "_start",
        _start,
        (
            "recovery with entries to replay",
            "recovery with nothing to replay",
            "recovery with torn tail",
            "recovery wrote from the journal",
            "recovery finished a deletion",
        ),
    ),
    Probe(
        Partition,
        "append_checked",
        _append_checked,
        (
            "duplicate of uncommitted batch",
            "duplicate of committed batch",
            "append refused: OUT_OF_ORDER_SEQUENCE_NUMBER",
        ),
    ),
    Probe(Store, "delete_partition", _delete_partition, ("topic deleted during group commit",)),
    Probe(
        Housekeeping,
        "_retain",
        _retain,
        ("active segment rolled to expire", "retention moved the log start", "segments below a deletion went"),
    ),
    Probe(Pending, "run", _pending, ("cold read against a seal", "cold read by batch CRCs")),
    Probe(Recall, "run", _recall, ("block that left memory held to its sum",)),
    Probe(SealJob, "run", _seal, ("segment sealed",)),
)

STATES: tuple[str, ...] = (*SEEN_FROM_OUTSIDE, *(state for probe in PROBES for state in probe.states))
"""Every state by name."""


@contextlib.contextmanager
def probed(hit: Hit) -> Iterator[None]:
    """Report the states of whatever server runs in this block."""
    originals = [(probe.owner, probe.method, getattr(probe.owner, probe.method)) for probe in PROBES]
    for probe, (owner, method, original) in zip(PROBES, originals, strict=True):
        setattr(owner, method, probe.wrapper(original, hit))
    try:
        yield
    finally:
        for owner, method, original in reversed(originals):
            setattr(owner, method, original)
