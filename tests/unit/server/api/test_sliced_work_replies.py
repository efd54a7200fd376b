"""Replies that would hold the loop for long: others have their turns while one is made."""

from __future__ import annotations

from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.server.handlers import admin_configs, describe_log_dirs, metadata
from duramen.wire.messages import API

METADATA = 3
ALL = {"topics": None, "allow_auto_topic_creation": False}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    """Thirteen topics of 1 to 40 partitions."""
    for handler in (metadata, describe_log_dirs, admin_configs):
        monkeypatch.setattr(handler, "STEP", 7)
    server = InProcess(num_partitions="3")
    line = server.connect()
    request = API[19].request
    for number in range(13):
        topic = request.CreatableTopic(name=f"t{number:02}", num_partitions=1 + 3 * number, replication_factor=1)
        assert line.call(19, 7, topics=[topic], timeout_ms=1000).topics[0].error_code == 0
    return server


def named(*names: str) -> list[Any]:
    return [API[METADATA].request.MetadataRequestTopic(name=name) for name in names]


def turn(server: InProcess) -> None:
    """What the loop does in a turn, and no lane."""
    ready, server.clock.ready[:] = list(server.clock.ready), []
    for callback in ready:
        callback()


@pytest.mark.parametrize("version", range(14))
def test_a_reply_in_turns_says_what_one_at_once_says(
    server: InProcess, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = server.connect()
    some = named("t12", "t03", "t12", "t00", *(["absent"] if version >= 4 else []))
    wanted = (
        [ALL, {**ALL, "topics": some}] if version >= 4 else [{"topics": [] if version == 0 else None}, {"topics": some}]
    )
    in_turns = [line.call(METADATA, version, **fields) for fields in wanted]
    assert len(in_turns[0].topics) == 13
    monkeypatch.setattr(metadata, "STEP", 1 << 30)
    assert [line.call(METADATA, version, **fields) for fields in wanted] == in_turns


def test_directories_and_settings_are_described_in_turns_too(
    server: InProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, other = server.connect(), server.connect()
    resource = API[32].request.DescribeConfigsResource
    asked: list[tuple[int, int, dict[str, Any]]] = [
        (35, 4, {"topics": None}),
        (32, 4, {"resources": [resource(resource_type=2, resource_name=f"t{number:02}") for number in range(14)]}),
    ]
    found = []
    for key, version, fields in asked:
        line.ask(key, version, **fields)
        turn(server)
        other.ask(METADATA, 12, **{**ALL, "topics": named("t00")})
        assert other.answer(METADATA, 12).topics
        assert line.answer(key, version) is None
        server.run()
        found.append(line.answer(key, version))
    for handler in (describe_log_dirs, admin_configs):
        monkeypatch.setattr(handler, "STEP", 1 << 30)
    assert [line.call(key, version, **fields) for key, version, fields in asked] == found
    assert len(found[0].results[0].topics) == 13
    assert [result.error_code for result in found[1].results] == [0] * 13 + [3]


def test_others_are_answered_while_it_is_made(server: InProcess) -> None:
    one, other = server.connect(), server.connect()
    one.ask(METADATA, 12, **ALL)
    turns = 0
    while not server.lanes.waiting:
        turn(server)
        other.ask(METADATA, 12, **{**ALL, "topics": named("t00")})
        assert len(other.answer(METADATA, 12).topics) == 1
        turns += 1
    assert turns > 20
    assert one.answer(METADATA, 12) is None
    server.run()
    assert len(one.answer(METADATA, 12).topics) == 13


def test_one_is_made_at_a_time_and_what_its_client_sends_behind_it_waits(server: InProcess) -> None:
    one, other = server.connect(), server.connect()
    for line in (one, other):
        line.ask(METADATA, 12, **ALL)
        line.ask(METADATA, 12, **{**ALL, "topics": named("t01")})
    while not server.lanes.waiting:
        turn(server)
    assert one.answer(METADATA, 12) is other.answer(METADATA, 12) is None
    server.run()
    for line in (one, other):
        assert [len(line.answer(METADATA, 12).topics) for _ in range(2)] == [13, 1]


def test_a_topic_that_goes_meanwhile_is_left_out(server: InProcess) -> None:
    one, other = server.connect(), server.connect()
    doomed = API[20].request.DeleteTopicState(name="t12", topic_id=bytes(16))
    server.lanes.held.add("journal")
    other.ask(20, 6, topics=[doomed], timeout_ms=1000)
    server.run()
    one.ask(METADATA, 12, **ALL)
    turn(server)
    assert "t12" in server.broker.image.topics
    server.lanes.held.clear()
    while "t12" in server.broker.image.topics:
        assert server.lanes.step()
    server.run()
    assert [topic.name for topic in one.answer(METADATA, 12).topics] == [f"t{number:02}" for number in range(12)]


def test_a_client_that_goes_meanwhile_holds_nobody_up(server: InProcess) -> None:
    def leave(line: Line) -> None:
        (connection,) = [each for each in server.broker.acceptor.connections if each.transport is line]
        connection.close("test")

    gone, late, stays = server.connect(), server.connect(), server.connect()
    for line in (gone, late, stays):
        line.ask(METADATA, 12, **ALL)
    turn(server)
    leave(gone)
    while not server.lanes.waiting:
        turn(server)
    leave(late)
    server.run()
    assert gone.answer(METADATA, 12) is late.answer(METADATA, 12) is None
    assert len(stays.answer(METADATA, 12).topics) == 13
    assert stays.call(METADATA, 12, **{**ALL, "topics": named("t01")}).topics
