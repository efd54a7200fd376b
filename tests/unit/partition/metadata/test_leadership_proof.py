"""When a leader knows that it still is one."""

from __future__ import annotations

from duramen.machines.raft.voters import ReplicaKey, Voter, Voters
from duramen.partition.metadata.leadership_proof import LeadershipProof

ONE, TWO, THREE = (ReplicaKey(each, bytes([each] * 16)) for each in (1, 2, 3))
VOTERS = Voters(Voter(key.id, key.directory_id, ()) for key in (ONE, TWO, THREE))


class Leader:
    """Node 1, and what it was told."""

    def __init__(self) -> None:
        self.proof = LeadershipProof()
        self.told: list[bool] = []

    def ask(self) -> None:
        self.proof.ask(self.told.append)

    def fetched(self, key: ReplicaKey, via: object) -> list[bool]:
        self.proof.fetched(key, via)
        self.proof.settle(VOTERS, ONE)
        return self.told


def test_a_fetch_behind_an_answer_proves_it() -> None:
    leader = Leader()
    assert leader.fetched(TWO, "a") == []
    leader.ask()
    assert leader.proof.lacks_answer(TWO)
    leader.proof.answered(TWO, "a")
    assert not leader.proof.lacks_answer(TWO)
    assert leader.told == []
    assert leader.fetched(TWO, "a") == [True]


def test_an_answer_before_the_question_proves_nothing() -> None:
    leader = Leader()
    leader.fetched(TWO, "a")
    leader.proof.answered(TWO, "a")
    leader.ask()
    assert leader.fetched(TWO, "a") == []


def test_a_fetch_by_another_connection_may_be_an_old_one() -> None:
    leader = Leader()
    leader.fetched(TWO, "a")
    leader.ask()
    leader.proof.answered(TWO, "a")
    assert leader.fetched(TWO, "b") == []
    leader.proof.answered(TWO, "a")
    assert leader.fetched(TWO, "b") == []
    leader.proof.answered(TWO, "b")
    assert leader.fetched(TWO, "b") == [True]


def test_who_is_no_voter_proves_nothing() -> None:
    leader = Leader()
    observer = ReplicaKey(2, bytes(16))
    leader.fetched(observer, "a")
    leader.ask()
    leader.proof.answered(observer, "a")
    assert leader.fetched(observer, "a") == []


def test_several_questions_are_answered_together_as_far_as_they_are_proven() -> None:
    leader = Leader()
    leader.fetched(THREE, "a")
    leader.ask()
    leader.ask()
    leader.proof.answered(THREE, "a")
    leader.ask()
    assert leader.fetched(THREE, "a") == [True, True]
    leader.proof.lost()
    assert leader.told == [True, True, False]


def test_another_leadership_begins_without_what_was_known() -> None:
    leader = Leader()
    leader.fetched(TWO, "a")
    leader.ask()
    leader.proof.answered(TWO, "a")
    leader.proof.lost()
    leader.ask()
    assert leader.fetched(TWO, "a") == [False]
