"""The model of the quorum, within bounds that take seconds; `make models` explores larger ones."""

from __future__ import annotations

import pytest
from tests.models.catalogue import SMALL, TAKEN_OUT, Search, run
from tests.models.explorer import explore
from tests.models.quorum import RULES, Bounds, Quorum, State


@pytest.mark.parametrize("search", SMALL, ids=lambda search: str(search.bounds))
def test_with_all_rules_nothing_goes_wrong(search: Search) -> None:
    found = run(search)
    assert found.violation is None, "\n".join(found.story)
    assert found.whole
    assert found.states > 2_000


QUICK = [search for search in TAKEN_OUT if search.without not in ("own-epoch", "no-resume")]
"""These two take seconds more."""


@pytest.mark.parametrize("search", QUICK, ids=lambda search: search.without)
def test_without_a_rule_it_is_found(search: Search) -> None:
    found = run(search)
    assert found.violation is not None
    assert found.story


def test_every_rule_is_taken_out() -> None:
    assert {search.without for search in TAKEN_OUT} == set(RULES)


def test_a_story_is_the_shortest_way_to_what_is_wrong() -> None:
    found = explore(0, lambda at: [("double", 2 * at), ("add one", at + 1)], lambda at: "ten" if at == 10 else None)
    assert (found.violation, len(found.story)) == ("ten", 5)
    assert found.story[0] == "add one"
    assert not found.whole


def test_states_that_differ_by_names_alone_are_one() -> None:
    """The states that stand for others are all that are reached, and no more."""
    model = Quorum(Bounds(epochs=2))
    reached = {model.first()}
    waiting = [model.first()]
    while waiting and len(reached) < 20_000:
        for _, after in model.steps(waiting.pop()):
            if after not in reached:
                reached.add(after)
                waiting.append(after)
    stand: set[State] = {model.canonical(model.first())}
    waiting = list(stand)
    while waiting:
        for _, after in model.steps(waiting.pop()):
            after = model.canonical(after)
            if after not in stand:
                stand.add(after)
                waiting.append(after)
    assert {model.canonical(state) for state in reached} == stand
    assert len(stand) < len(reached) / 4
