"""Time-outs of appends; and the copy of `wait_for` that stands in the path of most produce requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.worlds.broker_world import Agenda

from duramen.server.api.outstanding_appends import SWEEP_SECONDS, OutstandingAppends
from duramen.server.handlers.produce_fast_path import ProduceRequest


class Call:
    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.expired = 0

    def expire(self) -> None:
        self.expired += 1


def test_what_is_due_expires_and_the_timer_ends_with_the_last() -> None:
    clock = Agenda()
    appends = OutstandingAppends(clock)
    soon, late = Call(SWEEP_SECONDS / 2), Call(1.0)
    appends.wait_for(soon)
    appends.wait_for(late)
    assert len(clock.timers) == 1
    clock.now_ms += round(SWEEP_SECONDS * 1000)
    fire(clock)
    assert (soon.expired, late.expired) == (1, 0)
    appends.outstanding.clear()
    fire(clock)
    assert not appends.sweeping
    assert not clock.timers


@pytest.mark.parametrize("sweeping", [False, True])
def test_the_copy_in_a_produce_request_does_what_wait_for_does(sweeping: bool) -> None:
    """`ProduceRequest.append` saves a call for each request (decision 0001); it must not drift from the original."""
    states = []
    for by_request in (False, True):
        clock = Agenda()
        appends = OutstandingAppends(clock)
        if sweeping:
            appends.wait_for(Call(5.0))
        if by_request:
            call: Any = produce_request(clock, appends)
            partition = SimpleNamespace(append=lambda *_: None)
            call.append(
                SimpleNamespace(timeout=1.0, acks=-1, partition=partition, transactional_id=None), memoryview(b"")
            )
        else:
            call = Call(1.0)
            appends.wait_for(call)
        assert call in appends.outstanding
        states.append((len(appends.outstanding), appends.sweeping, [due for due, _, _ in clock.timers]))
    assert states[0] == states[1]


def produce_request(clock: Agenda, appends: OutstandingAppends) -> ProduceRequest:
    services: Any = SimpleNamespace(clock=clock, appends=appends, cold_reads=SimpleNamespace(busy_at=0.0))
    connection: Any = SimpleNamespace(last_active=0.0)
    row: Any = None
    return ProduceRequest(services, connection, row, 9, 1)


def fire(clock: Agenda) -> None:
    """Call the timers that are set now."""
    timers, clock.timers = clock.timers, []
    for _, _, timer in timers:
        assert timer.callback is not None
        timer.callback()
