"""Only a process that ended its connection, and whose address refuses where it answered before, is fenced at once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.commands import FenceBroker
from duramen.machines.metadata.image import BrokerImage, Endpoint, MetadataImage
from duramen.server.controller.broker_watch import AGAIN_S, FRESH_S, MOST_LOOKS, BrokerWatch
from duramen.sim.world.loop import Process, SimClock, SimLoop
from duramen.sim.world.network import Conditions, SimNetwork, SimPort

OWN, OTHER, PORT = 1, 2, 9092
EPOCH = 7


class Connection:
    """Of a broker to this controller."""

    def __init__(self) -> None:
        self.closed = self.ended_by_peer = False
        self.callbacks: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def end(self, *, by_peer: bool = True) -> None:
        self.closed, self.ended_by_peer = True, by_peer
        for callback in self.callbacks:
            callback()


class Scene:
    """A controller, and a broker in a process of its own that listens."""

    def __init__(self) -> None:
        self.loop, self.own, self.peer = SimLoop(Random(1)), Process("own"), Process("peer")
        self.network = SimNetwork(self.loop, Random(1), Conditions(silent=True))
        self.is_active = True
        self.image = MetadataImage()
        self.commands: list[Any] = []
        self.events: list[str] = []
        self.there = SimPort(self.network, self.peer, "b")
        self.here = SimPort(self.network, self.own, "a")
        self.clock = SimClock(self.loop, self.own, 0)
        self.register(EPOCH)
        world: Any = SimpleNamespace(network=self.here, clock=self.clock)
        self.watch = BrokerWatch(world, self, OWN, lambda event, **fields: self.events.append(event))
        self.listen()

    def decide(self, command: Any, done: Callable[[Any], None]) -> None:
        self.commands.append((self.loop.now, command))
        done(KafkaError(ErrorCode.NOT_CONTROLLER))

    def register(self, epoch: int, host: str = "b", **more: Any) -> None:
        self.image.brokers[OTHER] = BrokerImage(OTHER, epoch, b"", (Endpoint("P", host, PORT, 0),), **more)

    def listen(self) -> None:
        self.there.listen("b", PORT, lambda transport: None)

    def die(self) -> None:
        self.there.die(0.0, deliver=True)

    def wait(self, seconds: float = 1.5) -> None:
        self.loop.run(lambda: False, self.loop.now + seconds)

    def hear(self, connection: Connection | None = None, epoch: int = EPOCH) -> Connection:
        connection = connection or Connection()
        self.watch.heard(OTHER, epoch, connection)  # type: ignore[arg-type]
        self.wait(0.2)
        return connection

    @property
    def fenced(self) -> list[FenceBroker]:
        return [command for _, command in self.commands]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_dead_process_is_fenced_when_two_connects_are_refused(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    died = scene.loop.now
    connection.end()
    scene.wait()
    assert scene.fenced == [FenceBroker(OTHER, EPOCH)]
    assert 0.05 <= scene.commands[0][0] - died < 0.06
    assert scene.events == ["broker-died"]
    assert scene.loop.planned(scene.own) == 0
    assert scene.here.transports == []


def test_one_refusal_proves_nothing(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    connection.end()
    scene.wait(0.03)
    scene.listen()  # it has begun anew, at once
    scene.wait()
    assert scene.fenced == []


def test_a_process_that_still_listens_is_not_fenced(scene: Scene) -> None:
    scene.hear().end()
    scene.wait()
    assert scene.fenced == []


def test_a_backlog_that_takes_connections_behind_the_death_does_not_hide_it(scene: Scene) -> None:
    scene.hear().end()
    scene.wait(0.08)
    scene.die()
    scene.wait()
    assert scene.fenced == [FenceBroker(OTHER, EPOCH)]


def test_a_living_one_is_looked_at_a_few_times(scene: Scene) -> None:
    scene.hear().end()
    scene.wait(0.05 * MOST_LOOKS + 0.1)
    scene.die()
    scene.wait()
    assert scene.fenced == []
    assert scene.here.transports == []
    assert scene.loop.planned(scene.own) == 0


def test_a_connection_that_this_node_ended_says_nothing(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    connection.end(by_peer=False)
    scene.wait()
    assert scene.fenced == []


def test_an_address_that_controllers_cannot_reach_fences_nobody(scene: Scene) -> None:
    scene.register(EPOCH, host="elsewhere")
    connection = scene.hear()
    scene.wait(AGAIN_S)
    scene.hear(connection)
    connection.end()
    scene.wait()
    assert scene.fenced == []


def test_a_host_that_is_silent_fences_nobody(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    scene.network.links.set_power("b", on=False)
    connection.end()
    scene.wait(5.0)
    assert scene.fenced == []
    assert scene.here.transports == []


def test_an_address_that_hung_is_tried_again_when_the_broker_is_heard(scene: Scene) -> None:
    scene.network.links.set_power("b", on=False)
    connection = scene.hear()
    scene.wait(AGAIN_S)
    scene.network.links.set_power("b", on=True)
    scene.hear(connection)
    scene.die()
    connection.end()
    scene.wait()
    assert scene.fenced == [FenceBroker(OTHER, EPOCH)]


def test_another_registration_has_to_answer_anew(scene: Scene) -> None:
    connection = scene.hear()
    scene.register(EPOCH + 1, host="elsewhere")
    scene.hear(connection, EPOCH + 1)
    scene.die()
    connection.end()
    scene.wait()
    assert scene.fenced == []


def test_the_epoch_is_that_of_the_connection(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    scene.register(EPOCH + 1)
    connection.end()
    scene.wait()
    assert scene.fenced == []


def test_a_process_that_is_heard_again_is_alive(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    connection.end()
    scene.wait(0.02)
    scene.hear()
    scene.wait()
    assert scene.fenced == []


def test_two_connections_that_end_together_are_one_death(scene: Scene) -> None:
    first, second = scene.hear(), scene.hear()
    scene.die()
    first.end()
    second.end()
    scene.wait()
    assert scene.fenced == [FenceBroker(OTHER, EPOCH)]


def test_a_connection_that_ended_before_the_answer(scene: Scene) -> None:
    scene.hear()
    late = Connection()
    scene.die()
    late.end()
    scene.hear(late)
    assert scene.fenced == [FenceBroker(OTHER, EPOCH)]


def test_one_that_is_fenced_already_is_not_fenced_again(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    scene.register(EPOCH, fenced=True)
    connection.end()
    scene.wait()
    assert scene.fenced == []


def test_who_does_not_decide_fences_nobody(scene: Scene) -> None:
    connection = scene.hear()
    scene.is_active = False
    scene.die()
    connection.end()
    scene.wait()
    assert scene.fenced == []


def test_a_successor_fences_the_leader_that_died_before_its_election(scene: Scene) -> None:
    scene.is_active = False
    scene.die()
    scene.watch.peer_died(OTHER, ("b", PORT))
    scene.wait(0.3)
    assert scene.fenced == []
    scene.is_active = True
    began = scene.loop.now
    scene.watch.became_active()
    assert scene.commands == [(began, FenceBroker(OTHER, EPOCH))]


def test_a_successor_that_was_elected_late_looks_again(scene: Scene) -> None:
    for is_back, found in ((False, [FenceBroker(OTHER, EPOCH)]), (True, [])):
        scene.commands.clear()
        scene.is_active = False
        scene.die()
        scene.watch.peer_died(OTHER, ("b", PORT))
        scene.wait(FRESH_S + 0.1)
        if is_back:
            scene.listen()
        scene.is_active = True
        scene.watch.became_active()
        assert scene.fenced == []
        scene.wait()
        assert scene.fenced == found


def test_a_successor_leaves_a_peer_that_has_registered_anew(scene: Scene) -> None:
    scene.is_active = False
    scene.die()
    scene.watch.peer_died(OTHER, ("b", PORT))
    scene.wait(0.3)
    scene.register(EPOCH + 1)
    scene.listen()
    scene.is_active = True
    scene.watch.became_active()
    scene.wait()
    assert scene.fenced == []


def test_a_new_controller_meets_everybody_who_is_registered(scene: Scene) -> None:
    scene.watch.became_active()
    scene.wait()
    connection = Connection()
    scene.watch.heard(OTHER, EPOCH, connection)  # type: ignore[arg-type]
    scene.die()
    connection.end()
    scene.wait()
    assert scene.fenced == [FenceBroker(OTHER, EPOCH)]


def test_nothing_is_left_behind_the_end(scene: Scene) -> None:
    connection = scene.hear()
    scene.die()
    connection.end()
    scene.watch.close()
    scene.watch.peer_died(OTHER, ("b", PORT))
    scene.wait()
    assert scene.fenced == []
    assert scene.here.transports == []
    assert scene.loop.planned(scene.own) == 0
