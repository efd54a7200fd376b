"""What a guard is that a simulation can remove."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from duramen.sim.world.plan import Plan


class Guard(ABC):
    """Something that keeps a promise; its docstring says what happens without it.

    owner, method: what is replaced. caught_by: the invariant that breaks. also: those that some worlds show before it.
    plan: of the worlds in which to look for it. twice: whether it takes two runs of a seed.
    """

    owner: Any
    method: str
    caught_by: str
    also: tuple[str, ...] = ()
    plan = Plan()
    twice = False

    @abstractmethod
    def replacement(self, original: Any) -> Any:
        """The method without the guard."""

    def parts(self) -> list[tuple[Any, str, Any]]:
        """(owner, name, replacement) of everything that is replaced."""
        return [(self.owner, self.method, self.replacement(getattr(self.owner, self.method)))]
