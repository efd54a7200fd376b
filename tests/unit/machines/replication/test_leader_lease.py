"""A leader that nobody else is in sync with moves its high watermark only by a lease."""

from __future__ import annotations

from duramen.errors import ErrorCode
from duramen.machines.replication.leader import Replication

MUCH = 1 << 40


class Held:
    """A lease that the test ends."""

    def __init__(self, *, valid: bool = True) -> None:
        self.valid = valid
        self.looks = 0

    def holds(self) -> bool:
        self.looks += 1
        return self.valid


def leader(lease: Held | None, isr: tuple[int, ...] = (1,)) -> Replication:
    replication = Replication(1)
    replication.lease = lease
    replication.lead(5, (1, 2, 3), isr, 0, 0, 0)
    return replication


def fetch(replication: Replication, node: int, end: int) -> bool:
    return replication.fetched(node, 7, end, MUCH, 1.0)


def test_alone_it_stands_still_without_a_lease_and_goes_on_with_it() -> None:
    lease = Held()
    replication = leader(lease)
    assert replication.durable(3)
    lease.valid = False
    assert not replication.durable(5)
    assert (replication.high_watermark, replication.own_end) == (3, 5)
    lease.valid = True
    assert replication.advance()
    assert replication.high_watermark == 5


def test_with_others_in_sync_nobody_asks_for_it() -> None:
    lease = Held(valid=False)
    replication = leader(lease, (1, 2))
    replication.durable(5)
    assert fetch(replication, 2, 4)
    assert replication.high_watermark == 4
    assert lease.looks == 0


def test_whoever_was_proposed_counts_as_another_one() -> None:
    lease = Held(valid=False)
    replication = leader(lease)
    assert replication.is_alone
    replication.proposed((1, 2))
    assert not replication.is_alone
    replication.durable(5)
    assert fetch(replication, 2, 5)
    assert replication.high_watermark == 5
    replication.proposal_failed(ErrorCode.INELIGIBLE_REPLICA, sent_once=True)
    assert replication.is_alone


def test_a_replica_that_is_about_to_join_is_not_in_sync_yet() -> None:
    replication = leader(Held(valid=False))
    replication.durable(5)
    fetch(replication, 2, 5)
    replication.in_sync_change(5, 1.0, 30.0, lambda node, epoch: True)
    replication.advance()
    assert replication.is_waiting
    assert replication.high_watermark == 0


def test_one_that_the_others_left_is_alone_from_then_on() -> None:
    lease = Held(valid=False)
    replication = leader(lease, (1, 2))
    replication.durable(5)
    replication.adopt((1, 2, 3), (1,), 1)
    assert replication.high_watermark == 0
    replication.adopt((1, 2, 3), (1, 3), 2)
    fetch(replication, 3, 5)
    assert replication.high_watermark == 5


def test_one_that_does_not_lead_is_not_alone() -> None:
    replication = leader(Held())
    replication.resign(2, 6)
    assert not replication.is_alone


def test_without_other_voters_its_word_is_always_enough() -> None:
    replication = leader(None)
    assert not replication.is_alone
    assert not replication.lacks_lease()
    assert replication.durable(5)
