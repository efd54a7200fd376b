"""The models, within bounds that take seconds; `make models` explores larger ones."""

from __future__ import annotations

import pytest
from tests.models.catalogue import LARGE, RULES, SMALL, TAKEN_OUT, Search, run
from tests.models.explorer import explore


def named(search: Search) -> str:
    return " ".join((search.name, search.without, str(search)))


@pytest.mark.parametrize("search", SMALL, ids=named)
def test_with_all_rules_nothing_goes_wrong(search: Search) -> None:
    found = run(search)
    assert found.violation is None, "\n".join(found.story)
    assert found.whole
    assert found.states > 1_000


SLOW = {
    "quorum": {"answers-in-place", "answers-to-this-log", "no-resume", "own-epoch"},
    "replication": {
        "answers-in-place", "fetch-epoch", "forget-ends", "join-at-start", "older-refused", "own-registration",
        "repeats-stay", "restart-ends-epoch", "watermark-compared",
    },
    "lease": set[str](),
    "transactions": set[str](),
}  # fmt: skip
"""All others together take seconds."""

QUICK = [search for search in TAKEN_OUT if search.without not in SLOW[search.name]]


@pytest.mark.parametrize("search", QUICK, ids=named)
def test_without_a_rule_it_is_found(search: Search) -> None:
    found = run(search)
    assert found.violation is not None
    assert found.story


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_taken_out(name: str) -> None:
    assert {search.without for search in TAKEN_OUT if search.name == name} == set(RULES[name])
    assert any(search.name == name for search in LARGE)


def test_a_story_is_the_shortest_way_to_what_is_wrong() -> None:
    found = explore(0, lambda at: [("double", 2 * at), ("add one", at + 1)], lambda at: "ten" if at == 10 else None)
    assert (found.violation, len(found.story)) == ("ten", 5)
    assert found.story[0] == "add one"
    assert not found.whole
