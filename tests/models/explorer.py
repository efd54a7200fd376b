"""Breadth-first search through all states of a model; it keeps the way to each: a violation comes with its story."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import groupby, permutations
from typing import Any, Generic, TypeVar

S = TypeVar("S", bound=Hashable)
Step = tuple[str, S]
"""What happened, and the state behind it."""


@dataclass
class Exploration(Generic[S]):
    """What a search found. states: how many it saw; whole: whether these are all; story: steps to the violation."""

    states: int = 0
    depth: int = 0
    whole: bool = True
    violation: str | None = None
    story: list[str] = field(default_factory=list)


def explore(
    first: S,
    steps: Callable[[S], Iterable[Step[S]]],
    violation: Callable[[S], str | None],
    canonical: Callable[[S], S] = lambda state: state,
    most: int = 5_000_000,
) -> Exploration[S]:
    """Every state that `steps` can lead to, nearest first, until one is a `violation`, or there are `most`.

    canonical: the one of several states that stands for all of them, because they differ by names alone.
    """
    found: Exploration[S] = Exploration()
    first = canonical(first)
    came_from: dict[S, S | None] = {first: None}
    frontier = [first]
    while frontier:
        following: list[S] = []
        for state in frontier:
            for _, after in steps(state):
                if after in came_from:
                    continue
                after = canonical(after)
                if after in came_from:
                    continue
                came_from[after] = state
                wrong = violation(after)
                if wrong is not None:
                    found.states, found.whole, found.violation = len(came_from), False, wrong
                    found.story = _story(after, came_from, steps, canonical)
                    return found
                following.append(after)
        if len(came_from) > most:
            found.whole = False
            break
        frontier = following
        found.depth += 1
    found.states = len(came_from)
    return found


def _story(
    state: S,
    came_from: dict[S, S | None],
    steps: Callable[[S], Iterable[Step[S]]],
    canonical: Callable[[S], S],
) -> list[str]:
    """The steps to this state, told again from the first one on, so that a name means the same in all of them."""
    way = [state]
    while (before := came_from[way[-1]]) is not None:
        way.append(before)
    told: list[str] = []
    at = way.pop()
    while way:
        following = way.pop()
        what, at = next((what, after) for what, after in steps(at) if canonical(after) == following)
        told.append(what)
    return told


def orders(keys: list[Any]) -> list[list[int]]:
    """The orders of nodes by their keys: more than one where some have the same."""
    order = sorted(range(len(keys)), key=keys.__getitem__)
    found: list[list[int]] = [[]]
    for _, group in groupby(order, key=keys.__getitem__):
        alike = list(group)
        found = [[*before, *each] for before in found for each in permutations(alike)]
    return found
