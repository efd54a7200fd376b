"""The topics of a simulated world, as its seed draws them, and what is promised of each."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from duramen.ports import Clock
from duramen.sim.check.invariants import Ledger, Retention
from duramen.sim.workload.compacted_workload import COMPACTED
from duramen.sim.workload.timestamp_faults import Stamps
from duramen.sim.workload.workload import Scene
from duramen.sim.world.plan import Plan

STABLE, PAGE_CACHE, EXPIRING = "stable", "page-cache", "expiring"
COMPACTED_TOO = 0.4
"""Share of the topics with retention by time that are compacted, too."""


def draw_scene(plan: Plan, random: Random, seed: int, clock: Clock, note: Callable[[str], None]) -> Scene:
    """The topics of this seed, and what is promised of them."""
    drawn = Random(random.getrandbits(64))
    topics = {STABLE: plan.partitions} | ({PAGE_CACHE: 1} if plan.page_cache else {})
    size = str(plan.segment_bytes or random.choice((1000, 3000, 10000)))
    configs = {name: {"internal.segment.bytes": size} for name in (STABLE, PAGE_CACHE, EXPIRING)}
    configs[PAGE_CACHE]["duramen.ack.durability"] = "page-cache"
    retention: dict[str, Retention] = {}
    limits = Retention()
    if plan.has("expiring", random):
        limits = random.choice(
            (Retention(ms=random.choice((300, 1500, 10_000))), Retention(bytes=random.randint(1, 8000)))
        )
        topics[EXPIRING] = 1
        retention[EXPIRING] = limits
        configs[EXPIRING] |= {"retention.ms": str(limits.ms), "retention.bytes": str(limits.bytes)}
    aging = limits.ms >= 0 and Random(f"compact,delete in {seed}").random() < COMPACTED_TOO
    if aging:
        # Of keys of their own, so that compaction takes nothing; and each batch is a segment, which goes as a whole.
        configs[EXPIRING] |= {"cleanup.policy": "compact,delete", "internal.segment.bytes": "1"}
    stable = {STABLE, EXPIRING}
    if not plan.has("cached compaction", Random(f"compaction of {seed}")):
        stable.add(COMPACTED)
    ledger = Ledger(stable, retention)
    # Drawn apart, so that worlds with ordinary timestamps are what they were before there were others.
    times = Random(f"times of {seed}")
    # A segment goes as a whole: of one with both kinds, what has no timestamp may go early.
    stamps = Stamps(times, odd=plan.has("odd times", times), alike=(EXPIRING,))
    if aging:
        stamps.aging = EXPIRING
    return Scene(drawn, clock, ledger, note, topics, configs, stamps)
