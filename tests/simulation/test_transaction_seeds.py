"""Simulated worlds with transactions, and with groups whose members speak both protocols: every promise holds."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace

import pytest

from duramen.sim.__main__ import SEARCHED_SEEDS
from duramen.sim.check.owner_book import OWNER_INVARIANTS
from duramen.sim.check.transaction_book import TRANSACTION_INVARIANTS
from duramen.sim.mutations.transaction_mutations import TRANSACTION_GUARDS
from duramen.sim.run.campaign import Violation, jobs_for, run_one
from duramen.sim.run.cluster_simulation import simulate_cluster
from duramen.sim.run.simulation import simulate
from duramen.sim.world.plan import KINDS

SEEDS = (1, 2, 3, 4, 5, 10)
REACHED = {
    "transaction committed",
    "transaction aborted",
    "transaction aborted by its coordinator",
    "transaction left open",
    "empty transaction",
    "EndTxn repeated",
    "client died in a transaction",
    "client died with its EndTxn on the way",
    "transactional id begun again",
    "zombie fenced",
    "topic deleted under transactions",
}
"""By the seeds above; the rest needs some dozens."""
SOON_CAUGHT = (
    "offsets-with-records",
    "aborted-list",
    "offsets-wait",
    "verified",
    "lives-epoch",
    "decision-kept",
    "effects-committed",
    "free-first",
    "even-shares",
)
"""Guards whose absence shows in the first few seeds."""


def test_transactions_are_whole_and_every_step_of_theirs_occurs() -> None:
    states: Counter[str] = Counter()
    for seed in SEEDS:
        states.update(simulate(seed, KINDS["transactions"].single).states)
    assert {state for state in REACHED if not states[state]} == set()


def test_a_history_of_transactions_repeats() -> None:
    plan = KINDS["transactions"].single
    assert simulate(3, plan).digest == simulate(3, plan).digest


@pytest.mark.parametrize("seed", [1, 2])
def test_a_shared_group_settles(seed: int) -> None:
    assert simulate(seed, KINDS["groups"].single).states["group settled, and settled again"]


def test_transactions_of_three_nodes_are_whole() -> None:
    """A topic of theirs is deleted, and made again, while a node is away that then loads a snapshot."""
    plan = replace(KINDS["transactions"].cluster, nodes=3)
    assert simulate_cluster(27, plan).states["transaction committed"]


def test_a_disk_is_wiped_when_its_node_is_in_no_isr() -> None:
    """Another one was down as well, and fenced first: the disk that was gone was the last one in sync."""
    plan = replace(KINDS["transactions"].cluster, nodes=3)
    assert simulate_cluster(4011, plan).faults["wiped disk"]


def test_copiers_wait_for_a_producer_that_sleeps() -> None:
    """Its program was at its end when it woke up, and committed."""
    simulate(3096, KINDS["transactions"].single)


def test_a_clock_that_is_set_back_lets_no_transaction_hang() -> None:
    """It had begun at a time that lay ahead, and was as old as its time-out ten minutes later only."""
    simulate(64, KINDS["transactions"].single)


@pytest.mark.parametrize("guard", SOON_CAUGHT)
def test_without_the_guard_the_invariant_named_breaks_first(guard: str) -> None:
    is_caught_as_named(guard)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.environ.get("DURAMEN_ALL_GUARDS") != "1", reason="DURAMEN_ALL_GUARDS=1 removes every guard")
@pytest.mark.parametrize("guard", sorted(TRANSACTION_GUARDS.keys() - set(SOON_CAUGHT)))
def test_without_another_guard_the_invariant_named_breaks_first(guard: str) -> None:
    is_caught_as_named(guard)


def is_caught_as_named(guard: str) -> None:
    outcomes = (run_one(job) for job in jobs_for(range(1, SEARCHED_SEEDS + 1), twice_every=1, guard=guard))
    broken = (outcome for outcome in outcomes if isinstance(outcome, Violation))
    named = next(outcome for outcome in broken if outcome.invariant not in TRANSACTION_GUARDS[guard].also)
    assert named.invariant == TRANSACTION_GUARDS[guard].caught_by, named.detail


def test_every_invariant_has_a_guard_that_it_catches() -> None:
    assert {guard.caught_by for guard in TRANSACTION_GUARDS.values()} == {*TRANSACTION_INVARIANTS, *OWNER_INVARIANTS}
