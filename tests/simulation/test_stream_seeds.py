"""Simulated worlds of streams that are closed, raced for, truncated, opened for one writer, and read by a gateway."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from duramen.sim.check.coverage import STREAM_STATES
from duramen.sim.check.stream_book import STREAM_INVARIANTS
from duramen.sim.mutations.stream_mutations import STREAM_GUARDS
from duramen.sim.run.campaign import Violation, jobs_for, run_one
from duramen.sim.run.cluster_simulation import simulate_cluster
from duramen.sim.run.simulation import simulate
from duramen.sim.world.plan import KINDS

SEEDS = (9, 23)
FOUND = (462,)
"""Seeds that have shown something; docs/internals/sim.md says what."""
SEARCHED = 20
"""Seeds within which the absence of a guard shows."""
SHOWN_BY = {"stable-opening": 3, "stable-close": 8, "position-checked": 23, "place-of-time": 10}
"""From which seed on they are searched; without an entry: from the first."""


def test_streams_keep_their_promises_and_every_step_occurs() -> None:
    states: Counter[str] = Counter()
    for seed in SEEDS:
        states.update(simulate(seed, KINDS["streams"].single).states)
    assert {state for state in STREAM_STATES if not states[state]} == set()


@pytest.mark.parametrize("seed", FOUND)
def test_what_a_seed_has_shown_does_not_come_back(seed: int) -> None:
    simulate(seed, KINDS["streams"].single)


def test_a_history_of_streams_repeats() -> None:
    plan = KINDS["streams"].single
    assert simulate(6, plan).digest == simulate(6, plan).digest


def test_streams_of_three_nodes_keep_their_promises() -> None:
    states = simulate_cluster(7, replace(KINDS["streams"].cluster, nodes=3)).states
    assert states["fenced writer refused"]
    assert states["append expected another end"]


@pytest.mark.parametrize("guard", STREAM_GUARDS)
def test_without_the_guard_the_invariant_named_breaks_first(guard: str) -> None:
    first = SHOWN_BY.get(guard, 1)
    outcomes = (run_one(job) for job in jobs_for(range(first, first + SEARCHED), twice_every=1, guard=guard))
    broken = (outcome for outcome in outcomes if isinstance(outcome, Violation))
    named = next(outcome for outcome in broken if outcome.invariant not in STREAM_GUARDS[guard].also)
    assert named.invariant == STREAM_GUARDS[guard].caught_by, named.detail


def test_every_invariant_has_a_guard_that_it_catches() -> None:
    assert {guard.caught_by for guard in STREAM_GUARDS.values()} == {*STREAM_INVARIANTS, "TruncationExact"}
