"""What the leader knows of its replicas."""

from __future__ import annotations

import math

from tests.worlds.raft_bench import key, quorum

from duramen.machines.raft.replica_progress import OBSERVER_FORGOTTEN, ReplicaProgress, ReplicaState

VOTERS = quorum(3)


def test_the_majoritys_least_end_the_leaders_own_included() -> None:
    progress = ReplicaProgress(key(1), 0.0)
    assert progress.majority_end(VOTERS, 9) == -1
    progress.acknowledge(key(2), 5, 9, 1.0)
    assert progress.majority_end(VOTERS, 9) == 5
    assert progress.majority_end(VOTERS, 3) == 3
    progress.acknowledge(key(3), 8, 9, 1.0)
    assert progress.majority_end(VOTERS, 9) == 8
    assert progress.majority_end(VOTERS, 3) == 5


def test_neither_an_observer_nor_a_voters_other_disk_counts() -> None:
    progress = ReplicaProgress(key(1), 0.0)
    progress.acknowledge(key(4), 9, 9, 1.0)
    progress.acknowledge(key(2, disk=1), 9, 9, 1.0)
    assert progress.majority_end(VOTERS, 9) == -1
    assert progress.majority_heard(VOTERS) == 0.0


def test_an_end_that_is_smaller_than_before_counts() -> None:
    progress = ReplicaProgress(key(1), 0.0)
    progress.acknowledge(key(2), 8, 9, 1.0)
    progress.acknowledge(key(2), 5, 9, 2.0)
    assert progress.majority_end(VOTERS, 9) == 5


def test_when_a_majority_was_heard() -> None:
    progress = ReplicaProgress(key(1), 10.0)
    assert progress.majority_heard(VOTERS) == 10.0
    progress.fetched(key(3), 11.0)
    assert progress.majority_heard(VOTERS) == 11.0
    progress.fetched(key(2), 12.0)
    assert progress.majority_heard(VOTERS) == 12.0
    progress.excuse(20.0)
    assert progress.majority_heard(VOTERS) == 20.0
    assert ReplicaProgress(key(1), 0.0).majority_heard(quorum(1)) == math.inf


def test_who_has_most_succeeds_first() -> None:
    progress = ReplicaProgress(key(1), 0.0)
    progress.acknowledge(key(3), 5, 9, 1.0)
    assert progress.successors(VOTERS) == (key(3), key(2))


def test_what_describe_quorum_tells() -> None:
    progress = ReplicaProgress(key(1), 0.0)
    progress.acknowledge(key(2), 9, 9, 1.0)
    progress.acknowledge(key(3), 5, 9, 2.0)
    progress.acknowledge(key(7), 4, 9, 2.0)
    assert progress.states(VOTERS, 9, 3.0) == [
        ReplicaState(*key(1), 9, 3.0, 3.0, True),
        ReplicaState(*key(2), 9, 1.0, 3.0, True),
        ReplicaState(*key(3), 5, 2.0, -1.0, True),
        ReplicaState(*key(7), 4, 2.0, -1.0, False),
    ]
    # It has now what the leader had when it fetched before (KIP-836), though not what came since.
    progress.acknowledge(key(3), 9, 12, 4.0)
    assert progress.states(VOTERS, 12, 5.0)[2] == ReplicaState(*key(3), 9, 4.0, 2.0, True)


def test_an_observer_that_is_silent_for_long_is_forgotten_a_voter_is_not() -> None:
    progress = ReplicaProgress(key(1), 0.0)
    progress.acknowledge(key(2), 9, 9, 1.0)
    progress.acknowledge(key(7), 9, 9, 1.0)
    progress.forget_silent_observers(VOTERS, 1.0 + OBSERVER_FORGOTTEN)
    assert len(progress.states(VOTERS, 9, 3.0)) == 4
    progress.forget_silent_observers(VOTERS, 2.0 + OBSERVER_FORGOTTEN)
    assert [state.id for state in progress.states(VOTERS, 9, 3.0)] == [1, 2, 3]
