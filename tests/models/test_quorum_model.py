"""The model of the quorum itself; what it explores is in `test_models.py`."""

from __future__ import annotations

from tests.models.quorum import Bounds, Quorum, State


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
