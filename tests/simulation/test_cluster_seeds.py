"""Simulated clusters: three nodes of one metadata quorum, what goes wrong among them, and every promise holds."""

from __future__ import annotations

import pytest

from duramen.sim.run.cluster_simulation import simulate_cluster
from duramen.sim.world.plan import ClusterPlan


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_nodes_that_were_formatted_together_decide_together(nodes: int) -> None:
    result = simulate_cluster(1, ClusterPlan(nodes=nodes, faults=0, changes=3))
    assert result.deaths in (0, nodes)
    assert result.states["elected"] >= 1


def test_the_same_seed_is_the_same_history() -> None:
    first = simulate_cluster(2)
    assert simulate_cluster(2).digest == first.digest
    assert simulate_cluster(3).digest != first.digest


def test_a_reader_behind_a_fetched_snapshot_goes_on_at_its_end() -> None:
    """It was told of the snapshot's end first, looked for records that the new log does not have, and gave up."""
    for seed in (3, 4):
        assert simulate_cluster(seed).states["snapshot-loaded"]


def test_what_a_deposed_leader_had_is_not_taken_for_the_last_record_of_a_snapshot() -> None:
    """Its end was where the new leader's log began, which says of an epoch before it that it ends there."""
    simulate_cluster(77)
