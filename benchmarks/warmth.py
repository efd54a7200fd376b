"""Owns when a broker counts as warm: its rate no longer rises. A JVM compiles its hot code only after many requests."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

MINIMUM_ROUNDS = 6
"""Fewer readings of a warm-up say nothing: one of them is noise."""
GAIN = 1.03
"""What is faster by less than this is as fast as before, as far as these machines can tell."""
RISE = 1.08
"""By how much the last rounds of a scenario are above the first when its broker was still getting faster."""


def levelled(rates: Sequence[float]) -> bool:
    """Whether a warm-up may end: the last three readings together are no faster than the three before them."""
    if len(rates) < MINIMUM_ROUNDS:
        return False
    return statistics.mean(rates[-3:]) < GAIN * statistics.mean(rates[-6:-3])


def gained(rates: Sequence[float]) -> bool:
    """Whether the last unmeasured round of a scenario was still faster than all before it."""
    return len(rates) > 1 and rates[-1] >= GAIN * max(rates[:-1])


def still_rises(rates: Sequence[float]) -> bool:
    """Whether measured rounds got faster to the end: every one of the last two above every one of the first two."""
    if len(rates) < 4 or min(rates[-2:]) <= max(rates[:2]):
        return False
    return statistics.mean(rates[-2:]) >= RISE * statistics.mean(rates[:2])
