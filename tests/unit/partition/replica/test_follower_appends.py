"""What a follower does to its log: whole batches as its leader has them, cuts, and the leader's log start."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.partition_world import Bench, marker, plain, transactional

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.follower import FollowerLog, append_batches, cut, follow_start
from duramen.partition.replica.partition import READ_COMMITTED
from duramen.wire.batch import parse_header, place

EPOCH = 4


def at(offset: int, batch: bytearray, epoch: int = EPOCH) -> bytes:
    """As the leader has it."""
    view = memoryview(batch)
    place(view, parse_header(view), offset, epoch)
    return bytes(batch)


def follower(durability: str = "stable", epoch: int = EPOCH) -> Bench:
    bench = Bench(epoch=None, duramen_ack_durability=durability)
    bench.partition.resign(2, epoch, (1, 2), (1, 2))
    return bench


def take(bench: Bench, *batches: bytes, most: int = 99, epoch: int = EPOCH) -> tuple[int, int]:
    records = memoryview(b"".join(batches))
    return append_batches(bench.partition, bench.directory, records, epoch, 0, most)


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_batches_are_as_they_came(durability: str) -> None:
    bench = follower(durability)
    sent = [at(0, plain(b"a", b"b"), 1), at(7, plain(b"c" * 30_000), 3), at(8, plain(b"d"), 4)]
    assert take(bench, *sent) == (sum(map(len, sent)), 3)
    bench.run()
    partition = bench.partition
    assert (partition.log_end_offset, partition.durable_end, partition.high_watermark) == (9, 9, 0)
    partition.follow_watermark(8)
    assert bench.bytes_from() == b"".join(sent[:2])
    partition.follow_watermark(100)
    assert bench.bytes_from() == b"".join(sent)
    log = FollowerLog(partition)
    assert (log.latest_epoch, log.latest_epoch_start) == (4, 8)
    assert [log.end_of_epoch(each) for each in (-1, 1, 2, 3, 4, 5)] == [
        (-1, -1),
        (1, 7),
        (1, 7),
        (3, 8),
        (4, 9),
        (-1, -1),
    ]


def test_a_part_of_an_answer_at_a_time() -> None:
    bench = follower()
    sent = [at(each, plain(b"v")) for each in range(5)]
    records = memoryview(b"".join(sent))
    size, count = append_batches(bench.partition, bench.directory, records, EPOCH, 0, 2)
    assert (size, count) == (2 * len(sent[0]), 2)
    assert append_batches(bench.partition, bench.directory, records[size:], EPOCH, 0, 9)[1] == 3
    assert bench.partition.log_end_offset == 5


@pytest.mark.parametrize("damage", [16, 17, 23, 70])
def test_what_came_damaged_is_told_with_its_place(damage: int) -> None:
    bench = follower()
    bad = bytearray(at(1, plain(b"second")))
    bad[damage] ^= 0x40
    with pytest.raises(KafkaError, match=r"t-0: .* at 1 came damaged") as error:
        take(bench, at(0, plain(b"first")), bytes(bad), at(2, plain(b"third")))
    assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    bench.run()
    assert (bench.partition.log_end_offset, bench.partition.durable_end) == (1, 1)  # what came before it is sound
    assert take(bench, at(1, plain(b"second")))[1] == 1


def test_what_is_cut_off_is_damaged() -> None:
    bench = follower()
    for end in (30, -1):
        with pytest.raises(KafkaError, match="came damaged") as error:
            take(bench, at(0, plain(b"first"))[:end])
        assert error.value.code == ErrorCode.CORRUPT_MESSAGE
    assert bench.partition.log_end_offset == 0


@pytest.mark.parametrize(
    ("offset", "epoch", "why"), [(0, 4, "ends at 1"), (1, 3, "in epoch 4"), (1, 5, "leader's is 4")]
)
def test_what_cannot_follow_is_refused(offset: int, epoch: int, why: str) -> None:
    bench = follower()
    take(bench, at(0, plain(b"a")))
    with pytest.raises(KafkaError, match=why) as error:
        take(bench, at(offset, plain(b"b"), epoch))
    assert error.value.code == ErrorCode.INVALID_RECORD
    assert bench.partition.log_end_offset == 1


def test_producers_are_known_where_they_were_copied() -> None:
    """Who leads next answers a retry with its first home, and keeps open transactions from readers."""
    bench = follower()
    first: dict[str, Any] = {"producer_id": 9, "producer_epoch": 0}
    take(bench, at(0, plain(b"a", **first, base_sequence=0)), at(1, transactional(5, b"t")), at(2, marker(5, 0)))
    bench.run()
    bench.partition.follow_watermark(3)
    assert bench.values(isolation=READ_COMMITTED) == [b"a", b"t"]
    assert bench.partition.read(0, 1 << 20, READ_COMMITTED).aborted == [(5, 1)]
    bench.partition.lead(EPOCH + 1, (1,), (1,), 9)
    again = bench.produce(plain(b"a", **first, base_sequence=0))
    assert not isinstance(again, KafkaError)
    assert again.base_offset == 0
    assert bench.partition.log_end_offset == 3


def test_the_first_batch_may_hold_the_start() -> None:
    bench = follower()
    partition = bench.partition
    partition.begin_anew(bench.directory, 7)
    bench.run()
    batch = at(5, plain(b"a", b"b", b"c", b"d"))
    assert take(bench, batch) == (0, 0)  # a place is made for it
    assert not partition.log.is_whole
    bench.run()
    assert partition.log.is_whole
    assert take(bench, batch) == (len(batch), 1)
    bench.run()
    partition.follow_watermark(9)
    assert (partition.log_start_offset, partition.log_end_offset) == (7, 9)
    assert bench.bytes_from(7) == batch


@pytest.mark.parametrize("durability", ["stable", "page-cache"])
def test_a_cut_takes_the_watermark_with_it(durability: str) -> None:
    bench = follower(durability)
    take(bench, at(0, plain(b"a"), 1), at(1, plain(b"b"), 2), at(2, plain(b"c"), 4))
    bench.run()
    partition = bench.partition
    partition.follow_watermark(2)
    told: list[KafkaError] = []
    partition.watch(lambda: None, told.append)
    cut(partition, bench.directory, 2)
    assert (partition.log_end_offset, partition.high_watermark, partition.log.is_whole) == (2, 2, False)
    with pytest.raises(KafkaError):
        take(bench, at(2, plain(b"c")))
    bench.run()
    assert partition.log.is_whole
    assert told == []
    cut(partition, bench.directory, 1)
    assert (partition.log_end_offset, partition.high_watermark) == (1, 1)
    assert [error.code for error in told] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    bench.run()
    assert take(bench, at(1, plain(b"d"), 4))[1] == 1
    bench.run()
    partition.follow_watermark(9)
    assert bench.values() == [b"a", b"d"]


def test_a_cut_in_front_of_the_log_begins_it_anew() -> None:
    bench = follower()
    bench.partition.begin_anew(bench.directory, 7)
    bench.run()
    take(bench, at(7, plain(b"a")))
    bench.run()
    cut(bench.partition, bench.directory, 3)
    bench.run()
    partition = bench.partition
    assert (partition.log_start_offset, partition.log_end_offset, partition.high_watermark) == (3, 3, 3)


def test_a_leader_is_never_cut() -> None:
    bench = Bench()
    bench.produce(plain(b"a"))
    with pytest.raises(Exception, match="what the others follow"):
        cut(bench.partition, bench.directory, 0)
    assert bench.values() == [b"a"]


def test_the_start_follows_up_to_the_watermark() -> None:
    bench = follower()
    take(bench, at(0, plain(b"a", b"b")), at(2, plain(b"c")))
    bench.run()
    partition = bench.partition
    assert not follow_start(partition, 3)
    partition.follow_watermark(2)
    assert follow_start(partition, 3)
    assert partition.log_start_offset == 2
    assert not follow_start(partition, 1)
    bench.run()
    bench.disk.kill()
    bench.disk.power_on()
    assert Bench(bench.disk, epoch=None).partition.log_start_offset == 2
