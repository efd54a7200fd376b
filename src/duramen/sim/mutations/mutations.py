"""Guards that a simulation can remove, to show that its invariants would notice: one at least for each invariant.

Removing one replaces methods for the duration of a `with` block, in this process only: the production code has no
switch for it. A guard names the invariant that must break without it, and what the world should be like to see it soon.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import SystemRandom
from typing import Any

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group.offsets import OffsetTable
from duramen.machines.metadata.image import BrokerImage, MetadataImage, TopicImage
from duramen.machines.sink.state import Sink
from duramen.model import METADATA_TOPIC_ID, TopicId
from duramen.partition.host.host import Host
from duramen.partition.metadata.publisher import MetadataPublisher
from duramen.partition.replica import batch_rules, retry_gate
from duramen.partition.replica.partition import Partition, Read
from duramen.server.handlers.commit_staged import CommitCall
from duramen.server.handlers.fetch import FetchCall
from duramen.sim.world.network import SimNetwork
from duramen.sim.world.plan import Plan
from duramen.storage.compaction.key_map import OffsetMap
from duramen.storage.compaction.segment_rewrite import CleaningRules
from duramen.storage.directory import housekeeping
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.journal.format import EntryKind
from duramen.storage.journal.journal import Journal
from duramen.storage.journal.reader import JournalEntry
from duramen.storage.log import open_segment, retention
from duramen.storage.log.log import Log
from duramen.storage.log.retention import RemoveFilesJob
from duramen.storage.read import read_plan
from duramen.storage.recovery import replay
from duramen.storage.recovery.open_partition import PartitionOpening
from duramen.storage.recovery.plan import RecoveryPlan
from duramen.storage.recovery.replay import PartitionRecovery
from duramen.storage.segment.producer_state import Duplicate, ProducerStates
from duramen.storage.segment.segment import Segment
from duramen.wire import batch as wire_batch
from duramen.wire.batch import BatchHeader
from duramen.wire.messages.commit_staged import CommitStagedResponse
from duramen.wire.seal import Seal

CRASHES = ("power cut in a call", "power cut", "kill")
CHANGES = ("recreator", "hardener", "grower", "configurer", "trimmer")
FEW = Plan(records=5, readers=0, members=0, partitions=1, page_cache=False, churn=False)
"""A world in which little happens besides what a guard is about."""


class Guard(ABC):
    """Something that keeps a promise; its docstring says what happens without it.

    owner, method: what is replaced. caught_by: the invariant that breaks. also: those that some worlds show before it.
    plan: of the worlds in which to look for it. twice: whether it takes two runs of a seed.
    """

    owner: Any
    method: str
    caught_by: str
    also: tuple[str, ...] = ()
    plan = Plan()
    twice = False

    @abstractmethod
    def replacement(self, original: Any) -> Any:
        """The method without the guard."""

    def parts(self) -> list[tuple[Any, str, Any]]:
        """(owner, name, replacement) of everything that is replaced."""
        return [(self.owner, self.method, self.replacement(getattr(self.owner, self.method)))]


class Acknowledgement(Guard):
    """A producer is answered when its batch is queued: what is acknowledged may exist in memory only."""

    owner = Partition
    method = "park"
    caught_by = "AcknowledgedNeverLost"
    plan = Plan(faults=CRASHES, readers=0, members=0)

    def replacement(self, original: Any) -> Any:
        """Answer at once."""

        def park(partition: Partition, end: int, acks: int, done: Any, answer: Any) -> None:
            done(answer)

        return park


class JournalReplay(Guard):
    """Recovery does not replay the journal's batches (the metadata log's aside): segments keep only what was synced."""

    owner = RecoveryPlan
    method = "fold"
    caught_by = "AcknowledgedNeverLost"
    # What comes next gets the offset of what was lost; a transactional id is lost.
    also = ("OffsetStability", "NoUnexpectedError")
    plan = Plan(faults=CRASHES, readers=0, members=0)

    def replacement(self, original: Any) -> Any:
        """Fold only the metadata log's batches into the plan."""

        def fold(plan: RecoveryPlan, entries: Sequence[JournalEntry]) -> None:
            own = plan.key[0] == METADATA_TOPIC_ID
            original(plan, [entry for entry in entries if own or entry.kind != EntryKind.BATCH])

        return fold

    def parts(self) -> list[tuple[Any, str, Any]]:
        """Nor is a log left offline that ends before its rolls say it does, or has a gap: that would notice."""
        unnoticed = (PartitionOpening, "_is_whole"), (open_segment, "gap_behind")
        return [*super().parts(), *((owner, name, lambda *arguments: None) for owner, name in unnoticed)]


class EpochBump(Guard):
    """A start does not raise the leader epochs: offsets lost in a power cut are given again in the same epoch."""

    owner = MetadataImage
    method = "start_broker"
    caught_by = "NoOffsetReusedInAnEpoch"
    plan = Plan(faults=("power cut",))

    def replacement(self, original: Any) -> Any:
        """Register the broker and leave its partitions alone."""

        def start_broker(image: MetadataImage, broker: BrokerImage) -> None:
            image.brokers[broker.id] = broker

        return start_broker


class ReadBound(Guard):
    """Consumers may read to the log end instead of the high watermark: they see what a power cut can take back."""

    owner = Partition
    method = "read"
    caught_by = "NothingReadVanishes"
    plan = Plan(faults=("power cut",), readers=3, members=0, page_cache=False, churn=False)

    def replacement(self, original: Any) -> Any:
        """Read as if everything in the files were committed."""

        def read(
            partition: Partition, offset: int, max_bytes: int, isolation: int, *, at_least_one: bool = True
        ) -> Read:
            replication = partition.replication
            kept = replication.high_watermark
            replication.high_watermark = max(kept, partition.log.end_offset)
            try:
                found: Read = original(partition, offset, max_bytes, isolation, at_least_one=at_least_one)
            finally:
                replication.high_watermark = kept
            return found

        return read


class FirstHome(Guard):
    """A batch that was sent again is answered with another offset than its first home."""

    owner = ProducerStates
    method = "check"
    caught_by = "OffsetStability"
    plan = Plan(faults=("lost connections",), records=120)

    def replacement(self, original: Any) -> Any:
        """Answer with the offset before."""

        def check(states: ProducerStates, header: BatchHeader) -> Duplicate | None:
            duplicate: Duplicate | None = original(states, header)
            return duplicate and duplicate._replace(base_offset=max(0, duplicate.base_offset - 1))

        return check


class Duplicates(Guard):
    """A batch that was sent again is stored again."""

    owner = ProducerStates
    method = "check"
    caught_by = "ExactlyOnce"
    plan = Plan(faults=("lost connections", "kill"), page_cache=False)

    def replacement(self, original: Any) -> Any:
        """Refuse what the guard refuses, and take what it would recognise."""

        def check(states: ProducerStates, header: BatchHeader) -> Duplicate | None:
            original(states, header)
            return None

        return check


class Sequences(Guard):
    """A batch may be appended although the one before it, of the same producer, was not."""

    owner = ProducerStates
    method = "check"
    caught_by = "Order"
    plan = Plan(faults=("short reads",), records=150, readers=0, members=0, churn=False)

    def replacement(self, original: Any) -> Any:
        """Take a gap for the beginning."""

        def check(states: ProducerStates, header: BatchHeader) -> Duplicate | None:
            try:
                found: Duplicate | None = original(states, header)
            except KafkaError as error:
                if error.code != ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
                    raise
                return None
            return found

        return check


class Refusals(Guard):
    """What is behind a batch that found no room is answered OUT_OF_ORDER_SEQUENCE_NUMBER, or taken as the first."""

    owner = retry_gate.RetryGate
    method = "remember"
    caught_by = "ExactlyOnce"
    plan = Plan(faults=("full disk",), records=150, readers=0, members=0)

    def replacement(self, original: Any) -> Any:
        """Remember nothing."""
        return lambda *arguments: None


class LogStart(Guard):
    """The log start that a DeleteRecords moved is not journaled: what was deleted comes back after a crash."""

    owner = Log
    method = "advance_start"
    caught_by = "LogStartNeverGoesBack"
    plan = Plan(faults=CRASHES, features=("trimmer",))

    def replacement(self, original: Any) -> Any:
        """Move it in memory only."""

        def advance_start(log: Log, offset: int) -> None:
            log.start_offset = max(log.start_offset, offset)

        return advance_start


class ExactStart(Guard):
    """A DeleteRecords takes the whole segment with it in which it ends."""

    owner = Log
    method = "advance_start"
    caught_by = "TruncationExact"
    plan = Plan(features=("trimmer",))

    def replacement(self, original: Any) -> Any:
        """Round up to the end of a segment."""

        def advance_start(log: Log, offset: int) -> None:
            ends = [segment.next_offset for segment in log.segments if segment.next_offset >= offset]
            original(log, min(min(ends, default=offset), log.durable_end))

        return advance_start


class RetentionAge(Guard):
    """Retention goes by a clock that is five seconds ahead, and by no size at all."""

    owner = housekeeping
    method = "removable_before"
    caught_by = "RetentionNeverEarly"
    plan = Plan(features=("expiring",), partitions=1, members=0, page_cache=False, churn=False)

    def replacement(self, original: Any) -> Any:
        """Ask with a later time, and take every closed segment of a log with a limit in bytes."""

        def removable_before(log: Log, now_ms: int, high_watermark: int, *, expires: bool) -> int:
            if log.tp.topic == "expiring" and log.config.retention_bytes > 0:
                return min(log.active.base_offset, high_watermark)
            found: int = original(log, now_ms + 5000, high_watermark, expires=expires)
            return found

        return removable_before


class Routing(Guard):
    """A Fetch may be answered from another partition of the topic."""

    owner = FetchCall
    method = "_partition"
    caught_by = "OnlyWhatWasProduced"
    also = ("NothingReadVanishes",)  # the two have histories of their own
    plan = Plan(churn=False)

    def replacement(self, original: Any) -> Any:
        """Take partition 0 where it has no less than the one asked for."""

        def partition(call: FetchCall, target: Any) -> Partition | None:
            found: Partition | None = original(call, target)
            first = call.request.services.partitions.find(target.key.name, 0)
            if found is None or first is None or first.high_watermark < found.high_watermark:
                return found
            return first

        return partition


class HeaderTime(Guard):
    """A header that denies the timestamps of its records is believed."""

    owner = batch_rules
    method = "stamp_max_timestamp"
    caught_by = "FoundByTime"
    plan = Plan(calm=True, churn=False, features=("odd times",), readers=0, members=0)

    def replacement(self, original: Any) -> Any:
        """Leave it as it came."""
        return lambda batch, youngest: None


class GroupOffsets(Guard):
    """A group's first commit of a partition is kept, later ones are acknowledged only."""

    owner = OffsetTable
    method = "apply"
    caught_by = "GroupOffsetsMonotone"
    plan = Plan(faults=("clean stop",))

    def replacement(self, original: Any) -> Any:
        """Apply what says something new of a position."""

        def apply(table: OffsetTable, record: Any, *where: Any) -> None:
            if record.committed is None or (record.topic, record.partition) not in table.of(record.group_id):
                original(table, record, *where)

        return apply


class ReadChecks(Guard):
    """Bytes that were not in memory are served unchecked."""

    owner = read_plan
    method = "check_crc"
    caught_by = "Immutability"
    plan = Plan(faults=("flipped bit",), partitions=1, members=0, page_cache=False, churn=False)

    def replacement(self, original: Any) -> Any:
        """Find every batch sound."""
        return lambda view, header: True

    def parts(self) -> list[tuple[Any, str, Any]]:
        """The seals' checks, too."""
        return [*super().parts(), (Seal, "check", lambda *arguments: None)]


class DeletionRecord(Guard):
    """A deleted topic is forgotten by nobody: whoever creates it again finds its records."""

    owner = MetadataImage
    method = "remove_topic"
    caught_by = "DeletedStaysDeleted"
    also = ("AcknowledgedNeverLost", "NothingLeaks")  # what is stored under the name again goes with the old files
    plan = Plan(churn=False, features=("recreator",))

    def replacement(self, original: Any) -> Any:
        """Keep the topic."""

        def remove_topic(image: MetadataImage, topic: TopicImage) -> None:
            return None

        return remove_topic

    def parts(self) -> list[tuple[Any, str, Any]]:
        """Its partitions, too."""

        def remove(publisher: MetadataPublisher, name: str, topic_id: TopicId) -> None:
            return None

        return [*super().parts(), (MetadataPublisher, "_remove", remove)]


class CleanStop(Guard):
    """A clean stop writes down a log start that nobody asked for."""

    owner = LogDirectory
    method = "_stop_cleanly"
    caught_by = "CleanRestartChangesNothing"
    plan = Plan(faults=("lost connections",))

    def replacement(self, original: Any) -> Any:
        """Drop the first record of every page-cache topic."""

        def stop_cleanly(directory: LogDirectory) -> None:
            for log in directory.logs.values():
                if not log.stable and log.start_offset < log.end_offset:
                    log.start_offset += 1
            original(directory)

        return stop_cleanly


class RecoverySync(Guard):
    """Recovery serves what it wrote before it is on stable storage, and drops the journal."""

    owner = PartitionRecovery
    method = "run"
    caught_by = "ReplayIdempotent"
    plan = Plan(faults=CRASHES, replayed=1.0)

    def replacement(self, original: Any) -> Any:
        """Let the disk do nothing when it is asked to sync."""

        def run(recovery: PartitionRecovery) -> Any:
            disk: Any = recovery._disk
            disk.sync_inode = lambda inode: None
            try:
                return original(recovery)
            finally:
                del disk.sync_inode

        return run


class Unlinking(Guard):
    """Files of deleted topics and expired segments are never removed."""

    owner = RemoveFilesJob
    method = "run"
    caught_by = "NothingLeaks"
    plan = replace(FEW, features=("recreator", "expiring"))

    def replacement(self, original: Any) -> Any:
        """Remove nothing."""
        return lambda job: None


class Timers(Guard):
    """The coordinators' timers never go off: a rebalance never ends."""

    owner = Host
    method = "_timer_fired"
    caught_by = "Progress"
    plan = replace(FEW, members=1, calm=True)

    def replacement(self, original: Any) -> Any:
        """Do nothing."""
        return lambda host, key: None


class SeededDelays(Guard):
    """Something in the world is not drawn from the seed."""

    owner = SimNetwork
    method = "delay"
    caught_by = "SameSeedSameHistory"
    plan = replace(FEW, calm=True)
    twice = True

    def replacement(self, original: Any) -> Any:
        """Delays from the machine's own randomness."""
        random = SystemRandom()
        return lambda network: random.uniform(*network.conditions.delay_s)


class ErrorCodes(Guard):
    """A read that the disk refused is answered with a code that no client retries."""

    owner = FetchCall
    method = "_damaged"
    caught_by = "NoUnexpectedError"
    plan = Plan(faults=("failing calls",), members=0, churn=False)

    def replacement(self, original: Any) -> Any:
        """Say that the server does not know what happened."""

        def damaged(call: FetchCall, target: Any, data: Any, error: BaseException) -> None:
            original(call, target, data, error)
            data.error_code = int(ErrorCode.UNKNOWN_SERVER_ERROR)

        return damaged


class LateGroups(Guard):
    """A group commit that ends after its directory was fenced is treated like any other."""

    owner = Journal
    method = "complete"
    caught_by = "NoUnhandledError"
    plan = Plan(faults=("failing sync",), features=CHANGES, readers=0, members=0, churn=False)

    def replacement(self, original: Any) -> Any:
        """Forget for the moment that the directory was fenced."""

        def complete(journal: Journal, group: Any) -> Any:
            failed, journal.failed = journal.failed, None
            try:
                return original(journal, group)
            finally:
                journal.failed = failed

        return complete


class SinkStamp(Guard):
    """A committed batch is moved without the sink's producer id: after a crash nobody knows what is there already."""

    owner = wire_batch
    method = "stamp_producer"
    caught_by = "StagedOnce"
    plan = replace(FEW, faults=CRASHES, features=("sink",))

    def replacement(self, original: Any) -> Any:
        """Leave the batch as it was staged."""

        def stamp_producer(view: Any, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
            pass

        return stamp_producer


class SinkCommitPoint(Guard):
    """A commit is answered when it is decided: its record may exist in memory only."""

    owner = CommitCall
    method = "start"
    caught_by = "StagedOnce"
    plan = Plan(faults=CRASHES, features=("sink",), readers=0, members=0)

    def replacement(self, original: Any) -> Any:
        """Answer at once what will not be refused."""

        def start(commit: CommitCall) -> None:
            body, sinks = commit.request.body, commit.request.services.sinks
            known = [each.machine.sinks.get(body.sink_id) for each in sinks.running()]
            owned = [sink for sink in known if sink is not None and sink.epoch == body.epoch]
            fine = any(all(handle in sink.staged for handle in body.handles) for sink in owned)
            original(commit)
            if fine:
                commit.request.reply(CommitStagedResponse.new(state=2))

        return start


class StagingKept(Guard):
    """The staging log forgets what was staged and is not committed yet."""

    owner = Sink
    method = "oldest_needed"
    caught_by = "Progress"
    plan = replace(FEW, features=("sink",), calm=True)

    def replacement(self, original: Any) -> Any:
        """Need what is committed alone."""

        def oldest_needed(sink: Sink) -> int | None:
            needed = (commit.needed_from for commit in sink.unfinished())
            return min((offset for offset in needed if offset is not None), default=None)

        return oldest_needed


class LastOfKey(Guard):
    """Compaction takes a key's last record for one that a younger one replaces."""

    owner = OffsetMap
    method = "put"
    caught_by = "CompactionKeepsTheLast"
    plan = Plan(features=("compacted", "small journal"))

    def replacement(self, original: Any) -> Any:
        """Remember the offset behind the last one."""
        return lambda offsets, key, offset: original(offsets, key, offset + 1)


class TombstoneAge(Guard):
    """A tombstone goes with the pass after the one that met it, whatever delete.retention.ms says."""

    owner = CleaningRules
    method = "horizon"
    caught_by = "CompactionKeepsTheLast"
    plan = Plan(
        features=("compacted", "small journal"), partitions=1, readers=0, members=0, page_cache=False, churn=False
    )

    def replacement(self, original: Any) -> Any:
        """A horizon that is over."""
        return property(lambda rules: 0)


class UnstampedAge(Guard):
    """Where a topic is compacted, too, segments without timestamps expire with an old one behind them."""

    owner = retention
    method = "_removable"
    caught_by = "RetentionNeverEarly"
    plan = Plan(features=("expiring",), partitions=1, members=0, page_cache=False, churn=False)

    def replacement(self, original: Any) -> Any:
        """Also look at those with timestamps alone."""

        def removable(log: Log, segments: Sequence[Segment], *arguments: Any) -> int:
            passed = "compact" in log.config.cleanup_policy
            stamped = [segment for segment in segments if not passed or segment.max_timestamp >= 0]
            found: int = max(original(log, each, *arguments) for each in (segments, stamped))
            return found

        return removable


class KilledTail(Guard):
    """A start behind a kill leaves out the last unsynced batch in each segment of a page-cache log."""

    owner = replay
    method = "scan"
    caught_by = "AcknowledgedNeverLost"
    also = ("NothingReadVanishes", "OffsetStability")  # whoever looks first
    plan = Plan(faults=("kill", "kill in a call"), partitions=1, members=0, churn=False)

    def replacement(self, original: Any) -> Any:
        """End a batch earlier where unsynced batches are accepted."""

        def scan(*arguments: Any, **options: Any) -> Iterator[Any]:
            found = list(original(*arguments, **options))
            yield from found[:-1] if "expect_offset" in options else found

        return scan


GUARDS: dict[str, Guard] = {
    "acknowledgement": Acknowledgement(),
    "journal-replay": JournalReplay(),
    "epoch-bump": EpochBump(),
    "read-bound": ReadBound(),
    "first-home": FirstHome(),
    "duplicates": Duplicates(),
    "sequences": Sequences(),
    "refusals": Refusals(),
    "log-start": LogStart(),
    "exact-start": ExactStart(),
    "retention-age": RetentionAge(),
    "routing": Routing(),
    "last-of-key": LastOfKey(),
    "tombstone-age": TombstoneAge(),
    "unstamped-age": UnstampedAge(),
    "killed-tail": KilledTail(),
    "header-time": HeaderTime(),
    "group-offsets": GroupOffsets(),
    "read-checks": ReadChecks(),
    "deletion": DeletionRecord(),
    "clean-stop": CleanStop(),
    "recovery-sync": RecoverySync(),
    "unlinking": Unlinking(),
    "timers": Timers(),
    "seeded-delays": SeededDelays(),
    "error-codes": ErrorCodes(),
    "late-groups": LateGroups(),
    "sink-stamp": SinkStamp(),
    "sink-commit-point": SinkCommitPoint(),
    "staging-kept": StagingKept(),
}
"""Every guard by the name that BREAK= takes."""


@contextlib.contextmanager
def removed(name: str) -> Iterator[None]:
    """Run without the guard; KeyError for an unknown name."""
    with taken_out(GUARDS[name]):
        yield


@contextlib.contextmanager
def taken_out(guard: Guard) -> Iterator[None]:
    """Run without this one."""
    parts = guard.parts()
    originals = [vars(owner).get(method, getattr(owner, method)) for owner, method, _ in parts]  # static ones, too
    for owner, method, replacement in parts:
        setattr(owner, method, replacement)
    try:
        yield
    finally:
        for (owner, method, _), original in zip(parts, originals, strict=True):
            setattr(owner, method, original)
