"""The Entropy port from a seed."""

from __future__ import annotations

from random import Random


class SimEntropy:
    """Identities and jitter that repeat under the same seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def random_bytes(self, length: int) -> bytes:
        """See ports.Entropy."""
        return self._random.randbytes(length)

    def uniform(self, low: float, high: float) -> float:
        """See ports.Entropy."""
        return self._random.uniform(low, high)
