"""Every exhibit, with its guard and without."""

from __future__ import annotations

import pytest
from tests.museum import compaction, damage, identity, limits, power, transactions
from tests.museum.exhibit import EXHIBITS, BrokenPromiseError, Exhibit, Way, unguarded

HALLS = (power, damage, identity, limits, compaction, transactions)


@pytest.mark.parametrize("shown", EXHIBITS, ids=lambda shown: shown.name)
def test_it_holds(shown: Exhibit) -> None:
    shown.story()


WAYS = [
    pytest.param(shown, way, id=f"{shown.name}-{number}" if number else shown.name)
    for shown in EXHIBITS
    for number, way in enumerate(shown.ways)
]


@pytest.mark.parametrize(("shown", "way"), WAYS)
def test_it_breaks_without_its_guard(shown: Exhibit, way: Way) -> None:
    with unguarded(way), pytest.raises(BrokenPromiseError):
        shown.story()


def test_the_museum_is_open() -> None:
    assert len(EXHIBITS) >= 15
    assert len({shown.name for shown in EXHIBITS}) == len(EXHIBITS)
    assert all(shown.source.startswith("https://") and shown.story.__doc__ for shown in EXHIBITS)
    assert {shown.story.__module__ for shown in EXHIBITS} == {hall.__name__ for hall in HALLS}
