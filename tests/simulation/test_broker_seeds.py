"""Simulated clusters whose nodes are brokers, too: producers and readers follow the leaders, and promises hold."""

from __future__ import annotations

from collections import Counter

import pytest

from duramen.sim.faults.cluster_faults import KINDS
from duramen.sim.run.cluster_simulation import simulate_cluster
from duramen.sim.world.plan import ClusterPlan


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_brokers_serve_and_begin_again(nodes: int) -> None:
    """Until they are registered they lead nothing: an epoch of before the restart was another process's."""
    result = simulate_cluster(1, ClusterPlan(nodes=nodes, faults=0, changes=3, brokers=True))
    assert result.states["partition led"] >= 4


def test_brokers_survive_every_kind_of_fault() -> None:
    inflicted: Counter[str] = Counter()
    every = sorted(KINDS)
    for seed, first in enumerate(range(5), 16):
        plan = ClusterPlan(nodes=3, faults=7, changes=4, kinds=tuple(every[first::5]), brokers=True, copies=1)
        inflicted.update(simulate_cluster(seed, plan).faults)
    assert len({kind.removesuffix(", leader") for kind in inflicted}) >= 16


@pytest.mark.parametrize("seed", range(1, 9))
def test_copies_outlive_what_goes_wrong(seed: int) -> None:
    result = simulate_cluster(seed, ClusterPlan(nodes=3, faults=2, changes=2, brokers=True))
    assert result.states["ISR changed"]


def test_a_start_knows_all_that_the_node_knew_before() -> None:
    """A new leader told at first of less than its predecessor, which was this node: its topics were unknown to it."""
    simulate_cluster(3, ClusterPlan(nodes=3, faults=3, changes=2, brokers=True))


def test_a_full_disk_of_the_active_controller_has_room_again() -> None:
    """Settings were changed so often that the reserve was gone whenever a checkpoint would have found room."""
    simulate_cluster(3106, ClusterPlan(nodes=3, copies=3, brokers=True))


def test_the_same_seed_is_the_same_history() -> None:
    plan = ClusterPlan(nodes=3, faults=4, brokers=True)
    assert simulate_cluster(7, plan).digest == simulate_cluster(7, plan).digest
