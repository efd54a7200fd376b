"""What is committed, and what changed in it: by records, through transactions, from one snapshot to another."""

from __future__ import annotations

from typing import Any

from duramen.machines.contract import LogRecord
from duramen.machines.metadata import BROKER_RESOURCE, CommittedImage, codec
from duramen.machines.metadata.commands import RegisterBroker
from duramen.machines.metadata.committed_image import Changes, difference
from duramen.machines.metadata.image import Endpoint

T, U = bytes(15) + b"\x0a", bytes(15) + b"\x0b"
MARKS = codec.TRANSACTION_MARKS


class Follower:
    """A committed image and the next offset."""

    def __init__(self) -> None:
        self.committed = CommittedImage()
        self.end = 0

    def take(self, *records: LogRecord) -> Changes:
        for record in records:
            self.committed.apply(record, self.end, 0)
            self.end += 1
        return self.committed.take_changes()


def broker(node_id: int = 1) -> LogRecord:
    return codec.register_broker(RegisterBroker(node_id, U, (Endpoint("PLAINTEXT", "h", 9092, 0),)), 0)


def topic(name: str = "t", topic_id: bytes = T, partitions: int = 1) -> list[LogRecord]:
    made = [codec.topic(name, topic_id)]
    return made + [codec.partition(topic_id, index, [1], [1], 1) for index in range(partitions)]


def test_a_transaction_takes_effect_with_its_end() -> None:
    follower = Follower()
    assert not follower.take(MARKS.begin, *topic())
    assert follower.committed.image.topic("t") is None
    held = follower.committed.held
    assert held is not None
    assert len(held) == 2
    changes = follower.take(MARKS.end)
    assert (changes.created, changes.partitions) == ([T], [T])
    assert follower.committed.held is None


def test_an_aborted_one_never_does() -> None:
    follower = Follower()
    assert not follower.take(MARKS.begin, *topic(), MARKS.abort)
    assert follower.committed.image.topic("t") is None
    assert follower.take(*topic()).created == [T]


def test_levels_that_change_are_told_but_not_the_first() -> None:
    follower = Follower()
    assert not follower.take(codec.feature("a", 1), codec.feature("b", 2))
    assert follower.take(codec.feature("a", 0), codec.feature("b", 2), codec.feature("c", 1)).levels == [
        ("a", 1, 0),
        ("c", 0, 1),
    ]
    assert not follower.take(codec.feature("c", 1))


def test_what_was_deleted_is_known_until_somebody_follows() -> None:
    follower = Follower()
    follower.take(*topic(), codec.remove_topic(T))
    assert follower.committed.removed == {T}
    follower.committed.forget_removed()
    changes = follower.take(*topic("u", U), codec.remove_topic(U))
    assert changes.removed == [("u", U)]
    assert follower.committed.removed == frozenset()


def test_from_one_snapshot_to_another() -> None:
    before, after = Follower(), Follower()
    before.take(broker(), *topic("gone"), codec.config(BROKER_RESOURCE, "", "a", "1"))
    both = topic("both", U)
    before.take(*both)
    after.take(broker(2), *both, codec.partition(U, 1, [2], [2], 2), *topic("new", bytes(15) + b"\x0c"))
    after.take(codec.topic_config("both", "retention.ms", "5"))
    changes = difference(before.committed.image, after.committed.image)
    assert changes.removed == [("gone", T)]
    assert changes.created == [bytes(15) + b"\x0c"]
    assert changes.partitions == [U, bytes(15) + b"\x0c"]
    assert (changes.topic_configs, changes.broker_configs) == (["both"], [""])
    assert sorted(changes.brokers) == [1, 2]
    assert not difference(after.committed.image, after.committed.image.copy())


def test_a_follower_that_goes_on_from_a_snapshot_is_told_the_difference() -> None:
    follower, leader = Follower(), Follower()
    follower.take(broker(), *topic())
    leader.take(broker(), *topic(), *topic("u", U))
    version = follower.committed.image.version
    follower.committed.replace(leader.committed.image.copy())
    changes: Any = follower.committed.take_changes()
    assert (changes.created, changes.removed) == ([U], [])
    assert follower.committed.image.version > version
    assert follower.committed.image.next_offset == leader.end


def test_what_a_newer_snapshot_does_not_have_any_more_was_deleted() -> None:
    follower, leader = Follower(), Follower()
    both = topic("both", U)
    follower.take(*topic(), *both)
    leader.take(*both)
    follower.committed.replace(leader.committed.image.copy())
    assert follower.committed.removed == {T}
    follower.committed.forget_removed()
    follower.committed.replace(Follower().committed.image)
    assert follower.committed.removed == frozenset()  # whoever follows is told by the changes
    assert follower.committed.take_changes().removed == [("t", T), ("both", U)]
