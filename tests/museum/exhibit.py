"""What an exhibit is: a story with a promise in it, where the failure was published, and the guard to take out.

    @exhibit("name", source="https://...", guard="what keeps it", without=Replaced(owner, "method", substitute))
    def story() -> None:
        '''What happened to others.'''
        ...
        promise(there == acknowledged, "every acknowledged record is there")

The story runs twice: as it stands no promise may break; with the guard replaced one must, and by `promise`: an
exhibit that fails in another way would show nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


class BrokenPromiseError(AssertionError):
    """A story's promise did not hold."""


def promise(kept: bool, what: str) -> None:
    """Part of a story: `what` has to be true."""
    if not kept:
        raise BrokenPromiseError(f"not so: {what}")


@dataclass(frozen=True)
class Replaced:
    """A guard's method, and what stands in its place when the guard is out: `substitute(original)` makes it."""

    owner: Any
    name: str
    substitute: Callable[[Any], Any]

    @contextlib.contextmanager
    def out(self) -> Iterator[None]:
        original = self.owner.__dict__[self.name]
        setattr(self.owner, self.name, self.substitute(original))
        try:
            yield
        finally:
            setattr(self.owner, self.name, original)


@dataclass(frozen=True)
class Exhibit:
    """One failure. source: where it was made public. guard: what prevents it here, in words."""

    name: str
    source: str
    guard: str
    without: tuple[Replaced, ...]
    story: Callable[[], None]

    @contextlib.contextmanager
    def unguarded(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for replaced in self.without:
                stack.enter_context(replaced.out())
            yield


EXHIBITS: list[Exhibit] = []


def exhibit(
    name: str, *, source: str, guard: str, without: Replaced | tuple[Replaced, ...]
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Put a story into the museum."""

    def add(story: Callable[[], None]) -> Callable[[], None]:
        removed = without if isinstance(without, tuple) else (without,)
        EXHIBITS.append(Exhibit(name, source, guard, removed, story))
        return story

    return add
