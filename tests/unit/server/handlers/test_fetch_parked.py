"""Fetches that wait for records: bounded over all connections, and counted back however they end."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.server.handlers import fetch
from duramen.wire.messages import API

MOST = 4


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> InProcess:
    monkeypatch.setattr(fetch, "MAX_PARKED_PARTITIONS", MOST)
    world = InProcess()
    world.connect().create_topic("t")
    return world


def waiting(server: InProcess, wait: int = 60_000) -> Line:
    line = server.connect()
    line.ask_fetch("t", 0, wait=wait)
    server.run()
    return line


def test_beyond_the_bound_a_fetch_is_answered_with_what_there_is(server: InProcess) -> None:
    parked = [waiting(server) for _ in range(MOST)]
    assert [line.fetched() for line in parked] == [None] * MOST
    late = waiting(server)
    entry = late.fetched()
    assert (entry.error_code, len(entry.records)) == (0, 0)
    assert server.connect().produce("t", b"wakes all").error_code == 0
    server.run()
    assert all(len(line.fetched().records) > 0 for line in parked)
    assert server.broker.parked.partitions == 0
    late.ask_fetch("t", 1, wait=60_000)
    server.run()
    assert late.fetched() is None, "now there is room"


@pytest.mark.parametrize("end", ["records", "time", "the client goes", "the topic goes"])
def test_however_it_ends_its_place_is_free_again(server: InProcess, end: str) -> None:
    parked = [waiting(server, wait=5000) for _ in range(MOST)]
    assert server.broker.parked.partitions == MOST
    if end == "records":
        server.connect().produce("t", b"x")
    elif end == "the client goes":
        for connection in list(server.broker.acceptor.connections):
            if connection.transport in parked:
                connection.close("test")
    elif end == "the topic goes":
        state = API[20].request.DeleteTopicState(name="t")
        assert server.connect().call(20, 6, topics=[state], timeout_ms=1000).responses[0].error_code == 0
    server.pass_ms(100 if end != "time" else 5001)
    assert server.broker.parked.partitions == 0


def test_what_a_parked_request_asked_for_is_kept_once(server: InProcess) -> None:
    line = waiting(server)
    kind: Any = type(API[1].request.FetchPartition())
    gc.collect()
    assert not [found for found in gc.get_objects() if type(found) is kind]
    assert line.fetched() is None
