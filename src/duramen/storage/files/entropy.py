"""The Entropy port on this machine, for the server and for a log inside a program."""

from __future__ import annotations

import os
import random


class SystemEntropy:
    """The kernel's randomness for identities, a generator for jitter."""

    def random_bytes(self, length: int) -> bytes:
        return os.urandom(length)

    def uniform(self, low: float, high: float) -> float:
        return random.uniform(low, high)
