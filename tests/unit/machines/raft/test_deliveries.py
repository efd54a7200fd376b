"""A message that several nodes have to answer."""

from __future__ import annotations

import math

from duramen.machines.raft.deliveries import Deliveries


def test_each_is_asked_until_it_answers_after_pauses_that_double() -> None:
    deliveries = Deliveries(0.02, 0.1)
    deliveries.begin((2, 3))
    assert deliveries.take_due(10.0) == [2, 3]
    assert deliveries.take_due(11.0) == []
    assert deliveries.deadline == math.inf
    deliveries.answered(3)
    pauses = []
    now = 11.0
    for _ in range(5):
        deliveries.lost(2, now)
        pauses.append(round(deliveries.deadline - now, 3))
        assert deliveries.take_due(deliveries.deadline - 0.001) == []
        now = deliveries.deadline
        assert deliveries.take_due(now) == [2]
    assert pauses == [0.02, 0.04, 0.08, 0.1, 0.1]


def test_what_was_begun_before_is_forgotten() -> None:
    deliveries = Deliveries(0.02, 0.1)
    deliveries.begin((2, 3))
    deliveries.take_due(10.0)
    deliveries.begin((3,))
    deliveries.lost(2, 10.0)
    assert deliveries.take_due(20.0) == [3]
    deliveries.end()
    deliveries.lost(3, 20.0)
    assert deliveries.deadline == math.inf
