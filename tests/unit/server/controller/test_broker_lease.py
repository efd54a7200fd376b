"""A lease runs from when a heartbeat was sent, for nine tenths of a session, also while the machine sleeps."""

from __future__ import annotations

import time

import pytest
from tests.worlds.machine_fakes import FakeClock

from duramen.server.controller.broker_lease import BrokerLease
from duramen.server.net.loop import EventLoop
from duramen.server.net.os_ports import LoopClock


class Suspended(FakeClock):
    """A machine that may sleep: the clock of time-outs stands still then."""

    asleep = 0.0

    def boottime(self) -> float:
        return self.monotonic() + self.asleep


class Scene:
    def __init__(self) -> None:
        self.clock = Suspended()
        self.events: list[tuple[str, dict[str, object]]] = []
        self.renewed = 0
        self.lease = BrokerLease(self.clock, 3.0, lambda event, **fields: self.events.append((event, fields)), self.on)

    def on(self) -> None:
        self.renewed += 1


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_it_begins_with_the_first_answer(scene: Scene) -> None:
    assert not scene.lease.holds()
    scene.lease.renew(scene.lease.now())
    assert scene.lease.holds()
    assert scene.renewed == 1
    assert scene.events == [], "it had none that it could have lost"


def test_it_runs_from_when_the_heartbeat_was_sent(scene: Scene) -> None:
    sent = scene.lease.now()
    scene.clock.advance(1000)
    scene.lease.renew(sent)
    scene.clock.advance(1699)
    assert scene.lease.holds()
    scene.clock.advance(1)
    assert not scene.lease.holds()


def test_an_answer_that_comes_too_late_renews_nothing(scene: Scene) -> None:
    scene.lease.renew(scene.lease.now())
    sent = scene.lease.now()
    scene.clock.advance(10_000)
    scene.lease.renew(sent)
    assert not scene.lease.holds()
    assert scene.renewed == 1


def test_one_that_has_ended_is_renewed_by_nothing(scene: Scene) -> None:
    scene.lease.renew(scene.lease.now())
    scene.lease.end()
    assert not scene.lease.holds()
    scene.clock.advance(100)
    scene.lease.renew(scene.lease.now())
    assert not scene.lease.holds()


def test_an_older_answer_takes_nothing_back(scene: Scene) -> None:
    scene.clock.advance(2000)
    scene.lease.renew(2.0)
    scene.lease.renew(1.0)
    scene.clock.advance(2600)
    assert scene.lease.holds()


def test_a_machine_that_sleeps_uses_it_up(scene: Scene) -> None:
    scene.lease.renew(scene.lease.now())
    scene.clock.asleep = 2.7
    assert not scene.lease.holds()


def test_who_waits_for_it_is_told_when_it_holds_again(scene: Scene) -> None:
    scene.lease.renew(0.0)
    scene.clock.advance(500)
    scene.lease.renew(0.5)
    assert scene.renewed == 1
    scene.clock.advance(4000)
    scene.lease.renew(4.5)
    assert scene.renewed == 2
    assert scene.events == [("lease-renewed", {"without_ms": 1300})]


def test_a_controller_that_waits_less_makes_it_shorter_at_once(scene: Scene) -> None:
    scene.lease.renew(0.0)
    scene.lease.limit(2.0)
    scene.clock.advance(1799)
    assert scene.lease.holds()
    scene.clock.advance(1)
    assert not scene.lease.holds()
    scene.lease.renew(1.8)
    scene.clock.advance(1800)
    assert not scene.lease.holds()
    assert scene.events[0] == ("session-timeouts-differ", {"own_s": 3.0, "controller_s": 2.0})


def test_a_controller_that_waits_longer_changes_nothing_and_is_told(scene: Scene) -> None:
    scene.lease.limit(9.0)
    scene.lease.renew(0.0)
    scene.clock.advance(2700)
    assert not scene.lease.holds()
    assert [event for event, _ in scene.events] == ["session-timeouts-differ"]


def test_the_next_controller_s_counts_from_then_on(scene: Scene) -> None:
    scene.lease.limit(2.0)
    scene.lease.renew(0.0)
    scene.lease.limit(3.0)
    scene.clock.advance(1800)
    assert not scene.lease.holds(), "it was answered by the one before"
    scene.lease.renew(1.8)
    scene.clock.advance(2699)
    assert scene.lease.holds()


def test_controllers_that_wait_as_long_are_nothing_to_tell(scene: Scene) -> None:
    scene.lease.limit(3.0)
    assert scene.events == []


def test_the_real_clock_counts_a_suspended_machine() -> None:
    clock = LoopClock(EventLoop())
    kind = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    before = time.clock_gettime(kind)
    assert before <= clock.boottime() <= time.clock_gettime(kind)
