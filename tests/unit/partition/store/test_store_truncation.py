"""A log that was truncated is whole again by the store's own cycle, and what needs that waits."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.worlds.partition_world import Bench, NoTimer, plain

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.parked_appends import Appended
from duramen.storage.log.truncation import truncate_log


def cut(bench: Bench) -> None:
    """Ten records of a producer, of which three stay; the job that reads what is known of it waits."""
    for sequence in range(10):
        bench.produce(plain(b"v", producer_id=7, producer_epoch=0, base_sequence=sequence))
    bench.lanes.held.add("producers")
    truncate_log(bench.partition.log, 3)
    bench.partition.touched()
    bench.run()


def of_producer(sequence: int) -> bytearray:
    return plain(b"v", producer_id=7, producer_epoch=0, base_sequence=sequence)


def test_producers_are_refused_until_the_store_knows_them_again() -> None:
    bench = Bench()
    cut(bench)
    log = bench.partition.log
    assert (log.pending_truncation, log.is_whole) == (None, False)
    for sequence in (2, 3):
        answer = bench.produce(of_producer(sequence))
        assert isinstance(answer, KafkaError)
        assert answer.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert bench.values() == [b"v"] * 3
    bench.lanes.held.clear()
    bench.run()
    again, following = bench.produce(of_producer(2)), bench.produce(of_producer(3))
    assert isinstance(again, Appended)
    assert isinstance(following, Appended)
    assert (again.base_offset, following.base_offset) == (2, 3)
    assert bench.failures == []


@pytest.mark.parametrize("durability", ["page-cache", "stable"])
def test_a_configuration_that_comes_meanwhile_is_taken_over_behind_it(durability: str) -> None:
    """It fenced the directory: a log in the midst of a truncation cannot change its durability."""
    bench = Bench(duramen_ack_durability="stable" if durability == "page-cache" else "page-cache")
    later: list[Callable[[], None]] = []
    bench.store.maintenance.start()
    bench.clock.call_later = lambda seconds, callback: (later.append(callback), NoTimer())[1]  # type: ignore[method-assign]
    cut(bench)
    bench.reconfigure(duramen_ack_durability=durability, retention_bytes="12345")
    log = bench.partition.log
    assert log.stable == (durability == "page-cache")
    assert bench.failures == []
    bench.lanes.held.clear()
    bench.run()
    for callback in tuple(later):
        callback()
    bench.run()
    assert log.stable == (durability == "stable")
    assert log.config.retention_bytes == 12345
    assert isinstance(bench.produce(of_producer(3)), Appended)
    assert bench.failures == []


def test_a_stop_waits_for_the_job() -> None:
    bench = Bench()
    cut(bench)
    idle: list[bool] = []
    bench.store.stop(lambda: idle.append(True))
    bench.run()
    assert idle == []
    bench.lanes.held.clear()
    bench.run()
    assert idle == [True]
    bench.store.close(clean=True)
    again = Bench(bench.disk, epoch=2)
    known = again.partition.log.producers.get(7)
    assert known is not None
    assert known.last_offset == 2
