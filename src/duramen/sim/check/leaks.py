"""What a node must not keep once nobody asks for anything: files, descriptors, requests, jobs, timers, buffers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duramen.partition.metadata.controller import METADATA_PARTITION
from duramen.server.broker import Broker
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.world.disk import CrashDisk
from duramen.storage import INDEX, LOG, SEAL, TIME_INDEX, TXN_INDEX, file_name, parse_name, parse_part_name

DELETED = ".deleted"
PASSING = (".tmp", ".new", DELETED, ".cleaned", ".swap", ".tail", "-delete")
"""Ends of names that stand for something unfinished."""
BESIDE_A_LOG = (INDEX, TIME_INDEX, TXN_INDEX, SEAL)
MOST_EVENTS = 24
"""Events that an idle node may have planned: its periodic work."""


def removing(disk: CrashDisk) -> bool:
    """Whether files are still on their way out: housekeeping removes a few at a time."""
    return any(path.endswith(DELETED) for path in disk.contents())


def check_idle(broker: Broker, disk: CrashDisk, directories: Sequence[str], journal_bytes: int, events: int, *,
               peers: int = 0) -> None:  # fmt: skip
    """Nothing was asked for a while and every client is gone; InvariantViolated names what is still there.

    events: how many the node has planned. journal_bytes: the bound of each directory's journal. peers: how many
    connections to other nodes it may have.
    """
    found = [*_requests(broker, peers), *_files(broker, disk, directories, journal_bytes)]
    if events > MOST_EVENTS:
        found.append(f"{events} planned events")
    if found:
        raise InvariantViolated("NothingLeaks", f"an idle node holds {', '.join(found)}")


def check_stopped(disk: CrashDisk) -> None:
    """The node has stopped cleanly: every file it opened is closed."""
    if disk.open_files:
        raise InvariantViolated("NothingLeaks", f"a stopped node has {disk.open_files} files open")


def _requests(broker: Broker, peers: int) -> Iterator[str]:
    store = broker.store
    if broker.appends.outstanding:
        yield f"{len(broker.appends.outstanding)} produce requests"
    if len(broker.acceptor.everybody) > peers:
        yield f"{len(broker.acceptor.everybody)} connections"
    for pool in (receiver.pool for receiver in broker.acceptor.receivers):
        pool.reclaim()
        if pool.lent_bytes and not peers:
            yield f"{pool.lent_bytes} bytes of receive buffers"
        if pool.promised_bytes:
            yield f"{pool.promised_bytes} bytes that are promised to frames"
    if store._jobs:
        yield f"{store._jobs} jobs"
    if broker.controller.host.waiting:
        yield f"{broker.controller.host.waiting} metadata commands"
    if broker.sinks.materialiser.unfinished:
        yield f"{broker.sinks.materialiser.unfinished} batches of sinks that are committed and not finished"
    for coordinator in broker.sinks.running():
        if coordinator.arriving:
            yield f"{len(coordinator.arriving)} requests that stage"
    for tp, partition in sorted(store.partitions.items()):
        if partition.waiting:
            yield f"{partition.waiting} appends of {tp} without an answer"
        # The host of an internal partition watches it; whoever reads the metadata log's image does, too; and so do
        # followers together.
        if len(partition._watchers) > 1 + (tp == METADATA_PARTITION or len(partition.replication.replicas) > 1):
            yield f"{len(partition._watchers)} watchers of {tp}"
    for log_directory in store.directories:
        if log_directory.journal.has_pending or log_directory.journal.in_flight:
            yield "a group commit that nobody takes"


def _files(broker: Broker, disk: CrashDisk, directories: Sequence[str], journal_bytes: int) -> Iterator[str]:
    paths = disk.contents()
    logs = {path for path in paths if path.endswith(LOG)}
    homes = {f"{directory}/{tp}" for tp in broker.store.partitions for directory in directories}
    journals = dict.fromkeys(directories, 0)
    for path, content in sorted(paths.items()):
        home, _, name = path.rpartition("/")
        if path.endswith(PASSING) or home.endswith(PASSING):
            yield f"the unfinished {path}"
        elif home in journals:
            journals[home] += len(content) if parse_part_name(name) else 0
        elif home.endswith("-stray"):
            continue  # kept until somebody removes it
        elif home not in homes:
            yield f"{path} of no partition"
        else:
            parsed = parse_name(name)
            beside = parsed is not None and parsed[1] in BESIDE_A_LOG
            if parsed is not None and beside and f"{home}/{file_name(parsed[0], LOG)}" not in logs:
                yield f"{path} without its log"
    for directory, journal in journals.items():
        if journal > journal_bytes:
            yield f"a journal of {journal} bytes in {directory}"
