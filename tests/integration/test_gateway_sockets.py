"""Readers by WebSocket at a real gateway: records, credits, problems, and what floods it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

JSON = "application/json"
PATH = "/v1/stream/sockets/orders"


@pytest.fixture(scope="module")
def gateway(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    found = ServedGateway(tmp_path_factory.mktemp("sockets"), served.bootstrap, {"gateway.sse.ms": "300"})
    found.start()
    yield found
    found.kill()


@contextlib.contextmanager
def opened(
    gateway: ServedGateway, path: str, start: dict[str, Any] | None = None, **extra: Any
) -> Iterator[ClientConnection]:
    url = f"ws://127.0.0.1:{gateway.port}{path}/.socket"
    with connect(url, compression=None, open_timeout=10, max_size=None, **extra) as socket:
        if start is not None:
            socket.send(json.dumps(start))
        yield socket


def said(socket: ClientConnection) -> Any:
    return json.loads(socket.recv(10))


def end_of(socket: ClientConnection) -> int:
    """The close code, whatever came before."""
    with contextlib.suppress(ConnectionClosed):
        while True:
            socket.recv(15)
    assert socket.close_code is not None
    return socket.close_code


def values(message: Any) -> list[Any]:
    return [each["value"] for each in message["records"]]


def test_records_credits_and_the_end(gateway: ServedGateway) -> None:
    gateway.ask("PUT", PATH, content_type=JSON)
    gateway.ask("POST", PATH, b"[0, 1, 2, 3]", content_type=JSON)
    with opened(gateway, PATH, {"from": "-1", "credits": 3}) as socket, opened(gateway, PATH, {"from": "now"}) as late:
        first = said(socket)
        assert (values(first), first["credits"]) == ([0, 1, 2], 0)
        assert "up_to_date" not in first
        at_end = said(late)
        assert (at_end["records"], at_end["up_to_date"], at_end["credits"]) == ([], True, 1000)
        with pytest.raises(TimeoutError):
            socket.recv(0.4)
        socket.send('{"credits": 2}')
        rest = said(socket)
        assert (values(rest), rest["credits"], rest["up_to_date"]) == ([3], 1, True)
        gateway.ask("POST", PATH, b'[{"id": 9007199254740993}, 5]', content_type=JSON)
        assert values(said(late)) == [{"id": 9007199254740993}, 5]
        assert values(said(socket)) == [{"id": 9007199254740993}]
        with opened(gateway, PATH, {"from": first["position"]}) as again:
            assert values(said(again)) == [3, {"id": 9007199254740993}, 5]
        gateway.ask("POST", PATH, stream_closed="true")
        socket.send('{"credits": 2}')
        for each, left in ((socket, [5]), (late, [])):
            got = []
            while not (last := said(each)).get("closed"):
                got += values(last)
            assert got + values(last) == left
            assert end_of(each) == 1000


def test_a_position_of_a_stream_that_was_made_again_is_refused(gateway: ServedGateway) -> None:
    path = "/v1/stream/sockets/again"
    gateway.ask("PUT", path, b"[1,2]", content_type=JSON)
    with opened(gateway, path, {"from": "-1"}) as socket:
        position = said(socket)["position"]
    gateway.ask("POST", path, b"3", content_type=JSON)
    with opened(gateway, path, {"from": position}) as socket:
        assert values(said(socket)) == [3]
    assert gateway.ask("DELETE", path).status == 204
    gateway.ask("PUT", path, b"[4,5]", content_type=JSON)
    with opened(gateway, path, {"from": position}) as socket:
        assert said(socket)["problem"]["type"] == "urn:duramen:position-diverged"
        assert end_of(socket) == 4409


def test_what_is_refused(gateway: ServedGateway) -> None:
    path = "/v1/stream/sockets/refused"
    made = gateway.ask("PUT", path, b"[1,2]", content_type=JSON)
    gateway.ask("POST", f"{path}/.truncate", b'{"before": {"offset": 1}}', content_type=JSON)
    assert gateway.ask("GET", f"{path}/.socket").status == 426
    for origin, status in (("https://evil.example", 403), ("null", 403)):
        with pytest.raises(InvalidStatus) as refused, opened(gateway, path, origin=origin):
            pass
        assert refused.value.response.status_code == status
        assert b"foreign-origin" in refused.value.response.body
    with opened(gateway, path, {"from": "now"}, origin=f"http://127.0.0.1:{gateway.port}") as own:
        assert said(own)["position"] == f"{made.next}.{gateway.ask('HEAD', path).headers['stream-id'][:8]}"
    start = "00000001-0000000000000000-00000000"
    for wanted, code, name in (
        ({"from": "here"}, 4400, "bad-request"),
        ({"from": start}, 4410, "truncated"),
        ({"from": "00000001-0000000000000000-00000005"}, 4409, "position-diverged"),
    ):
        with opened(gateway, path, wanted) as socket:
            found = said(socket)
            assert found["problem"]["type"] == f"urn:duramen:{name}"
            assert end_of(socket) == code
            if name == "truncated":
                with opened(gateway, path, {"from": found["position"]}) as on:
                    assert values(said(on)) == [2]
    with opened(gateway, path, {"from": start, "on_truncated": "advance"}) as advanced:
        found = said(advanced)
        assert (values(found), found["advanced"]) == ([2], True)
        gateway.ask("DELETE", path)
        assert end_of(advanced) == 4404
    with opened(gateway, path, {"from": "-1"}) as gone:
        assert end_of(gone) == 4404


def test_floods_close_the_connection_and_harm_nobody(gateway: ServedGateway) -> None:
    path = "/v1/stream/sockets/floods"
    gateway.ask("PUT", path, b"[1]", content_type=JSON)
    with opened(gateway, path, {"from": "now"}) as other:
        said(other)
        with opened(gateway, path, {"from": "now"}) as socket:
            with contextlib.suppress(ConnectionClosed):
                for _ in range(10_000):
                    socket.send('{"credits": 1}')
            assert end_of(socket) == 1008
        with opened(gateway, path, {"from": "now"}) as socket:
            socket.send("x" * 100_000)
            assert end_of(socket) == 1009
        with opened(gateway, path) as socket, contextlib.suppress(ConnectionClosed):
            socket.send([""] * 10_000)
            assert end_of(socket) == 1008
        gateway.ask("POST", path, b"2", content_type=JSON)
        assert values(said(other)) == [2]
