"""Simulated clusters: nodes of one metadata quorum, what goes wrong among them, and every promise holds."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from duramen.sim.__main__ import HELD, SEARCHED_SEEDS, main
from duramen.sim.check.quorum_watch import QUORUM_INVARIANTS
from duramen.sim.check.replica_watch import REPLICA_INVARIANTS
from duramen.sim.faults.cluster_faults import KINDS
from duramen.sim.mutations.cluster_mutations import CLUSTER_GUARDS
from duramen.sim.mutations.coordinator_mutations import ALL_CLUSTER_GUARDS
from duramen.sim.mutations.replica_mutations import REPLICA_GUARDS
from duramen.sim.run.campaign import Violation, jobs_for, run_one
from duramen.sim.run.cluster_simulation import simulate_cluster
from duramen.sim.world.plan import ClusterPlan

SOON_CAUGHT = (
    "answered-committed",
    "lease-ends",
    "longest-log",
    "majority-elects",
    "one-timer",
    "reader-first",
    "refused-proves",
    "restart-epoch",
    "snapshot-image",
    "synced-ends",
    "synced-vote",
    "true-reasons",
)
"""Guards whose absence shows in the first few seeds."""


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_nodes_that_were_formatted_together_decide_together(nodes: int) -> None:
    result = simulate_cluster(1, ClusterPlan(nodes=nodes, faults=0, changes=3))
    assert result.deaths in (0, nodes)
    assert result.states["elected"] >= 1


def test_the_same_seed_is_the_same_history() -> None:
    first = simulate_cluster(2)
    assert simulate_cluster(2).digest == first.digest
    assert simulate_cluster(3).digest != first.digest


def test_a_cluster_survives_every_kind_of_fault() -> None:
    inflicted: Counter[str] = Counter()
    states: Counter[str] = Counter()
    every = [kind for kind in KINDS if kind != "wiped disk"]
    groups = [every[first :: len(every) // 2] for first in range(len(every) // 2)]
    for seed, kinds in enumerate(groups, 1):
        result = simulate_cluster(seed, ClusterPlan(nodes=3, faults=9, changes=4, kinds=kinds, small_snapshots=True))
        inflicted.update(result.faults)
        states.update(result.states)
    found = {kind.removesuffix(", leader") for kind in inflicted}
    for kind in (kind for kind in every if kind not in found):  # those with little weight, alone
        plan = ClusterPlan(nodes=3, faults=2, changes=4, kinds=(kind,))
        assert {kind, f"{kind}, leader"} & simulate_cluster(1, plan).faults.keys()
    assert states["snapshot-loaded"] > 0


@pytest.mark.parametrize("seed", [1, 2])
def test_an_empty_disk_gets_everything_and_votes_no_more(seed: int) -> None:
    """It knew no voters yet, and asked now this, now that bootstrap server for pieces of the leader's snapshot."""
    plan = ClusterPlan(nodes=3, faults=4, changes=8, kinds=("wiped disk", "pause"), small_snapshots=True)
    result = simulate_cluster(seed, plan)
    assert result.states["snapshot-loaded"] > 0
    assert {"wiped disk", "wiped disk, leader"} & result.faults.keys()


def test_a_reader_behind_a_fetched_snapshot_goes_on_at_its_end() -> None:
    """It was told of the snapshot's end first, looked for records that the new log does not have, and gave up."""
    plan = ClusterPlan(nodes=3, faults=4, changes=6, kinds=("away",), small_snapshots=True)
    assert simulate_cluster(3, plan).states["snapshot-loaded"] > 0


def test_the_command_runs_clusters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "4", "--nodes", "3"]) == HELD
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"history {simulate_cluster(4, ClusterPlan(nodes=3, brokers=None)).digest}"


@pytest.mark.parametrize("guard", SOON_CAUGHT)
def test_without_the_guard_the_invariant_named_breaks_first(guard: str) -> None:
    is_caught_as_named(guard)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(os.environ.get("DURAMEN_ALL_GUARDS") != "1", reason="DURAMEN_ALL_GUARDS=1 removes every guard")
@pytest.mark.parametrize("guard", sorted(ALL_CLUSTER_GUARDS.keys() - set(SOON_CAUGHT)))
def test_without_another_guard_the_invariant_named_breaks_first(guard: str) -> None:
    is_caught_as_named(guard)


def is_caught_as_named(guard: str) -> None:
    outcomes = (run_one(job) for job in jobs_for(range(1, SEARCHED_SEEDS + 1), twice_every=1, guard=guard))
    broken = (outcome for outcome in outcomes if isinstance(outcome, Violation))
    named = next(outcome for outcome in broken if outcome.invariant not in ALL_CLUSTER_GUARDS[guard].also)
    assert named.invariant == ALL_CLUSTER_GUARDS[guard].caught_by, named.detail


def test_every_invariant_of_the_quorum_has_a_guard_that_it_catches() -> None:
    assert {guard.caught_by for guard in CLUSTER_GUARDS.values()} == set(QUORUM_INVARIANTS)


def test_every_invariant_of_the_copies_has_a_guard_that_it_catches() -> None:
    assert {guard.caught_by for guard in REPLICA_GUARDS.values()} == {*REPLICA_INVARIANTS, "AcknowledgedNeverLost"}
