"""A live status goes on, whatever happens to the node."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import click
import pytest

from duramen.cli.commands import status_look
from duramen.cli.commands.group import GroupPosition
from duramen.cli.commands.status_look import (
    GroupStatus,
    Looks,
    PartitionStatus,
    Status,
    TopicStatus,
    attention,
    headline,
)
from duramen.cli.shared.node_look import KnownNode
from duramen.errors import NetworkError

GONE = click.ClickException("cannot reach a node at a:1 (Connection refused). Start one with `duramen serve`.")


def status(told: float, trouble: str | None = None) -> Status:
    return Status("c", 1, [KnownNode(1, "a", 1)], [], [], trouble, None, [], told, told)


class World:
    """A cluster whose clients are numbered; `answers` come out of the looks, in turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []
        self.gone = False
        self.clients = 0
        self.over = threading.Event()
        monkeypatch.setattr(status_look, "look", self.look)

    def look(self, _cluster: Any, admin: Any, _before: Any) -> Status:
        self.asked.append(admin)
        answer = self.answers.pop(0)
        if answer is None:  # the library waits for its time-out
            self.over.wait(60)
            raise click.ClickException("too late")
        if isinstance(answer, Exception):
            raise answer
        found: Status = answer
        return found

    def probe(self) -> None:
        if self.gone:
            raise GONE

    def admin(self) -> Any:
        self.clients += 1
        return self.clients

    def looks(self) -> Looks:
        cluster: Any = SimpleNamespace(probe=self.probe, admin=self.admin, patience=35.0)
        return Looks(cluster, self.admin(), status(0.0), 2.0)


def test_a_node_that_is_away_is_told_with_the_time_and_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, status(10.0), status(100.0))
    looks = world.looks()
    looks.again()
    assert looks.away(11.0) is None
    world.gone = True
    for _ in range(20):
        looks.again()
    told = looks.away(50.0)
    assert told is not None
    assert told.startswith("no answer since ")
    assert told.endswith("(40 s): cannot reach a node at a:1 (Connection refused)")
    world.gone = False
    looks.again()
    assert (looks.away(101.0), looks.status.told) == (None, 100.0)
    assert world.asked == [1, 2], "the library is made anew"


@pytest.mark.parametrize("failed", [click.ClickException("no answer in time"), NetworkError("cut"), OSError("cut")])
def test_after_a_look_that_failed_the_library_is_made_anew(monkeypatch: pytest.MonkeyPatch, failed: Exception) -> None:
    world = World(monkeypatch, failed, status(5.0), status(7.0))
    looks = world.looks()
    for _ in range(3):
        looks.again()
    assert world.asked == [1, 2, 2]
    assert (looks.trouble, looks.status.told) == (None, 7.0)


def test_groups_that_cannot_be_listed_are_asked_for_with_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps a coordinator that died."""
    world = World(monkeypatch, status(1.0, "cannot list groups: no answer in time"), status(3.0))
    looks = world.looks()
    looks.again()
    looks.again()
    assert world.asked == [1, 2]


def test_a_look_that_gets_no_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, None, status(3.0))
    looks = world.looks()
    looks._patience = 0.01
    looks.again()
    assert looks.trouble == "the node takes connections and does not answer in time"
    looks.again()
    assert (looks.trouble, looks.status.told) == (None, 3.0)
    world.over.set()


def test_a_look_that_outlasts_its_node_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch, None)
    looks = world.looks()
    looks._patience = 0.01
    probes = iter([None, GONE])

    def probe() -> None:
        found = next(probes)
        if found is not None:
            raise found

    cluster: Any = SimpleNamespace(probe=probe, admin=world.admin, patience=35.0)
    looks._cluster = cluster
    looks.again()
    assert looks.trouble == GONE.message
    world.over.set()


def test_silence_is_told_while_the_look_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = World(monkeypatch).looks()
    assert looks.away(6.0) is None
    told = looks.away(8.0)
    assert told is not None
    assert told.endswith("(8 s): the node does not answer")


def test_the_lag_of_a_topic_is_that_of_the_group_that_has_most() -> None:
    def group(name: str, *lags: int | None) -> GroupStatus:
        positions = tuple(GroupPosition("t", number, 0, 9, lag, None) for number, lag in enumerate(lags))
        return GroupStatus(name, "Stable", 1, None, positions)

    assert status_look._lags([group("a", 3, 4), group("b", 6, None), group("c", None)]) == {"t": 7}


TRIO = [KnownNode(1, "a", 1), KnownNode(2, "b", 2, trouble="Connection refused"), KnownNode(3, "c", 3, fenced=True)]


def test_nodes_that_do_not_answer_and_replicas_that_are_behind_are_told() -> None:
    whole = PartitionStatus(0, 1, 0, 5, 10, (1, 2, 3), (1, 2, 3))
    behind = PartitionStatus(1, 1, 0, 5, 10, (1, 2, 3), (1, 3))
    alone = PartitionStatus(2, 1, 0, 5, 10, (1, 2, 3), (1,))
    gone = PartitionStatus(3, None, None, None, None, (2,), (2,))
    topics = [
        TopicStatus("t", (whole, behind, alone), None, None, 2),
        TopicStatus("u", (gone,), None, None),
        TopicStatus("v", (whole,), None, None),
    ]
    found = Status("c", 1, TRIO, topics, [], None, None, [], 0.0, 0.0)
    assert attention(found) == [
        "node 2 (b:2) does not answer: Connection refused",
        "node 3 (c:3) is fenced: it answers, and no controller hears its heartbeats",
        "nobody leads the quorum, or it cannot be asked: `duramen cluster status`",
        "u: 1 of 1 partition offline",
        "1 partition with fewer in sync than min.insync.replicas: acks=all is refused (t)",
        "2 partitions under-replicated (t)",
    ]
    assert headline(found) == "cluster c, controller 1\n3 nodes, 3 topics, 20 records, 40 B, 0 groups"


def test_nothing_is_wrong_with_a_node_alone() -> None:
    whole = PartitionStatus(0, 1, 0, 5, 10, (1,), (1,))
    found = Status("c", 1, TRIO[:1], [TopicStatus("t", (whole,), None, None)], [], None, None, [], 0.0, 0.0)
    assert attention(found) == []
    assert headline(found) == "cluster c, controller 1, nodes 1 (a:1)\n1 topic, 5 records, 10 B, 0 groups"
