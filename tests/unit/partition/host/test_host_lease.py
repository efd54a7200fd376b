"""What a host knows is told without a new record only while nobody else can know better."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.partition.host.test_host import Counter
from tests.worlds.machine_fakes import FakeClock, FakePartition

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.host.host import Host


class Scene:
    def __init__(self) -> None:
        self.clock, self.partition = FakeClock(), FakePartition()
        self.host = Host(self.partition, Counter(), self.clock)
        self.host.load()

    def ask(self, *command: Any) -> list[Any]:
        answers: list[Any] = []
        self.host.submit(command, answers.append)
        return answers

    def commit(self) -> None:
        self.partition.high_watermark = self.partition.log_end_offset
        for watcher in tuple(self.partition.watchers):
            watcher()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def codes(*answers: list[Any]) -> list[Any]:
    return [each.code if isinstance(each, KafkaError) else each for (each,) in answers]


def test_reads_and_heartbeats_are_refused(scene: Scene) -> None:
    assert codes(scene.ask("read"), scene.ask("beat")) == [0, "alive"]
    scene.partition.may_answer = False
    assert codes(scene.ask("read"), scene.ask("beat")) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_so_are_refusals_of_the_machine_and_answers_that_a_timer_gives(scene: Scene) -> None:
    scene.partition.may_answer = False
    parked = scene.ask("park")
    scene.clock.advance(500)
    assert codes(scene.ask("bad"), parked) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2


def test_a_read_that_waited_for_records_is_refused_and_the_records_are_told(scene: Scene) -> None:
    added, read = scene.ask("add", 3), scene.ask("read")
    scene.partition.may_answer = False
    scene.commit()
    assert codes(added, read) == [3, ErrorCode.NOT_LEADER_OR_FOLLOWER]
