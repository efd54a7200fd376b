"""A replica that drops what it has and begins anew, as a follower does whose leader's log begins above its end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.partition_world import Bench

from duramen.errors import BugError, ErrorCode, KafkaError
from duramen.partition.replica.partition import READ_UNCOMMITTED
from duramen.storage.log.follower import append_as_follower
from duramen.wire.batch import build_batch, parse_header


def batch(offset: int = 0, epoch: int = 0, count: int = 1) -> bytes:
    rows: list[Any] = [(None, b"v", [], 1_000)] * count
    return bytes(build_batch(rows, base_offset=offset, leader_epoch=epoch))


def follower(durability: str = "stable", count: int = 5) -> Bench:
    """It led, alone, and somebody else was elected."""
    bench = Bench(duramen_ack_durability=durability)
    for _ in range(count):
        bench.produce(batch())
    assert bench.partition.high_watermark == count
    bench.partition.resign(2, 2)
    return bench


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
@pytest.mark.parametrize("offset", [0, 3, 5, 70])
def test_the_high_watermark_is_the_new_start(durability: str, offset: int) -> None:
    bench = follower(durability)
    partition = bench.partition
    partition.begin_anew(bench.directory, offset)
    ends = partition.log_start_offset, partition.high_watermark, partition.last_stable_offset, partition.log_end_offset
    assert ends == (offset,) * 4
    bench.run()
    data = batch(offset, 2, 4)
    append_as_follower(partition.log, data, parse_header(data), 1_000)
    partition.touched()
    bench.run()
    assert (partition.high_watermark, partition.durable_end) == (offset, offset + 4)
    read = partition.read(offset, 1000, READ_UNCOMMITTED)
    assert (read.size, read.high_watermark, read.log_start_offset) == (0, offset, offset)
    bench.disk.kill()
    bench.disk.power_on()
    again = Bench(bench.disk, epoch=None)
    assert (again.partition.high_watermark, again.partition.log_start_offset) == (offset, offset)


def test_whoever_waits_is_sent_to_the_leader() -> None:
    bench = Bench()
    bench.partition.lead(2, (1, 2), (1, 2), 0)
    told = [bench.send(batch()), bench.send(batch(), acks=1)]
    woken: list[KafkaError] = []
    bench.partition.watch(lambda: None, woken.append)
    bench.partition.resign(2, 3)
    bench.partition.begin_anew(bench.directory, 1)
    assert bench.partition.waiting == 0
    for answer, *_ in (*told, woken):
        assert isinstance(answer, KafkaError)
        assert answer.code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    bench.run()
    assert bench.partition.log_end_offset == 1


def test_a_leader_keeps_what_it_has() -> None:
    bench = Bench()
    bench.produce(batch())
    with pytest.raises(BugError):
        bench.partition.begin_anew(bench.directory, 9)
    assert (bench.partition.high_watermark, bench.partition.log_end_offset) == (1, 1)


def test_one_that_is_refused_changes_nothing() -> None:
    bench = follower()
    partition = bench.partition
    partition.begin_anew(bench.directory, 4)
    with pytest.raises(KafkaError) as error:
        partition.begin_anew(bench.directory, 2)
    assert error.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (partition.high_watermark, partition.log_start_offset) == (4, 4)
    bench.run()
    partition.begin_anew(bench.directory, 2)
    assert (partition.high_watermark, partition.log_start_offset) == (2, 2)
