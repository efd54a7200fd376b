"""Leaders' proposals of who is in sync, on their way to the controller and back."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

import pytest
from tests.worlds.broker_world import Agenda
from tests.worlds.partition_world import TOPIC_ID, Bench, plain

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.commands import AlterPartition, IsrChanged
from duramen.machines.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from duramen.partition.replica.partition import Partition
from duramen.server.replication import in_sync_changes
from duramen.server.replication.in_sync_changes import PAUSE_S, SCANS, InSyncChanges

LAG = 30.0


class Errand:
    def __init__(self) -> None:
        self.tries = 1


class Controllers:
    """Keeps what is asked until it is answered."""

    def __init__(self) -> None:
        self.asked: list[tuple[AlterPartition, Callable[[Any], None], Errand]] = []
        self.at_once: Any = None

    def ask(self, command: Any, done: Callable[[Any], None], timeout: float) -> Errand:
        errand = Errand()
        if self.at_once is not None:
            done(self.at_once)
        else:
            self.asked.append((command, done, errand))
        return errand


class Scene:
    """Node 1 leads partitions of a topic with three copies; only 1 is in sync unless told otherwise."""

    def __init__(self, isr: tuple[int, ...] = (1,), count: int = 1) -> None:
        self.clock = Agenda()
        self.controllers = Controllers()
        self.image = MetadataImage()
        self.image.brokers = {node: BrokerImage(node, 70 + node, bytes(16), ()) for node in (1, 2, 3)}
        image = PartitionImage(1, 5, 0, (1, 2, 3), isr)
        self.image.add_topic(TopicImage("t", TOPIC_ID, [image] * count))
        self.bench = Bench(epoch=None)
        self.partitions = [self.bench.partition] + [Bench(epoch=None).partition for _ in range(count - 1)]
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.changes = InSyncChanges(
            self.clock,
            self.controllers,
            self,
            self,
            1,
            lambda: 71,
            LAG,
            lambda event, **all: self.told.append((event, all)),
        )
        for index, partition in enumerate(self.partitions):
            partition.tp = partition.tp._replace(partition=index)
            self.lead(index)
        self.changes.follow("t")
        self.run()

    def partition_by_id(self, topic_id: bytes, index: int) -> Partition | None:
        return self.partitions[index] if topic_id == TOPIC_ID and index < len(self.partitions) else None

    def lead(self, index: int = 0, **fields: Any) -> None:
        """The metadata is published."""
        topic = self.image.topics["t"]
        image = topic.partitions[index] = topic.partitions[index]._replace(**fields)
        if image.leader == 1:
            self.partitions[index].lead(image.leader_epoch, image.replicas, image.isr, image.partition_epoch)
        else:
            self.partitions[index].resign(image.leader, image.leader_epoch, image.replicas, image.isr)

    def commit(self, isr: tuple[int, ...], index: int = 0) -> None:
        self.lead(index, isr=isr, partition_epoch=self.image.topics["t"].partitions[index].partition_epoch + 1)
        self.changes.follow("t")
        self.run()

    def broker(self, node: int, **fields: Any) -> None:
        self.image.brokers[node] = self.image.brokers[node]._replace(**fields)
        self.changes.brokers_changed()
        self.run()

    def fetch(self, node: int, end: int = 0, index: int = 0, epoch: int | None = None) -> None:
        epoch = 70 + node if epoch is None else epoch
        if self.partitions[index].fetched_by(node, epoch, end, self.clock.monotonic()):
            self.partitions[index].settle_fetched()
        self.run()

    def run(self, seconds: float = 0.0) -> None:
        """All that is planned, and what comes within so many seconds."""
        until = self.clock.monotonic() + seconds
        while True:
            while self.clock.ready:
                self.clock.ready.pop(0)()
            if not self.clock.timers or self.clock.timers[0][0] > until:
                break
            due, _, timer = heapq.heappop(self.clock.timers)
            self.clock.now_ms += max(due - self.clock.monotonic(), 0) * 1000
            if timer.callback is not None:
                timer.callback()
        self.clock.now_ms += max(until - self.clock.monotonic(), 0) * 1000

    def proposed(self) -> list[tuple[int, tuple[tuple[int, int], ...]]]:
        """(index, in-sync replicas with broker epochs) of the latest request."""
        return [(change.index, change.isr) for change in self.controllers.asked[-1][0].partitions]

    def answer(self, answer: ErrorCode | KafkaError, tries: int = 1) -> None:
        command, done, errand = self.controllers.asked.pop(0)
        errand.tries = tries
        if isinstance(answer, KafkaError):
            done(answer)
        else:
            done([IsrChanged(each.topic_id, each.index, answer, 1, 5, (), 0) for each in command.partitions])
        self.run()

    @property
    def asked(self) -> int:
        return len(self.controllers.asked)


def test_a_replica_that_has_caught_up_is_proposed_and_joins_with_the_metadata() -> None:
    scene = Scene()
    assert scene.asked == 0
    scene.fetch(2)
    ((command, _, _),) = scene.controllers.asked
    assert (command.node_id, command.broker_epoch) == (1, 71)
    (change,) = command.partitions
    assert (change.topic_id, change.leader_epoch, change.partition_epoch) == (TOPIC_ID, 5, 0)
    assert scene.proposed() == [(0, ((1, 71), (2, 72)))]
    scene.fetch(2)
    assert scene.asked == 1
    scene.answer(ErrorCode.NONE)
    scene.fetch(2)
    assert (scene.asked, scene.partitions[0].replication.isr) == (0, (1,)), "the answer is not the metadata"
    scene.commit((1, 2))
    assert (scene.asked, scene.partitions[0].replication.isr) == (0, (1, 2))
    assert scene.told == [("in-sync-proposed", {"partitions": 1, "joining": "2", "leaving": ""})]


def test_while_one_request_is_under_way_others_wait_and_go_together() -> None:
    scene = Scene(count=4)
    scene.fetch(2, index=0)
    for index in (1, 2, 3):
        scene.fetch(3, index=index)
    assert scene.asked == 1
    scene.answer(ErrorCode.NONE)
    assert scene.proposed() == [(index, ((1, 71), (3, 73))) for index in (1, 2, 3)]


def test_a_request_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_sync_changes, "MOST_AT_ONCE", 2)
    scene = Scene(count=5)
    for index in range(5):
        scene.partitions[index].fetched_by(2, 72, 0, 0.0)
    scene.run()
    sizes = []
    while scene.asked:
        sizes.append(len(scene.proposed()))
        scene.answer(ErrorCode.NONE)
    assert sizes == [2, 2, 1]


@pytest.mark.parametrize("fields", [{"fenced": True}, {"in_controlled_shutdown": True}, {"epoch": 80}])
def test_who_is_fenced_or_stops_or_is_another_process_is_not_proposed(fields: dict[str, Any]) -> None:
    scene = Scene()
    before = scene.image.brokers[2]
    scene.broker(2, **fields)
    scene.fetch(2)
    assert scene.asked == 0
    scene.broker(2, **before._asdict())
    assert scene.proposed() == [(0, ((1, 71), (2, 72)))], "it need not fetch again: it is told nothing new"


def test_who_lacks_a_record_for_too_long_leaves_though_nobody_fetches() -> None:
    scene = Scene(isr=(1, 2, 3))
    scene.fetch(2)
    scene.fetch(3)
    scene.run(10 * LAG)
    assert scene.asked == 0
    scene.bench.send(plain(b"a"))
    scene.bench.run()
    scene.fetch(2, 1)
    scene.run(LAG - 1)
    assert scene.asked == 0
    scene.run(2 * LAG / SCANS + 1)
    assert scene.proposed() == [(0, ((1, 71), (2, 72)))]
    assert scene.told[-1] == ("in-sync-proposed", {"partitions": 1, "joining": "", "leaving": "3"})


def test_who_waits_for_acks_all_is_answered_when_the_last_one_has_left() -> None:
    scene = Scene(isr=(1, 2))
    answers = scene.bench.send(plain(b"a"))
    scene.bench.run()
    scene.run(2 * LAG)
    assert answers == []
    scene.answer(ErrorCode.NONE)
    scene.commit((1,))
    assert len(answers) == 1
    assert scene.partitions[0].high_watermark == 1


def test_a_high_watermark_that_waits_for_a_replica_goes_on_when_that_died() -> None:
    scene = Scene()
    scene.bench.produce(plain(b"a"))
    scene.fetch(2, 0)
    answers = scene.bench.send(plain(b"b"))
    scene.bench.run()
    assert (scene.asked, scene.partitions[0].high_watermark, answers) == (0, 1, [])
    scene.run(3.0)
    assert (scene.asked, scene.partitions[0].high_watermark, len(answers)) == (0, 2, 1)


# ---- what is refused, and what is lost ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.NEW_LEADER_ELECTED])
@pytest.mark.parametrize("comes", [True, False])
def test_where_newer_metadata_should_come_it_is_waited_for_but_not_for_ever(error: ErrorCode, comes: bool) -> None:
    scene = Scene()
    scene.fetch(2)
    scene.answer(error)
    scene.fetch(2)
    assert scene.asked == 0
    scene.commit((1,)) if comes else scene.run(PAUSE_S)
    assert scene.proposed() == [(0, ((1, 71), (2, 72)))]
    assert scene.controllers.asked[0][0].partitions[0].partition_epoch == (1 if comes else 0)


@pytest.mark.parametrize("error", [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.STALE_BROKER_EPOCH])
def test_a_request_that_is_lost_is_made_again_after_a_pause(error: ErrorCode) -> None:
    scene = Scene()
    scene.fetch(2)
    scene.answer(KafkaError(error))
    scene.fetch(2)
    assert scene.asked == 0
    scene.run(PAUSE_S)
    assert scene.proposed() == [(0, ((1, 71), (2, 72)))]
    assert ("in-sync-refused", {"partitions": 1, "error": error.name}) in scene.told


def test_what_is_proposed_and_refused_again_and_again_is_told_once() -> None:
    scene = Scene(isr=(1, 2, 3))
    scene.partitions[0].append(memoryview(plain(b"lacking")), 1, 0, lambda _: None)
    scene.run(2 * LAG)
    for error in (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.INVALID_UPDATE_VERSION):
        scene.answer(KafkaError(error, "no controller"))
        scene.run(PAUSE_S)
        assert scene.proposed() == [(0, ((1, 71),))], "it is proposed again"
    told = [
        ("in-sync-proposed", {"partitions": 1, "joining": "", "leaving": "2,3"}),
        ("in-sync-refused", {"partitions": 1, "error": "REQUEST_TIMED_OUT"}),
        ("in-sync-refused", {"partitions": 1, "error": "INVALID_UPDATE_VERSION"}),
    ]
    assert scene.told == told
    scene.answer(ErrorCode.INVALID_UPDATE_VERSION)
    assert scene.told == told
    scene.commit((1, 2, 3))
    scene.run(LAG)
    assert scene.told == [*told, told[0]], "behind other metadata it is another proposal"


@pytest.mark.parametrize("tries", [1, 2])
def test_a_join_that_is_refused_is_dropped_where_it_was_sent_once(tries: int) -> None:
    scene = Scene()
    scene.fetch(2)
    scene.answer(ErrorCode.INELIGIBLE_REPLICA, tries)
    assert scene.partitions[0].replication.maximal_isr == ({1} if tries == 1 else {1, 2})
    scene.broker(2, fenced=True)
    scene.run(PAUSE_S)
    if tries == 1:
        assert scene.asked == 0
    else:
        assert scene.proposed() == [(0, ((1, 71),))], "so that no copy of it can be taken any more"


def test_a_partition_without_an_answer_is_asked_again() -> None:
    scene = Scene()
    scene.fetch(2)
    _, done, _ = scene.controllers.asked.pop()
    done([])
    scene.run(PAUSE_S)
    assert scene.asked == 1


def test_an_answer_that_comes_at_once_is_one_like_others() -> None:
    scene = Scene()
    scene.controllers.at_once = KafkaError(ErrorCode.NOT_CONTROLLER)
    scene.fetch(2)
    scene.controllers.at_once = None
    scene.run(PAUSE_S)
    assert scene.asked == 1


# ---- leaders that come and go ------------------------------------------------------------------------------------


def test_what_is_led_elsewhere_proposes_nothing() -> None:
    scene = Scene()
    scene.lead(leader=2, leader_epoch=6, partition_epoch=1)
    scene.changes.follow("t")
    scene.run()
    assert scene.partitions[0].on_candidate is None
    scene.lead(leader=1, leader_epoch=7, partition_epoch=2)
    scene.changes.follow("t")
    scene.fetch(2)
    assert scene.asked == 1
    scene.lead(leader=2, leader_epoch=8, partition_epoch=3)
    scene.answer(ErrorCode.FENCED_LEADER_EPOCH)
    scene.run(LAG)
    assert scene.asked == 0


def test_a_deleted_topic_and_a_partition_that_is_not_here_are_passed_over() -> None:
    scene = Scene()
    scene.fetch(2)
    scene.partitions[0].close()
    scene.answer(ErrorCode.UNKNOWN_TOPIC_ID)
    scene.run(LAG)
    scene.partitions.clear()
    scene.changes.follow("t")
    scene.changes.follow("gone")
    scene.run(LAG)
    assert scene.asked == 0


def test_behind_the_end_nothing_is_proposed() -> None:
    scene = Scene()
    scene.partitions[0].fetched_by(2, 72, 0, 0.0)
    scene.changes.close()
    scene.run(10 * LAG)
    assert (scene.asked, scene.clock.ready) == (0, [])
