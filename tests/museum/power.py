"""Power cuts and failed syncs: what was acknowledged has to be on the disk, and the disk has to be believed rightly."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from tests.museum.exhibit import Replaced, during, exhibit, promise
from tests.worlds.broker_world import InProcess
from tests.worlds.partition_world import Bench, plain
from tests.worlds.storage_workload import append, checkpoint, commit, one_log, read_all, start

from duramen.errors import DuramenError
from duramen.model import TopicPartition
from duramen.partition.replica.parked_appends import Appended
from duramen.partition.store.store import Store
from duramen.server.handlers import delete_records
from duramen.sim.mutations.mutations import GUARDS, Guard
from duramen.sim.world.disk import CrashDisk, CrashFile, DiskCall
from duramen.storage.directory.log_directory import LogDirectory
from duramen.storage.journal.journal import JournalGroup
from duramen.storage.journal.parts import PartMaker
from duramen.storage.log.log import Log
from duramen.storage.log.sync import SyncJob
from duramen.wire.batch import batches, records
from duramen.wire.messages import API

EARLIEST = -2
"""Timestamp by which ListOffsets tells the log start."""


def guard(name: str) -> Replaced:
    """One of the simulator's guards."""
    known: Guard = GUARDS[name]
    return Replaced(known.owner, known.method, known.replacement)


def cut(disk: CrashDisk) -> None:
    """The power fails and comes back."""
    disk.power_cut()
    disk.power_on()


def acknowledge(bench: Bench, *values: bytes) -> dict[int, bytes]:
    """Produce each value in a batch of its own; offset -> value of those that were acknowledged."""
    found = {}
    for value in values:
        answer = bench.produce(plain(value))
        if isinstance(answer, Appended):
            found[answer.base_offset] = value
    return found


def stored(bench: Bench) -> dict[int, bytes]:
    return dict(enumerate(bench.values(bench.partition.log_start_offset), bench.partition.log_start_offset))  # type: ignore[arg-type]


def reopened(disk: CrashDisk, **configs: str) -> Bench:
    """A new process on the disk; a refusal to start breaks the promise."""
    try:
        return Bench(disk, epoch=2, **configs)
    except (DuramenError, OSError) as error:
        promise(False, f"the node starts again ({error})")
        raise


def _no_sync(_: Callable[..., Any]) -> Callable[..., Any]:
    """A sync that returns at once and does nothing."""
    return lambda file: None


VALUES = tuple(b"%d" % number for number in range(30))


@exhibit(
    "nats-lazy-fsync",
    source="https://github.com/nats-io/nats-server/issues/7564",
    guard="the journal's group commit returns before anybody is answered",
    without=Replaced(CrashFile, "sync", _no_sync),
)
def nats_lazy_fsync() -> None:
    """JetStream answered publishers at once and synced every two minutes: a power cut took the rest."""
    bench = Bench()
    acknowledged = acknowledge(bench, *VALUES)
    cut(bench.disk)
    there = stored(reopened(bench.disk))
    promise(acknowledged.items() <= there.items(), "every acknowledged record survives the power cut")


def _retry(original: Callable[[JournalGroup], None]) -> Callable[[JournalGroup], None]:
    def run(group: JournalGroup) -> None:
        try:
            original(group)
        except OSError:
            original_sync(group)

    def original_sync(group: JournalGroup) -> None:
        group.part.file.sync()

    return run


@exhibit(
    "fsyncgate",
    source="https://lwn.net/Articles/752063/",
    guard="a failed sync fences the directory; it is never tried again",
    without=Replaced(JournalGroup, "run", _retry),
)
def fsyncgate() -> None:
    """PostgreSQL repeated a failed fsync; the kernel had dropped the pages and reported success the second time."""
    bench = Bench()
    acknowledged = acknowledge(bench, b"before")
    failures = [OSError(errno.EIO, "Input/output error")]

    def fail_once(call: DiskCall) -> OSError | None:
        return failures.pop() if failures and call.operation == "sync" and "journal" in call.path else None

    bench.disk.fault = fail_once
    acknowledged |= acknowledge(bench, b"while it fails", b"after")
    promise(not failures, "the sync failed")
    cut(bench.disk)
    bench.disk.fault = None
    there = stored(reopened(bench.disk))
    promise(acknowledged.items() <= there.items(), "what was acknowledged after the failed sync is on the disk")


@exhibit(
    "records-exposed-before-the-high-watermark",
    source="https://issues.apache.org/jira/browse/KAFKA-9196",
    guard="a read ends at the high watermark, which never passes what is synced",
    without=guard("read-bound"),
)
def exposed_early() -> None:
    """After a segment roll Kafka showed consumers records that were not yet replicated and could still be lost."""
    bench = Bench()
    acknowledge(bench, b"first")
    bench.lanes.held.add("journal")
    bench.send(plain(b"second"))
    bench.run()
    seen = bench.values(0)
    cut(bench.disk)
    there = stored(reopened(bench.disk))
    promise(len(seen) <= len(there), "nothing that a reader was given is taken back")


@exhibit(
    "offsets-used-twice-in-one-epoch",
    source="https://cwiki.apache.org/confluence/display/KAFKA/KIP-101+-+Alter+Replication+Protocol+to+use+Leader+Epoch+rather+than+High+Watermark+for+Truncation",
    guard="every unclean start raises the leader epochs before the first append",
    without=guard("epoch-bump"),
)
def offsets_used_twice() -> None:
    """Before KIP-101 two copies could hold different records at one offset, and nothing told them apart."""
    server = InProcess()
    line = server.connect()
    line.create_topic("t", duramen_ack_durability="page-cache")
    for value in VALUES:
        line.produce("t", value)
    named = _by_epoch(line)
    cut(server.disk)
    server = InProcess(server.disk)
    line = server.connect()
    for value in VALUES:
        line.produce("t", value + b" again")
    for place, value in _by_epoch(line).items():
        promise(named.get(place, value) == value, f"(offset, epoch) {place} names one record for ever")


def _by_epoch(line: Any) -> dict[tuple[int, int], bytes]:
    """(offset, leader epoch) -> value of everything a consumer gets."""
    data = memoryview(bytes(line.fetch("t", 0).records or b""))
    return {
        (record.offset, header.leader_epoch): bytes(record.value or b"")
        for position, header in batches(data)
        for record in records(data[position : position + header.size], header, max_bytes=1 << 20)
    }


@exhibit(
    "etcd-index-ahead-of-the-data",
    source="https://github.com/etcd-io/etcd/issues/13766",
    guard="a checkpoint syncs the segments before it writes how far recovery may trust them",
    without=Replaced(SyncJob, "run", during(CrashFile, "sync", lambda file: None)),
)
def index_ahead_of_data() -> None:
    """etcd 3.5 could persist how far it had applied its log before the data: a crash then skipped entries for good."""
    bench = Bench()
    acknowledged = acknowledge(bench, *VALUES)
    directory = bench.directory
    force = True
    while (job := directory.take_checkpoint(force)) is not None:
        job.run()
        directory.complete_checkpoint(job)
        force = False
    bench.run()
    acknowledged |= acknowledge(bench, b"after the checkpoint")
    cut(bench.disk)
    there = stored(reopened(bench.disk))
    promise(acknowledged.items() <= there.items(), "what a checkpoint covers is on the disk")


_WITHOUT_NAMES = during(CrashDisk, "sync_directory", lambda disk, path: None)


def _put(directory: LogDirectory, log: Log, size: int, acknowledged: dict[int, bytes]) -> None:
    value = (b"%d " % log.end_offset).ljust(size)
    offset = append(log, value)
    commit(directory)
    acknowledged[offset] = value


@exhibit(
    "names-that-were-never-synced",
    source="https://www.usenix.org/conference/osdi14/technical-sessions/presentation/pillai",
    guard="a directory is synced before anything is acknowledged that only its new files hold: by the group commit of "
    "batches that go to a segment at once, for the journal's next part, and by a checkpoint; it is not shown for the "
    "names of a new log or of replaced files, without whose sync the story holds, too",
    without=Replaced(JournalGroup, "run", _WITHOUT_NAMES),
    also=(Replaced(PartMaker, "make", _WITHOUT_NAMES), Replaced(SyncJob, "_run", _WITHOUT_NAMES)),
)
def unsynced_names() -> None:
    """LevelDB, ZooKeeper, HDFS and others synced a new file and not its name: after a crash it was not there."""
    for sizes, checkpointed in (([1500] * 4 + [8000], False), ([2000] * 20, False), ([1500] * 4, True)):
        disk, directory, log = one_log()
        acknowledged: dict[int, bytes] = {}
        for size in sizes:
            _put(directory, log, size, acknowledged)
        if checkpointed:
            checkpoint(directory)
        cut(disk)
        try:
            logs = [*start(disk).logs.values()]
        except DuramenError as error:
            promise(False, f"the node starts again ({error})")
        there = read_all(logs[0]) if logs else {}
        promise(acknowledged.items() <= there.items(), "files whose content was synced still have their names")


def _only_real_files(original: Callable[[CrashFile], None]) -> Callable[[CrashFile], None]:
    def sync(file: CrashFile) -> None:
        if not file.path.endswith(".tmp"):
            original(file)

    return sync


@exhibit(
    "renamed-before-it-was-written",
    source="https://bugs.launchpad.net/ubuntu/+source/linux/+bug/317781",
    guard="a file that replaces another is synced before it takes the name",
    without=Replaced(CrashFile, "sync", _only_real_files),
)
def renamed_before_written() -> None:
    """Programs that replaced files by rename without a sync found them empty after a crash on ext4."""
    bench = Bench()
    acknowledged = acknowledge(bench, *VALUES)
    bench.store.close(clean=True)
    cut(bench.disk)
    there = stored(reopened(bench.disk))
    promise(acknowledged.items() <= there.items(), "a replaced file is the old one or the new one, never an empty one")


def _synced_already(store: Store, tp: TopicPartition, then: Callable[[None], None]) -> None:
    then(None)


def _unjournaled(log: Log, offset: int) -> None:
    log.start_offset = max(log.start_offset, offset)


@exhibit(
    "truncated-data-come-back",
    source="https://issues.apache.org/jira/browse/KAFKA-4586",
    guard="a new log start is journaled, and answered when that is durable",
    without=Replaced(Log, "advance_start", lambda original: _unjournaled),
    also=(Replaced(delete_records, "_delete", during(Store, "when_synced", _synced_already)),),
)
def deleted_records_return() -> None:
    """A deletion kept in memory until the next periodic checkpoint is undone by a crash."""
    for journal_stands_still in (False, True):
        server = InProcess()
        line = server.connect()
        line.create_topic("t")
        for value in VALUES:
            line.produce("t", value)
        if journal_stands_still:
            server.lanes.held.add("journal")
        request = API[21].request
        wanted = request.DeleteRecordsPartition(partition_index=0, offset=17)
        topics = [request.DeleteRecordsTopic(name="t", partitions=[wanted])]
        line.ask(21, 2, topics=topics, timeout_ms=1000)
        server.run()
        answer = line.answer(21, 2)
        promise(journal_stands_still or answer is not None, "a deletion is answered")
        cut(server.disk)
        start_offset = InProcess(server.disk).connect().look_up("t", EARLIEST).offset
        promise(answer is None or start_offset == 17, "records whose deletion was answered stay deleted")
