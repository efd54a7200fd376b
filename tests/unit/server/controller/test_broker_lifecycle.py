"""A broker's life under its controllers: registered, unfenced, fenced and back, replaced, handed over, left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.machine_fakes import FakeClock

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.machines.metadata.commands import BrokerHeartbeat, HeartbeatAnswer, RegisterBroker, Registered
from duramen.machines.metadata.image import BrokerImage, MetadataImage
from duramen.server.controller.broker_lifecycle import BrokerLifecycle, LifecycleState

EPOCH = 7


class Cluster:
    """Controllers that answer when the test says so, and this node's copy of the metadata."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.image = MetadataImage()
        self.position = 0
        self.asked: list[tuple[Any, Callable[[Any], None]]] = []
        self.waiting: list[tuple[int, Callable[[], None]]] = []
        self.events: list[str] = []
        self.epochs: list[int] = []
        self.served = 0
        self.stopped = 0
        self.is_alone = False
        self.life = BrokerLifecycle(
            self.clock,
            self,
            self,
            lambda: RegisterBroker(1, b"i" * 16, ()),
            0.5,
            lambda event, **fields: self.events.append(event),
            self.epochs.append,
            self.serving,
            lambda: self.is_alone,
        )

    def serving(self) -> None:
        self.served += 1

    def register(self, command: RegisterBroker, done: Callable[[Any], None]) -> None:
        self.asked.append((command, done))

    def ask(self, command: Any, done: Callable[[Any], None], timeout: float) -> None:
        self.asked.append((command, done))

    def when_applied(self, offset: int, callback: Callable[[], None]) -> None:
        if self.position >= offset:
            callback()
        else:
            self.waiting.append((offset, callback))

    def answer(self, answer: Any) -> Any:
        """To the oldest question, which is returned."""
        command, done = self.asked.pop(0)
        done(answer)
        return command

    def apply(self, position: int, *, fenced: bool = True, epoch: int = EPOCH) -> None:
        """This node has applied so much, and by that the broker is fenced or not."""
        self.position = position
        self.image.brokers[1] = BrokerImage(1, epoch, b"i" * 16, (), fenced=fenced)
        self.life.changed()
        for offset, callback in self.waiting[:]:
            if position >= offset:
                self.waiting.remove((offset, callback))
                callback()

    def running(self) -> None:
        """As far as serving."""
        self.life.start()
        self.answer(Registered(EPOCH))
        self.apply(EPOCH + 1)
        self.answer(HeartbeatAnswer(True, False))
        self.apply(EPOCH + 2, fenced=False)
        assert self.life.state is LifecycleState.RUNNING

    def stop(self, *, hands_over: bool = True) -> None:
        def stopped() -> None:
            self.stopped += 1

        self.life.stop(stopped, hands_over=hands_over)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_it_serves_when_its_own_image_shows_it_unfenced(cluster: Cluster) -> None:
    cluster.life.start()
    cluster.answer(Registered(EPOCH))
    assert (cluster.life.state, cluster.epochs) == (LifecycleState.FENCED, [EPOCH])
    assert cluster.asked == [], "it has not applied its own registration"
    cluster.apply(EPOCH + 1)
    heartbeat = cluster.answer(HeartbeatAnswer(True, False))
    assert heartbeat == BrokerHeartbeat(1, EPOCH, EPOCH)
    assert cluster.served == 0, "the controller is ahead of this node"
    cluster.apply(EPOCH + 2, fenced=False)
    assert (cluster.life.state, cluster.served) == (LifecycleState.RUNNING, 1)


def test_one_that_is_unfenced_with_its_registration_serves_at_once(cluster: Cluster) -> None:
    cluster.apply(EPOCH + 2, fenced=False)
    cluster.life.start()
    cluster.answer(Registered(EPOCH))
    assert (cluster.life.state, cluster.served) == (LifecycleState.RUNNING, 1)


def test_heartbeats_come_in_their_interval_and_one_at_a_time(cluster: Cluster) -> None:
    cluster.running()
    cluster.clock.advance(499)
    assert cluster.asked == []
    cluster.clock.advance(1)
    assert len(cluster.asked) == 1
    cluster.clock.advance(5_000)
    assert len(cluster.asked) == 1, "none behind one that is not answered"
    cluster.answer(HeartbeatAnswer(True, False))
    cluster.clock.advance(0)
    assert len(cluster.asked) == 1


def test_one_that_was_fenced_comes_back_and_serves_clients_once(cluster: Cluster) -> None:
    cluster.running()
    cluster.apply(EPOCH + 3, fenced=True)
    assert cluster.life.state is LifecycleState.FENCED
    cluster.apply(EPOCH + 4, fenced=False)
    assert (cluster.life.state, cluster.served) == (LifecycleState.RUNNING, 1)
    assert cluster.events == ["broker-fenced", "broker-unfenced"]


@pytest.mark.parametrize("code", [ErrorCode.STALE_BROKER_EPOCH, ErrorCode.BROKER_ID_NOT_REGISTERED])
def test_one_that_nobody_knows_registers_again(cluster: Cluster, code: ErrorCode) -> None:
    cluster.running()
    cluster.clock.advance(500)
    cluster.answer(KafkaError(code))
    cluster.clock.advance(200)
    assert isinstance(cluster.answer(Registered(20)), RegisterBroker)
    assert cluster.epochs == [EPOCH, 20]
    cluster.apply(21, epoch=20)
    assert cluster.answer(HeartbeatAnswer(True, False)) == BrokerHeartbeat(1, 20, 20)
    cluster.apply(22, fenced=False, epoch=20)
    assert (cluster.life.state, cluster.served) == (LifecycleState.RUNNING, 1)


@pytest.mark.parametrize(
    "code",
    [ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.KAFKA_STORAGE_ERROR],
)
def test_a_registration_that_may_go_well_later_is_tried_again_and_told_once(cluster: Cluster, code: ErrorCode) -> None:
    cluster.life.start()
    for _ in range(3):
        cluster.answer(KafkaError(code, "not now"))
        cluster.clock.advance(200)
    assert cluster.events == ["broker-not-registered"]
    cluster.answer(Registered(EPOCH))
    assert cluster.life.state is LifecycleState.FENCED


def test_of_a_node_alone_another_refusal_ends_the_start(cluster: Cluster) -> None:
    cluster.is_alone = True
    cluster.life.start()
    with pytest.raises(StorageError):
        cluster.answer(StorageError("the disk failed"))


def test_a_stop_waits_until_others_lead(cluster: Cluster) -> None:
    cluster.running()
    cluster.stop()
    assert cluster.answer(HeartbeatAnswer(True, False, False)).wants_shutdown
    cluster.clock.advance(50)
    assert cluster.stopped == 0
    cluster.answer(HeartbeatAnswer(True, True, True))
    assert (cluster.stopped, cluster.life.state) == (1, LifecycleState.STOPPED)
    cluster.clock.advance(60_000)
    assert cluster.asked == []


def test_it_waits_for_half_a_minute_at_most_and_says_so(cluster: Cluster) -> None:
    cluster.running()
    cluster.stop()
    for _ in range(700):
        if cluster.stopped:
            break
        cluster.answer(HeartbeatAnswer(True, False, False))
        cluster.clock.advance(50)
    assert cluster.stopped == 1
    assert cluster.events[-1] == "broker-not-handed-over"


def test_without_a_controller_it_waits_for_three_seconds(cluster: Cluster) -> None:
    cluster.running()
    cluster.stop()
    waited = 0
    while not cluster.stopped:
        cluster.clock.advance(1_000)
        cluster.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
        waited += 1
    assert waited in (3, 4)


def test_where_nothing_can_be_decided_any_more_it_ends_at_once(cluster: Cluster) -> None:
    cluster.is_alone = True
    cluster.running()
    cluster.stop()
    cluster.answer(StorageError("the disk failed"))
    assert cluster.stopped == 1


def test_one_that_never_registered_has_nothing_to_hand_over(cluster: Cluster) -> None:
    cluster.life.start()
    cluster.stop()
    assert cluster.stopped == 1
    cluster.answer(Registered(EPOCH))
    assert (cluster.life.state, cluster.epochs) == (LifecycleState.STOPPED, [])


def test_a_stop_behind_an_open_heartbeat_asks_when_that_is_answered(cluster: Cluster) -> None:
    cluster.running()
    cluster.clock.advance(500)
    cluster.stop()
    assert not cluster.answer(HeartbeatAnswer(True, False)).wants_shutdown
    cluster.clock.advance(50)
    assert cluster.answer(HeartbeatAnswer(True, True, True)).wants_shutdown
    assert cluster.stopped == 1


def test_who_will_not_wait_ends_it_once(cluster: Cluster) -> None:
    cluster.life.stop_waiting()
    cluster.running()
    cluster.life.stop_waiting()
    assert cluster.life.state is LifecycleState.RUNNING, "it is no stop"
    cluster.stop()
    cluster.answer(HeartbeatAnswer(True, False, False))
    assert cluster.stopped == 0
    for _ in range(2):
        cluster.life.stop_waiting()
    assert (cluster.stopped, cluster.life.state) == (1, LifecycleState.STOPPED)
    assert cluster.events == ["broker-not-handed-over"]
    cluster.clock.advance(60_000)
    assert cluster.asked == []


def test_one_that_is_not_to_hand_over_ends_at_once(cluster: Cluster) -> None:
    cluster.running()
    cluster.stop(hands_over=False)
    assert (cluster.stopped, cluster.life.state) == (1, LifecycleState.STOPPED)
    cluster.clock.advance(60_000)
    assert cluster.asked == []


def test_among_others_it_says_how_much_it_hands_over(cluster: Cluster) -> None:
    cluster.running()
    cluster.image.brokers[2] = BrokerImage(2, 3, b"j" * 16, ())
    cluster.stop()
    assert cluster.events == ["broker-hands-over"]


def test_only_answers_to_one_that_is_not_fenced_renew_its_lease(cluster: Cluster) -> None:
    renewed: list[float] = []

    class Lease:
        def now(self) -> float:
            return cluster.clock.boottime()

        def renew(self, sent: float) -> None:
            renewed.append(sent)

    cluster.life.lease = Lease()  # type: ignore[assignment]
    cluster.life.start()
    cluster.answer(Registered(EPOCH))
    cluster.apply(EPOCH + 1)
    cluster.answer(HeartbeatAnswer(True, True))
    assert renewed == []
    cluster.clock.advance(500)
    cluster.clock.advance(200)
    cluster.answer(HeartbeatAnswer(True, False))
    assert renewed == [0.5], "from when it was sent"
    cluster.clock.advance(500)
    cluster.answer(KafkaError(ErrorCode.REQUEST_TIMED_OUT))
    assert renewed == [0.5]
    cluster.clock.advance(500)
    cluster.stop()
    cluster.answer(HeartbeatAnswer(True, False))
    assert len(renewed) == 2, "one that stops may lead until others do"
