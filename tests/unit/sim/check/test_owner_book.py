"""What the book of a shared group notices."""

from __future__ import annotations

import pytest

from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated, Ledger
from duramen.sim.check.owner_book import OWNER_INVARIANTS, OwnerBook

ONE, TWO, THREE = (TopicPartition("t", number) for number in range(3))


@pytest.fixture
def book() -> OwnerBook:
    return OwnerBook(Ledger({"t"}), "g")


def broken(violated: pytest.ExceptionInfo[InvariantViolated]) -> str:
    assert violated.value.invariant in OWNER_INVARIANTS
    return violated.value.invariant


def test_a_partition_has_one_owner_an_epoch(book: OwnerBook) -> None:
    book.claimed("a", 1, [ONE], 0.0, 0.0)
    book.claimed("a", 1, [ONE], 0.0, 0.0)
    book.claimed("b", 2, [ONE], 0.0, 0.0)
    with pytest.raises(InvariantViolated) as violated:
        book.claimed("c", 2, [ONE], 0.0, 0.0)
    assert broken(violated) == "OneOwner"


def test_who_was_fenced_commits_nothing(book: OwnerBook) -> None:
    book.claimed("a", 1, [ONE], 0.0, 0.0)
    early = book.ledger.facts
    book.claimed("b", 2, [ONE], 0.0, 0.0)
    book.commit_taken("a", 1, ONE, early)  # it may have been there before
    book.commit_taken("b", 1, ONE, book.ledger.facts)  # the epoch in which it knows to be, of what it still owns
    with pytest.raises(InvariantViolated) as violated:
        book.commit_taken("a", 1, ONE, book.ledger.facts)
    assert broken(violated) == "OneOwner"


def test_epochs_of_a_group_never_go_back(book: OwnerBook) -> None:
    book.joined("a", 3, 0, 0.0)
    book.claimed("a", 3, [ONE], 0.0, 9.0)
    with pytest.raises(InvariantViolated) as violated:
        book.joined("b", 2, book.ledger.facts, 1.0)
    assert broken(violated) == "OneOwner"


def test_a_group_that_was_empty_may_change_its_type_and_begin_anew(book: OwnerBook) -> None:
    book.is_mixed = True
    book.joined("a", 3, 0, 0.0)
    book.claimed("a", 3, [ONE], 0.0, 9.0)
    book.released("a")
    book.joined("b", 1, book.ledger.facts, 1.0)
    book.claimed("b", 3, [ONE], 1.0, 9.0)


@pytest.mark.parametrize("epoch", [2, 3])
def test_a_group_whose_sessions_are_all_over_may_begin_anew(book: OwnerBook, epoch: int) -> None:
    book.joined("a", 3, 0, 0.0)
    book.claimed("a", 3, [ONE], 0.0, 1.0)
    book.joined("b", epoch, book.ledger.facts, 2.0)
    book.claimed("b", 3, [ONE], 2.0, 9.0)
    with pytest.raises(InvariantViolated) as violated:
        book.claimed("c", 3, [ONE], 9.0, 9.0)
    assert broken(violated) == "OneOwner"


@pytest.mark.parametrize("owned", [{"a": {ONE, TWO, THREE}, "b": set()}, {"a": {ONE}, "b": {TWO}}])
def test_shares_that_are_not_even_or_leave_something_out(
    book: OwnerBook, owned: dict[str, set[TopicPartition]]
) -> None:
    with pytest.raises(InvariantViolated) as violated:
        book.check_even(owned, [ONE, TWO, THREE])
    assert broken(violated) == "Settles"


def test_only_who_is_new_is_given_something(book: OwnerBook) -> None:
    before = {"a": {ONE, TWO}, "b": {THREE}}
    book.check_moved(before, {"a": {ONE}, "b": {THREE}, "c": {TWO}})
    with pytest.raises(InvariantViolated) as violated:
        book.check_moved(before, {"a": {THREE}, "b": {ONE}, "c": {TWO}})
    assert broken(violated) == "Settles"


def test_a_partition_that_another_member_has_not_given_up(book: OwnerBook) -> None:
    book.claimed("a", 1, [ONE], 0.0, 1.0)
    book.claimed("b", 2, [ONE], 1.0, 2.0)  # the session of the other one may be over
    book.released("b")
    book.claimed("a", 3, [ONE], 1.1, 2.1)
    with pytest.raises(InvariantViolated) as violated:
        book.claimed("b", 4, [ONE], 2.0, 3.0)
    assert broken(violated) == "OneOwner"
