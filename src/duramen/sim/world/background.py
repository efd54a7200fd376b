"""What a simulated node does in the background: how often it scrubs, takes metadata snapshots and checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

from duramen.sim.world.plan import Plan
from duramen.storage import DirectorySettings, JournalLimits, Scrubber

SHARES = {"scrubber": 0.5, "snapshots": 0.5, "checkpoints": 0.4}
"""Share of the worlds in which each is often at work."""

FEW_ENTRIES = 0.05
"""Share of the worlds whose journal is full now and then."""

FIRST_SCRUB_DELAY_MS = 500
"""A simulated node does not live for the minute after which scrubbing would begin."""


def background(seed: int, plan: Plan) -> dict[str, str]:
    """Settings of a world, drawn apart from everything else in it."""
    random = Random(f"the background of {seed}")
    drawn = {name: random.random() < share for name, share in SHARES.items()}
    chosen = {name for name in SHARES if name in plan.features or (plan.churn and drawn[name])}
    settings: dict[str, str] = {}
    if "scrubber" in chosen:
        settings["duramen.scrub.bytes.per.second"] = random.choice(("20000", "1000000"))
        settings["duramen.scrub.interval.ms"] = "1000"
    if "snapshots" in chosen:
        settings["metadata.log.max.record.bytes.between.snapshots"] = random.choice(("300", "1000", "1000000"))
        settings["metadata.log.max.snapshot.interval.ms"] = random.choice(("300", "2000"))
        settings["metadata.max.retention.bytes"] = random.choice(("1000", "4000", "-1"))
    if "checkpoints" in chosen:
        settings["log.flush.offset.checkpoint.interval.ms"] = random.choice(("500", "2000"))
    return settings


@contextlib.contextmanager
def few_entries(seed: int, plan: Plan) -> Iterator[None]:
    """In some worlds the journal takes very few entries in this block, far fewer than a setting may ask for.

    Then it is full again and again: writers have to wait, and batches are refused.
    """
    random = Random(f"entries of {seed}")
    drawn = random.random() < FEW_ENTRIES
    if "few entries" not in plan.features and not (plan.churn and drawn):
        yield
        return
    bound = random.choice((16, 24, 40))
    before: Any = DirectorySettings.__dict__["journal_limits"]

    def bounded(settings: DirectorySettings) -> JournalLimits:
        limits: JournalLimits = before.fget(settings)
        return replace(limits, entries=bound)

    setattr(DirectorySettings, "journal_limits", property(bounded))  # noqa: B010 - mypy knows it as read-only
    try:
        yield
    finally:
        setattr(DirectorySettings, "journal_limits", before)  # noqa: B010


@contextlib.contextmanager
def scrubbing_soon() -> Iterator[None]:
    """Let the scrubber begin early in this block, and write down after every job how far it is."""
    before = Scrubber.first_delay_ms, Scrubber.progress_interval_ms
    Scrubber.first_delay_ms, Scrubber.progress_interval_ms = FIRST_SCRUB_DELAY_MS, 0
    try:
        yield
    finally:
        Scrubber.first_delay_ms, Scrubber.progress_interval_ms = before
