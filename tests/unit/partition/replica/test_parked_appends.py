"""Appends that wait for an end, without a partition."""

from __future__ import annotations

from functools import partial

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.replica.parked_appends import Appended, ParkedAppends


class Producers:
    """Park appends, each under a name, and note who was answered."""

    def __init__(self) -> None:
        self.parked = ParkedAppends()
        self.answered: list[str] = []

    def wait(self, name: str, end: int, acks: int) -> None:
        self.parked.add(end, acks, lambda answer: self.answered.append(name), Appended(end - 1, -1, 0))


def test_each_queue_is_answered_up_to_its_end() -> None:
    producers = Producers()
    for end in (1, 3, 5):
        producers.wait(f"one {end}", end, 1)
        producers.wait(f"all {end}", end, -1)
    assert len(producers.parked) == 6
    producers.parked.answer_local(3)
    assert producers.answered == ["one 1", "one 3"]
    producers.parked.answer_replicated(4)
    assert producers.answered[2:] == ["all 1", "all 3"]
    assert len(producers.parked) == 2
    producers.parked.answer_local(5)
    assert producers.parked.local is None, "an empty queue is not kept"
    assert producers.parked.replicated is not None


def test_those_who_wait_for_one_replica_join_the_others_in_order() -> None:
    producers = Producers()
    producers.wait("one 2", 2, 1)
    producers.wait("all 1", 1, -1)
    producers.wait("all 3", 3, -1)
    assert not producers.parked.is_due(1)
    assert producers.parked.is_due(2)
    producers.parked.wait_for_replicas()
    assert not producers.parked.is_due(9)
    producers.parked.answer_replicated(9)
    assert producers.answered == ["all 1", "one 2", "all 3"]


def test_one_that_parks_while_it_is_answered_keeps_its_place() -> None:
    producers = Producers()
    again = partial(producers.wait, "again", 7, -1)
    producers.parked.add(1, -1, lambda answer: again(), Appended(0, -1, 0))
    producers.parked.answer_replicated(6)
    assert len(producers.parked) == 1
    producers.parked.answer_replicated(7)
    assert producers.answered == ["again"]


def test_those_that_were_taken_wait_no_more() -> None:
    producers = Producers()
    producers.wait("one", 4, 1)
    producers.wait("all", 4, -1)
    for _, done, _ in producers.parked.take_replicated():
        done(KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "stored"))
    assert producers.answered == ["all"]
    assert not list(producers.parked.take_replicated())
    for _, done, answer in producers.parked.take_all():
        done(answer)
    assert producers.answered == ["all", "one"]
    assert not len(producers.parked)
