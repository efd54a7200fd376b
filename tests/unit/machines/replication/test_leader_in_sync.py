"""Who is in sync: joining, leaving, and proposals whose outcome is not known."""

from __future__ import annotations

import pytest

from duramen.errors import BugError, ErrorCode
from duramen.machines.replication.leader import WAITED_FOR_S, Replication

LAG = 30.0


class World:
    """A leader (node 1) of three copies, its log end and the time."""

    def __init__(self, isr: tuple[int, ...] = (1, 2, 3), end: int = 0) -> None:
        self.now = 1000.0
        self.end = end
        self.refused: set[int] = set()
        self.replication = Replication(1)
        self.replication.lead(5, (1, 2, 3), isr, 0, end, end)

    def append(self, count: int = 1) -> None:
        """Some records, durable at once."""
        self.end += count
        self.replication.durable(self.end)

    def fetch(self, *nodes: int, end: int | None = None, epoch: int = 7) -> None:
        for node in nodes:
            self.replication.fetched(node, epoch, self.end if end is None else end, self.end, self.now)

    def change(self) -> tuple[int, ...] | None:
        isr = self.replication.in_sync_change(self.end, self.now, LAG, lambda node, epoch: node not in self.refused)
        self.replication.advance()
        return isr

    def propose(self) -> tuple[int, ...]:
        isr = self.change()
        assert isr is not None
        self.replication.proposed(isr)
        return isr

    def commit(self, isr: tuple[int, ...]) -> None:
        self.replication.adopt((1, 2, 3), isr, self.replication.partition_epoch + 1)

    @property
    def high(self) -> int:
        return self.replication.high_watermark


# ---- leaving -----------------------------------------------------------------------------------------------------


def test_a_replica_leaves_when_it_has_lacked_an_append_for_so_long() -> None:
    world = World()
    world.fetch(2, 3)
    world.now += 1000
    assert world.change() is None, "there was nothing to fetch"
    world.append()
    world.fetch(2)
    assert world.change() is None
    world.now += LAG
    assert world.change() is None
    world.now += 1
    assert world.change() == (1, 2)


def test_it_is_the_append_that_it_lacks_that_counts_not_when_it_was_last_heard() -> None:
    world = World()
    world.append()
    world.fetch(2, 3)
    for _ in range(10):
        world.append()
        world.now += LAG / 2
        world.fetch(2, end=world.end - 1)
        world.fetch(3, end=world.end - 1)
        assert world.change() is None, "it is always one behind, and never for long"
    for _ in range(5):
        world.append()
        world.now += LAG / 4
        world.fetch(2)
        world.fetch(3, end=5)
    assert world.change() == (1, 2)


def test_one_that_never_fetches_leaves_where_there_is_something_to_fetch() -> None:
    world = World(end=4)
    assert world.change() is None
    world.fetch(2)
    world.now += LAG + 1
    assert world.change() == (1, 2)


def test_until_the_metadata_says_so_the_one_that_leaves_is_counted() -> None:
    world = World()
    world.append(5)
    world.fetch(2)
    world.fetch(3, end=3)
    world.change()
    assert world.high == 3
    world.now += LAG + 1
    assert world.propose() == (1, 2)
    world.append()
    world.fetch(2)
    assert world.high == 3
    assert world.change() is None, "one proposal at a time"
    world.commit((1, 2))
    assert world.high == 6


# ---- joining -----------------------------------------------------------------------------------------------------


def test_a_replica_joins_with_all_below_the_high_watermark() -> None:
    world = World((1, 2))
    world.append(10)
    world.fetch(2, end=8)
    world.fetch(3, end=7)
    assert world.change() is None
    world.fetch(3, end=8)
    assert world.change() == (1, 2, 3)


def test_a_replica_joins_with_all_that_was_there_when_the_epoch_began() -> None:
    """The high watermark that a new leader knows may be older than what is committed."""
    world = World((1,), end=6)
    world.replication.fewest = 2
    world.replication.high_watermark = 2
    world.fetch(2, end=5)
    assert world.change() is None
    world.fetch(2)
    assert world.change() == (1, 2)


@pytest.mark.parametrize("reason", ["may not", "never fetched"])
def test_who_may_not_join_stays_out(reason: str) -> None:
    world = World((1, 2))
    world.refused = {3} if reason == "may not" else set()
    if reason == "may not":
        world.fetch(3)
    assert world.change() is None


def test_the_one_that_is_proposed_is_counted_at_once() -> None:
    world = World((1,))
    world.append(4)
    world.fetch(2)
    assert world.propose() == (1, 2)
    world.append(4)
    assert world.high == 4
    world.fetch(2)
    assert world.high == 8
    world.commit((1, 2))
    world.append()
    assert world.high == 8


def test_the_high_watermark_waits_for_one_that_is_about_to_join() -> None:
    world = World((1,))
    world.append(10)
    world.fetch(2, end=9)
    world.append(1)
    world.now += 0.1
    world.fetch(2, end=10)
    assert world.change() is None, "it lacks what is below the high watermark"
    world.append(5)
    assert world.high == 11
    world.fetch(2, end=11)
    assert world.change() == (1, 2)
    world.append()
    world.now += WAITED_FOR_S + 0.1
    assert world.change() == (1, 2)
    assert world.high == 17, "it has lacked something for too long to be waited for"


def test_who_may_not_join_is_not_waited_for() -> None:
    world = World((1,))
    world.refused = {2}
    world.fetch(2)
    assert world.change() is None
    world.append()
    assert world.high == 1


# ---- what becomes of a proposal ----------------------------------------------------------------------------------


def joining() -> World:
    world = World((1,))
    world.fetch(2)
    assert world.propose() == (1, 2)
    return world


@pytest.mark.parametrize(
    "error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.NEW_LEADER_ELECTED]
)
def test_where_newer_metadata_should_come_the_larger_set_stays_until_it_is_here(error: ErrorCode) -> None:
    world = joining()
    world.replication.proposal_failed(error, sent_once=True)
    world.append()
    assert world.high == 0
    world.refused = {2}
    assert world.change() == (1,), "it may never come: who refused may be deposed"
    world.commit((1,))
    world.refused = set()
    assert world.high == 1
    world.fetch(2)
    assert world.change() == (1, 2)


@pytest.mark.parametrize("error", [ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT])
def test_one_whose_outcome_is_unknown_is_made_again_and_counts_meanwhile(error: ErrorCode) -> None:
    world = joining()
    world.replication.proposal_failed(error)
    world.append()
    assert world.high == 0
    assert world.propose() == (1, 2)
    world.commit((1, 2))
    world.fetch(2)
    assert (world.high, world.change()) == (1, None)


def test_who_cannot_join_any_more_counts_until_no_copy_of_the_proposal_can_be_taken() -> None:
    world = joining()
    world.replication.proposal_failed(ErrorCode.REQUEST_TIMED_OUT)
    world.refused = {2}
    assert world.propose() == (1,), "which moves the partition epoch"
    world.append()
    assert world.high == 0
    world.commit((1,))
    assert (world.high, world.change()) == (1, None)


def test_a_refused_join_is_dropped_where_it_was_sent_once() -> None:
    world = joining()
    world.append()
    world.replication.proposal_failed(ErrorCode.INELIGIBLE_REPLICA, sent_once=True)
    world.replication.advance()
    world.refused = {2}
    assert (world.high, world.change()) == (1, None)


@pytest.mark.parametrize("before", [False, True])
def test_a_refused_join_of_which_a_copy_may_be_on_its_way_counts_on(before: bool) -> None:
    world = joining()
    if before:
        world.replication.proposal_failed(ErrorCode.REQUEST_TIMED_OUT)
        assert world.propose() == (1, 2)
    world.append()
    world.replication.proposal_failed(ErrorCode.INELIGIBLE_REPLICA, sent_once=before)
    world.replication.advance()
    assert world.high == 0
    world.refused = {2}
    assert world.propose() == (1,)


def test_a_late_answer_says_nothing_of_another_proposal() -> None:
    world = joining()
    world.commit((1, 2))
    world.replication.proposal_failed(ErrorCode.INELIGIBLE_REPLICA)
    assert world.replication.maximal_isr == {1, 2}
    assert world.change() is None


def test_nothing_is_proposed_beside_another_one_or_by_a_follower() -> None:
    world = joining()
    with pytest.raises(BugError):
        world.replication.proposed((1,))
    world.replication.resign(2, 6, (1, 2, 3), (1, 2), 0)
    assert world.change() is None
    assert world.replication.maximal_isr == {1, 2}


@pytest.mark.parametrize("answered", [False, True])
def test_who_is_fenced_and_leads_its_epoch_on_counts_what_it_proposed(answered: bool) -> None:
    """Nobody else could lead, so the partition has the same epochs: a copy of the proposal may be taken still."""
    world = joining()
    replication = world.replication
    if answered:
        replication.proposal_failed(ErrorCode.REQUEST_TIMED_OUT)
    replication.resign(-1, 5, (1, 2, 3), (1,), world.end)
    replication.proposal_failed(ErrorCode.INELIGIBLE_REPLICA, sent_once=True)
    replication.lead(5, (1, 2, 3), (1,), replication.partition_epoch, world.end, world.end)
    world.append()
    assert (world.high, replication.maximal_isr) == (0, {1, 2})
    assert world.propose() == (1,), "which moves the partition epoch"
    world.commit((1,))
    assert world.high == world.end


@pytest.mark.parametrize(("epoch", "partition_epoch"), [(6, 1), (5, 1), (6, 0)])
def test_who_leads_in_another_epoch_counts_no_earlier_proposal(epoch: int, partition_epoch: int) -> None:
    world = joining()
    world.replication.resign(-1, 5, (1, 2, 3), (1,), world.end)
    world.replication.lead(epoch, (1, 2, 3), (1,), partition_epoch, world.end, world.end)
    assert world.replication.maximal_isr == {1}


def test_another_epoch_starts_with_what_is_committed() -> None:
    world = joining()
    world.replication.lead(6, (1, 2, 3), (1,), 1, 0, 0)
    world.append()
    assert (world.high, world.replication.maximal_isr) == (1, {1})
    assert world.replication.broker_epoch_of(2) == -1
    world.fetch(2, epoch=9)
    assert world.replication.broker_epoch_of(2) == 9
