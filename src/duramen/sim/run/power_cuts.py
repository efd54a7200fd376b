"""A power cut in every disk call of one run: the run is made once to count its calls, then once for each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from duramen.errors import check
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.run.simulation import simulate
from duramen.sim.world.plan import Plan

THOUSAND = Plan(records=500, members=1, page_cache=False, partitions=2, churn=False, calm=True, segment_bytes=20000)
"""A thousand records into one topic, and nothing goes wrong but the one cut."""


def cut_everywhere(
    seed: int,
    step: int = 1,
    *,
    first: int = 1,
    plan: Plan = THOUSAND,
    progress: Callable[[str], None] = lambda line: None,
) -> tuple[int, int]:
    """Cut at call `first` and every `step`-th after it; returns the calls of the uncut run and the runs made.

    InvariantViolated names the call at which a promise broke.
    """
    calls = simulate(seed, plan).disk_calls
    runs = 0
    for number in range(first, calls + 1, step):
        try:
            result = simulate(seed, replace(plan, cut_at=number))
        except InvariantViolated as violated:
            raise InvariantViolated(violated.invariant, f"cut at call {number}: {violated.detail}") from violated
        check(result.deaths == 1, f"the cut at call {number} happened")
        runs += 1
        if runs % 100 == 0:
            progress(f"{runs} cuts, at call {number} of {calls}")
    return calls, runs
