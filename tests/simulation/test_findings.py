"""What simulations have found, each as the shortest story that shows it; none may come back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from duramen.client.loop.node_client import NodeClient, call
from duramen.errors import CorruptLogError, ErrorCode
from duramen.model import TopicPartition
from duramen.ports import World
from duramen.server.broker import Broker
from duramen.sim.run.simulation import configuration
from duramen.sim.workload.scripts import Actor, Script
from duramen.sim.workload.workload import new_topic
from duramen.sim.world.disk import CrashDisk
from duramen.sim.world.entropy import SimEntropy
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import SimNetwork, SimPort
from duramen.sim.world.node import WALL_START_MS, SimNode, node_address
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.journal.format import ENTRY_SIZE
from duramen.storage.journal.reader import read_journal
from duramen.storage.log.config import PlainLogConfig
from duramen.storage.log.durability import configure_log
from duramen.storage.log.log import Log
from duramen.wire.batch import build_batch, parse_header

TP = TopicPartition("t", 0)
TOPIC_ID = bytes(15) + b"\x07"
SMALL_JOURNAL = DirectorySettings(journal_max_bytes=1 << 20, journal_part_bytes=1 << 16, bypass_bytes=1 << 15)


@dataclass
class Expiring(PlainLogConfig):
    """A topic whose records may go after a tenth of a second."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    retention_ms: int = 100


def open_directory(disk: CrashDisk) -> LogDirectory:
    return LogDirectory.open(disk, "/data", SMALL_JOURNAL, now_ms=WALL_START_MS, entropy=SimEntropy(Random(disk.calls)))


def produced(log: Log, sequence: int, producer_id: int = 9) -> Any:
    batch = build_batch(
        [(None, b"v" * 300, [], WALL_START_MS)],
        base_offset=log.end_offset,
        leader_epoch=0,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    return batch, parse_header(batch)


def write(directory: LogDirectory, log: Log, sequence: int) -> None:
    batch, header = produced(log, sequence)
    log.append(batch, header, WALL_START_MS)
    commit(directory)


def commit(directory: LogDirectory) -> None:
    while (group := directory.take_group()) is not None:
        group.run()
        directory.journal.complete(group)


def test_a_group_that_ends_after_the_directory_was_fenced_tells_nobody_anything() -> None:
    """Its callers were told "outcome unknown" already; completing it used to be taken for a bug of ours."""
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig())
    log.assign_epoch(0)
    batch, header = produced(log, 0)
    log.append(batch, header, WALL_START_MS)
    group = directory.take_group()
    assert group is not None
    group.run()
    durable = log.durable_end
    directory.journal.fail(None, OSError(errno.ENOSPC, "No space left on device"))
    assert directory.journal.complete(group) == []
    assert log.durable_end == durable


@pytest.mark.parametrize("lost", [".producers", ".snapshot"])
def test_producers_keep_five_batches_whichever_of_their_files_a_power_cut_leaves(lost: str) -> None:
    """Kafka's snapshot knows one batch: with it alone, a batch sent again was refused instead of recognised."""
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig(segment_bytes=1000))
    log.assign_epoch(0)
    for sequence in range(5):
        write(directory, log, sequence)
    assert len(log.segments) > 1
    for segment in log.segments:
        segment.open_file().sync()
    disk.sync_directory(log.path)
    disk.kill()
    disk.power_on()
    for path in disk.contents():
        if path.endswith(lost):
            disk.remove(path)
    (log,) = open_directory(disk).logs.values()
    for sequence in range(5):
        duplicate = log.producers.check(produced(log, sequence)[1])
        assert duplicate is not None
        assert duplicate.base_offset == sequence


def test_a_segment_that_was_only_named_in_memory_is_named_durably_by_the_recovery_that_keeps_it() -> None:
    """After a kill its file is there; the recovery synced its bytes and dropped the journal, but not its name."""
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig(segment_bytes=1000))
    log.assign_epoch(0)
    write(directory, log, 0)
    force = True
    while (job := directory.take_checkpoint(force)) is not None:
        job.run()
        directory.complete_checkpoint(job)
        force = False
    for sequence in range(1, 4):
        write(directory, log, sequence)
    assert len(log.segments) > 1
    disk.kill()
    disk.power_on()
    (log,) = open_directory(disk).logs.values()
    assert log.end_offset == 4
    disk.power_cut()
    disk.power_on()
    (log,) = open_directory(disk).logs.values()
    assert log.end_offset == 4


def test_batches_journaled_before_a_page_cache_spell_do_not_cut_it_off_once_it_is_stable() -> None:
    """stable, page-cache, stable within one journal: recovery wrote the first batches again and cut behind them."""
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig())
    log.assign_epoch(0)
    for sequence, durability in enumerate(("stable", "page-cache", "stable")):
        configure_log(log, PlainLogConfig(durability=durability))
        write(directory, log, sequence)
        log.flush()
    disk.power_cut()
    disk.power_on()
    (log,) = open_directory(disk).logs.values()
    assert log.end_offset == 3


class OneNode:
    """A node and one client in a calm world."""

    def __init__(self) -> None:
        self.loop = SimLoop(Random(1))
        network = SimNetwork(self.loop, Random(2))
        self.disk = CrashDisk(Random(3))
        self.node = SimNode(1, self.loop, network, Random(4), self.disk, self.boot, lambda line: None)
        self.node.on_error = self.failed
        people = Process("clients")
        self.clock = SimClock(self.loop, people, WALL_START_MS)
        self.client = NodeClient(SimPort(network, people), self.clock, *node_address(1), "c")
        self.node.start()

    def boot(self, world: World) -> Broker:
        return Broker(world, configuration())

    def failed(self, error: Exception) -> None:
        raise error

    def until(self, condition: Callable[[], bool]) -> None:
        assert self.loop.run(condition, self.loop.now + 60.0)

    def answers(self, *scripts: Script) -> None:
        self.until(lambda: self.node.ready)
        actors = [Actor(self.client, self.clock, script) for script in scripts]
        self.until(lambda: all(actor.finished for actor in actors))


def create(name: str, codes: list[int], **configs: str) -> Script:
    response = yield call("CreateTopics", 7, topics=[new_topic(name, 1, configs)], timeout_ms=5000)
    codes.append(response.topics[0].error_code)


def produce(topic: str, codes: list[int]) -> Script:
    wanted = call("Produce", 9, transactional_id=None, acks=-1, timeout_ms=30000)
    kinds = wanted.api.request
    batch = bytes(build_batch([(None, b"v", [], WALL_START_MS)]))
    data = kinds.PartitionProduceData(index=0, records=batch)
    wanted.request.topic_data.append(kinds.TopicProduceData(name=topic, partition_data=[data]))
    response = yield wanted
    codes.append(response.responses[0].partition_responses[0].error_code)


def test_a_change_of_metadata_on_a_full_disk_is_refused_with_kafkas_code() -> None:
    """The handlers knew one class of error, the failed directory answered with another."""
    world = OneNode()
    world.until(lambda: world.node.ready)
    world.disk.capacity = world.disk.used
    codes: list[int] = []
    world.answers(create("a", codes))
    world.answers(create("b", codes))
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.KAFKA_STORAGE_ERROR]


def test_the_first_batch_of_a_page_cache_topic_is_answered_without_a_second_one() -> None:
    """It waits for the journal's mark, and nothing looked again when the mark was durable."""
    world = OneNode()
    codes: list[int] = []
    world.answers(create("loose", codes, **{"duramen.ack.durability": "page-cache"}))
    asked = world.loop.now
    world.answers(produce("loose", codes))
    assert codes == [ErrorCode.NONE, ErrorCode.NONE]
    assert world.loop.now - asked < 0.5, "it was answered by chance, when something else was committed"


def test_a_metadata_log_of_several_cold_segments_is_replayed() -> None:
    """What is not in memory comes in another form, which the replay did not know: the node did not start again."""
    world = OneNode()
    codes: list[int] = []
    for name in ("a", "b", "c"):
        world.answers(create(name, codes))
        server = world.node.server
        assert isinstance(server, Broker)
        server.controller.partition.log.roll()
        world.loop.run(lambda: False, world.loop.now + 1.0)
    segments = [path for path in world.disk.contents() if "__cluster_metadata-0/" in path and path.endswith(".log")]
    assert len(segments) > 1
    world.node.power_cut()
    world.client.drop()
    world.node.start()
    world.answers(create("b", codes))
    assert codes == [ErrorCode.NONE] * 3 + [ErrorCode.TOPIC_ALREADY_EXISTS]


def test_retention_goes_on_when_the_wall_clock_is_set_back() -> None:
    """The next look was due at a time of the wall clock: after six hours back nothing was removed for six hours."""
    directory = open_directory(CrashDisk())
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig(segment_bytes=1000))
    log.assign_epoch(0)
    for sequence in range(6):
        write(directory, log, sequence)

    def housekeep(now_ms: int) -> None:
        for job in directory.take_maintenance(now_ms):
            job.run()
            job.complete()
        while (group := directory.take_group()) is not None:
            group.run()
            directory.journal.complete(group)

    day = 86_400_000
    for now_ms in (WALL_START_MS + day, WALL_START_MS + day + 400_000):
        housekeep(now_ms)
    assert log.start_offset == 0
    configure_log(log, Expiring(segment_bytes=1000))
    now_ms = WALL_START_MS + day - 6 * 3_600_000
    for passed in (0, 400_000, 800_000):
        housekeep(now_ms + passed)
    assert log.start_offset == 6


def test_a_stop_on_a_failing_disk_ends() -> None:
    """The error reached the loop, where it was logged, and the process waited for ever to hear that it had stopped."""
    world = OneNode()
    codes: list[int] = []
    world.answers(create("a", codes))
    world.disk.fault = lambda call: OSError(errno.EIO, "EIO", call.path) if call.operation == "truncate" else None
    world.node.stop()
    world.until(lambda: not world.node.running)
    world.disk.fault = None
    world.client.drop()
    world.node.start()
    world.answers(create("a", codes))
    assert codes == [ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]


def test_a_start_that_meets_a_damaged_journal_changes_nothing() -> None:
    """It gave a topic that was created again its predecessor's id, then refused: from the repaired journal no start."""
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig())
    log.assign_epoch(0)
    write(directory, log, 0)
    directory.close(clean=True)
    directory = open_directory(disk)
    directory.delete_log(directory.logs[TOPIC_ID, 0])
    newer = bytes(15) + b"\x08"
    log = directory.create_log(TP, newer, PlainLogConfig())
    log.assign_epoch(0)
    for sequence in range(3):
        write(directory, log, sequence)
    disk.kill()
    disk.power_on()
    contents = read_journal(disk, "/data")
    part = f"/data/{contents.names[0]}"
    contents.close()
    disk.damage(part, contents.entries[0].data_position - ENTRY_SIZE)
    with pytest.raises(CorruptLogError):
        open_directory(disk)
    disk.damage(part, contents.entries[0].data_position - ENTRY_SIZE)
    (log,) = open_directory(disk).logs.values()
    assert (log.topic_id, log.end_offset) == (newer, 3)


def test_indexes_of_a_segment_that_a_power_cut_took_go_at_the_start() -> None:
    """Their names may survive it without the segment's: nobody removed them, and the next segment began with them."""
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig())
    log.assign_epoch(0)
    write(directory, log, 0)
    disk.kill()
    disk.power_on()
    orphans = [f"{log.path}/{7:020}{suffix}" for suffix in (".index", ".timeindex", ".txnindex", ".seal")]
    for path in orphans:
        disk.open(path, create=True, write=True).close()
    open_directory(disk)
    assert not set(orphans) & set(disk.contents())


def test_retention_believes_no_time_index_that_a_power_cut_left() -> None:
    """Index files of segments without a seal are never synced: as zeros they said that fresh records were ages old."""
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig(segment_bytes=1000))
    log.assign_epoch(0)
    for sequence in range(6):
        write(directory, log, sequence)
    directory.close(clean=True)
    closed = [segment.path.removesuffix(".log") + ".timeindex" for segment in log.segments[:-1]]
    assert closed
    for path in closed:
        file = disk.open(path, write=True)
        file.pwritev([bytes(file.size())], 0)
        file.close()
    (log,) = open_directory(disk).logs.values()
    assert [segment.max_timestamp for segment in log.segments] == [WALL_START_MS] * (len(closed) + 1)


def test_a_topic_that_the_disk_refuses_to_look_for_is_refused() -> None:
    """The error of looking whether a directory is there already reached the loop, and nobody was answered."""
    world = OneNode()
    world.until(lambda: world.node.ready)
    codes: list[int] = []
    path = "/data/a-0"
    world.disk.fault = lambda call: OSError(errno.EACCES, "EACCES", path) if call.path == path else None
    world.answers(create("a", codes))
    assert codes == [ErrorCode.KAFKA_STORAGE_ERROR]


@pytest.mark.parametrize("ends", ["kill", "power_cut"])
@pytest.mark.parametrize("more", [0, 1])
def test_an_extent_grows_no_more_once_a_checkpoint_counts_it_as_done(ends: str, more: int) -> None:
    """What came to it behind the checkpoint's sync was in no entry that a recovery reads: acknowledged, and cut off.

    Found by seed 200013, as "stable-1 ends at 103, but offset 107 was acknowledged".
    """
    disk = CrashDisk()
    directory = open_directory(disk)
    log = directory.create_log(TP, TOPIC_ID, PlainLogConfig())
    log.assign_epoch(0)

    def large() -> None:
        batch = build_batch([(None, b"v" * (40 << 10), [], WALL_START_MS)], base_offset=log.end_offset, leader_epoch=0)
        log.append(batch, parse_header(batch), WALL_START_MS)

    large()
    round_ = directory.take_checkpoint(force=True)
    assert round_ is not None
    round_.run()
    directory.complete_checkpoint(round_)
    large()
    commit(directory)
    for _ in range(more):
        large()
        commit(directory)
    assert log.durable_end == 2 + more
    getattr(disk, ends)()
    disk.power_on()
    (log,) = open_directory(disk).logs.values()
    assert log.end_offset == 2 + more
