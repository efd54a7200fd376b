"""What an exhibit is: a story with a promise in it, where the failure was published, and the guard to take out.

    @exhibit("name", source="https://...", guard="what keeps it", without=Replaced(owner, "method", substitute))
    def story() -> None:
        '''What happened to others.'''
        ...
        promise(there == acknowledged, "every acknowledged record is there")

The story runs as it stands, and no promise may break; and once without the guard, where one must, and by `promise`: an
exhibit that fails in another way would show nothing. Where several things guard, `also` has each of the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
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

    def __str__(self) -> str:
        return f"{self.owner.__name__.rpartition('.')[2]}.{self.name}"

    @contextlib.contextmanager
    def out(self) -> Iterator[None]:
        original = self.owner.__dict__[self.name]
        setattr(self.owner, self.name, self.substitute(original))
        try:
            yield
        finally:
            setattr(self.owner, self.name, original)


def during(owner: Any, name: str, instead: Any) -> Callable[[Any], Any]:
    """A substitute that is the original, but while it runs `instead` stands in the place of what it uses."""

    def substitute(original: Any) -> Any:
        def run(*arguments: Any, **named: Any) -> Any:
            with Replaced(owner, name, lambda _: instead).out():
                return original(*arguments, **named)

        return run

    return substitute


Way = tuple[Replaced, ...]
"""What is replaced at the same time for the guard to be out."""


@dataclass(frozen=True)
class Exhibit:
    """One failure. source: where it was made public. guard: what prevents it here, in words.

    ways: to be without it; the story has to break in each.
    """

    name: str
    source: str
    guard: str
    ways: tuple[Way, ...]
    story: Callable[[], None]


@contextlib.contextmanager
def unguarded(way: Way) -> Iterator[None]:
    """All that this way replaces is out."""
    with contextlib.ExitStack() as stack:
        for replaced in way:
            stack.enter_context(replaced.out())
        yield


EXHIBITS: list[Exhibit] = []


def exhibit(
    name: str, *, source: str, guard: str, without: Replaced | Way, also: Sequence[Replaced | Way] = ()
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Put a story into the museum. also: further ways to be without the guard, each on its own."""

    def add(story: Callable[[], None]) -> Callable[[], None]:
        ways = tuple(way if isinstance(way, tuple) else (way,) for way in (without, *also))
        EXHIBITS.append(Exhibit(name, source, guard, ways, story))
        return story

    return add
