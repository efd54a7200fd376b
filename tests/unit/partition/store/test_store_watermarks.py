"""The high watermark that was known before a start is where a partition begins behind it."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.partition_world import NOW, TP, Bench, Numbers

from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.kafka_files import CHECKPOINT, HIGH_WATERMARK, decode_offsets, encode_offsets
from duramen.storage.directory.log_directory import DirectorySettings, LogDirectory
from duramen.storage.files.atomic import replace_file
from duramen.storage.log.follower import append_as_follower
from duramen.wire.batch import build_batch, parse_header

MARKS = f"/data/{HIGH_WATERMARK}"


def led(count: int = 5, known: int = 2) -> Bench:
    """A leader with a follower that has as many records as `known`."""
    bench = Bench()
    bench.partition.lead(2, (1, 2), (1, 2), 0)
    for _ in range(count):
        bench.produce(build_batch([(None, b"v", [], 1_000)]), acks=1)
    bench.partition.fetched_by(2, 7, known, 1.0)
    assert (bench.partition.high_watermark, bench.partition.log_end_offset) == (known, count)
    return bench


def checkpoint(bench: Bench) -> None:
    force = True
    while (job := bench.directory.take_checkpoint(force)) is not None:
        job.run()
        bench.directory.complete_checkpoint(job)
        force = False
        if job.files is not None:
            break
    bench.run()


def stop(bench: Bench, how: str) -> CrashDisk:
    if how == "stop":
        bench.directory.close(clean=True)
    else:
        checkpoint(bench)
        bench.disk.kill() if how == "kill" else bench.disk.power_cut()
        bench.disk.power_on()
    return bench.disk


@pytest.mark.parametrize("how", ["stop", "kill", "power"])
def test_a_partition_begins_where_readers_were(how: str) -> None:
    disk = stop(led(), how)
    for _ in range(2):  # the checkpoint of a start says the same again
        bench = Bench(disk, epoch=None)
        assert (bench.partition.high_watermark, bench.partition.log_end_offset) == (2, 5)
        disk.kill()
        disk.power_on()
    bench = Bench(disk, epoch=None)
    bench.partition.lead(3, (1, 2), (1, 2), 0)
    assert bench.partition.high_watermark == 2, "the other one has to say what it has"
    bench.partition.fetched_by(2, 7, 4, 1.0)
    assert bench.partition.high_watermark == 4


def test_one_replica_alone_leads_at_its_durable_end() -> None:
    assert Bench(stop(led(), "kill")).partition.high_watermark == 5


def test_what_is_not_opened_yet_keeps_it_in_the_next_checkpoint() -> None:
    bench = led()
    disk = stop(bench, "kill")
    bench = Bench(disk, epoch=None)
    bench.store._by_log.clear()  # its topic is not known yet
    checkpoint(bench)
    content = disk.contents()[MARKS]
    assert decode_offsets(content) == {TP: 2}


@pytest.mark.parametrize(("told", "known"), [(-3, 1), (0, 1), (1, 1), (3, 3), (5, 5), (99, 5)])
def test_it_lies_between_start_and_durable_end(told: int, known: int) -> None:
    bench = led(known=2)
    bench.partition.log.advance_start(1)
    disk = stop(bench, "kill")
    replace_file(disk, MARKS, encode_offsets({TP: told}))
    assert Bench(disk, epoch=None).partition.high_watermark == known


@pytest.mark.parametrize("content", [None, b"", b"0\n1\nt 0\n", b"0\n9\nt 0 3\n", b"\xff\x00"])
def test_without_the_file_it_is_the_log_start(content: bytes | None) -> None:
    bench = led()
    bench.partition.log.advance_start(1)
    disk = stop(bench, "kill")
    if content is None:
        disk.remove(MARKS)
    else:
        replace_file(disk, MARKS, content)
    assert Bench(disk, epoch=None).partition.high_watermark == 1


def test_a_new_topic_does_not_get_that_of_an_older_one_of_its_name() -> None:
    bench = led(known=5)
    checkpoint(bench)
    assert decode_offsets(bench.disk.contents()[MARKS]) == {TP: 5}
    bench.store.delete_partition(TP)
    bench.run()
    new = bench.store.open_partition(TopicPartition("t", 0), b"u" * 16, bench.config())
    new.lead(1, (1, 2), (1, 2), 0)
    bench.partition = new
    for _ in range(3):
        bench.produce(build_batch([(None, b"v", [], 1_000)]), acks=1)
    bench.disk.kill()
    bench.disk.power_on()
    directory = LogDirectory.open(bench.disk, "/data", DirectorySettings(), now_ms=NOW, entropy=Numbers())
    (log,) = directory.logs.values()
    assert (log.topic_id, log.end_offset, directory.known_watermark(log)) == (b"u" * 16, 3, 0)


@pytest.mark.parametrize("anew", [True, False])
def test_what_was_known_of_what_was_cut_off_counts_no_more(anew: bool) -> None:
    """The log has grown beyond it since; a checkpoint behind that knows better."""
    bench = led(known=4)
    checkpoint(bench)
    partition, log = bench.partition, bench.partition.log
    partition.resign(2, 3)
    if anew:
        partition.begin_anew(bench.directory, 2)
    else:
        partition.truncate_to(2)
    bench.run()
    for offset in range(2, 9):
        data = build_batch([(None, b"v", [], 1_000)], base_offset=offset, leader_epoch=3)
        append_as_follower(log, data, parse_header(data), NOW)
    partition.touched()
    bench.run()
    copy = bench.disk.copy(Random(0))
    copy.kill()
    copy.power_on()
    found = Bench(copy, epoch=None).partition
    assert (found.high_watermark, found.log_end_offset, found.log_start_offset) == (2, 9, 2 if anew else 0)
    partition.replication.high_watermark = 3
    assert Bench(stop(bench, "kill"), epoch=None).partition.high_watermark == 3


def test_without_our_checkpoint_nobody_knows_whose_it_is() -> None:
    disk = stop(led(), "kill")
    disk.remove(f"/data/{CHECKPOINT}")
    assert Bench(disk, epoch=None).partition.high_watermark == 0
    disk = stop(led(), "stop")
    disk.remove(f"/data/{CHECKPOINT}")  # as Kafka leaves a directory
    assert Bench(disk, epoch=None).partition.high_watermark == 2
