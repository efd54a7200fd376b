"""The models of replication and of the lease themselves; what they explore is in `test_models.py`."""

from __future__ import annotations

import pytest
from tests.models.explorer import explore
from tests.models.lease import SESSION, Lease
from tests.models.lease import Bounds as LeaseBounds
from tests.models.lease import State as LeaseState
from tests.models.replica_log import cut_point, diverges
from tests.models.replication import Bounds, Replication
from tests.models.replication_state import State


@pytest.mark.parametrize("without", ["", "maximal-isr"])
def test_states_that_differ_by_names_alone_are_one(without: str) -> None:
    """The states that stand for others are all that are reached, and no more."""
    model = Replication(Bounds(alters=1, records=1, changes=0), without)
    reached: set[State] = {model.first()}
    waiting = [model.first()]
    while waiting:
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
    assert len(stand) < len(reached)


def test_records_are_acknowledged_in_two_epochs_and_by_another_leader() -> None:
    """What must not be is not absent for want of anything happening."""
    model = Replication(Bounds(records=2))

    def is_there(state: State) -> str | None:
        return "there" if len(set(state.shown_in)) == 2 and state.metadata[-1].epoch == 2 else None

    assert explore(model.first(), model.steps, is_there, model.canonical).violation == "there"


def test_a_broker_that_was_fenced_leads_by_a_lease_again() -> None:
    model = Lease(LeaseBounds())

    def is_there(state: LeaseState) -> str | None:
        return "there" if state.is_held and state.read == state.written == 2 else None

    found = explore(model.first(), model.steps, is_there, model.canonical)
    assert found.violation == "there"
    assert found.story.count("a tick") >= SESSION


def test_where_two_histories_part() -> None:
    leader = ((1, 0), (3, 0), (3, 1))
    assert diverges(leader, 2, 3) == ()
    assert diverges(leader, 0, 0) == ()
    assert diverges(leader, 2, 1) == (1, 1)
    assert diverges(leader, 2, 2) == (1, 1)
    assert cut_point(((1, 0), (2, 0)), 1, 1) == 1
    assert cut_point(((1, 0), (1, 1)), 1, 1) == 1
