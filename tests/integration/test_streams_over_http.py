"""The streams library by way of a gateway whose answers are lost, and what the gateway has for it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.worlds.served_gateway import ServedGateway

from duramen import streams
from duramen.cli.main import main
from duramen.errors import DeadlineError, NothingThereError

JSON = "application/json"


class LosingProxy:
    """In front of a gateway: takes requests there, and loses as many of the next answers as it is told."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.loses = 0
        self.lost = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target)) as server:
            threading.Thread(target=_copy, args=(client, server), daemon=True).start()
            while piece := server.recv(1 << 16):
                if self.loses:
                    self.loses -= 1
                    self.lost += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(piece)

    def close(self) -> None:
        self._listener.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        return


@pytest.fixture
def gateway(shared_gateway: ServedGateway) -> ServedGateway:
    return shared_gateway


@pytest.fixture
def proxy(gateway: ServedGateway) -> Iterator[LosingProxy]:
    found = LosingProxy(gateway.port)
    yield found
    found.close()


def test_appends_whose_answers_are_lost_are_stored_once(proxy: LosingProxy) -> None:
    with streams.open(f"duramen+http://127.0.0.1:{proxy.port}/lost", timeout_s=10) as space:
        stream = space.create(f"s-{uuid4().hex}", txid="application")
        proxy.loses = 2
        first = stream.append([streams.NewStreamRecord(b"a", txid=1), streams.NewStreamRecord(b"b", txid=2)])
        assert (proxy.lost, first.offset, first.end, first.duplicate) == (2, 0, 2, False)
        proxy.loses = 1
        second = stream.append(streams.NewStreamRecord(b"c", txid=3), expected_position=2)
        assert second.offset == 2
        with stream.writer(name="w", epoch=0) as writer:
            writer.write(b"d", txid=4)
            proxy.loses = 1
            writer.flush()
            writer.write(b"e", txid=5)
        proxy.loses = 1
        assert [record.value for record in stream.reader()] == [b"a", b"b", b"c", b"d", b"e"]
        proxy.loses = 1
        stream.close_stream()
        assert stream.is_closed
        assert proxy.lost == 6


def test_a_gateway_that_is_not_there_or_says_nothing(gateway: ServedGateway) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with streams.open(f"duramen+http://127.0.0.1:{port}/x", timeout_s=0.3) as space, pytest.raises(DeadlineError):
            space.exists("s")
    with (
        streams.open(f"duramen+http://127.0.0.1:{port}/x", timeout_s=0.3) as space,
        pytest.raises((DeadlineError, NothingThereError)),
    ):
        space.exists("s")


def test_records_with_all_that_they_have_are_one_batch(gateway: ServedGateway) -> None:
    path = f"/v1/stream/lines/{uuid4().hex}"
    settings = '{"duramen.txid": "application", "max.message.bytes": "100000"}'
    assert gateway.ask("PUT", path, content_type=JSON, stream_settings=settings).status == 201
    body = b'{"key":"k","value":{"n":1},"timestamp":5}\n{"value":2,"timestamp":6,"headers":{"h":"x"}}\n'
    appended = gateway.ask("POST", f"{path}?format=ndjson", body, content_type="application/x-ndjson")
    assert appended.status == 204
    assert gateway.ask("GET", path).json() == [{"n": 1}, 2]
    head = gateway.ask("HEAD", path)
    assert (head.headers["stream-txid"], head.headers["stream-last-txid"]) == ("application", "6")
    writer = {"producer_id": "w", "producer_epoch": "3", "producer_seq": "0", "content_type": "application/x-ndjson"}
    back = gateway.ask("POST", f"{path}?format=ndjson", b'{"value":3,"timestamp":5}', **writer)
    assert (back.status, back.headers["stream-last-txid"]) == (409, "6")
    gateway.ask("POST", f"{path}?format=ndjson", b'{"value":3,"timestamp":7}', **writer)
    assert gateway.ask("GET", f"{path}/.writer?producer=w").json() == {"producer": "w", "epoch": 3, "next_seq": 1}
    assert gateway.ask("GET", f"{path}/.writer?producer=x").json()["epoch"] == -1
    assert gateway.ask("GET", f"{path}/.writer").status == 400
    assert gateway.ask("POST", f"{path}?format=ndjson", body, content_type=JSON).status == 400
    for wrong in ("[1]", '{"retention.ms": 1}', '{"retention.ms": "soon"}', '{"no.such": "1"}'):
        made = gateway.ask("PUT", f"{path}-wrong", stream_settings=wrong)
        assert made.status == 400, wrong
        assert made.json()["detail"].startswith("Stream-Settings"), made.body


def test_the_command_line_by_way_of_a_gateway(gateway: ServedGateway, capfd: pytest.CaptureFixture[str]) -> None:
    at = ("--at", f"duramen+http://127.0.0.1:{gateway.port}/cli")
    name = f"s-{uuid4().hex}"
    assert main(["stream", "create", name, *at]) == 0
    assert main(["stream", "list", *at]) == 0
    assert capfd.readouterr().out == f"{name}\n"
    assert main(["stream", "read", f"{name}x", *at]) == 1
    assert "there is no stream" in capfd.readouterr().err


def test_many_short_records_at_once(gateway: ServedGateway, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    at = f"duramen+http://127.0.0.1:{gateway.port}"
    with streams.open(at, timeout_s=10) as space:
        stream = space.create(f"s-{uuid4().hex}")
        assert stream.append([b""] * 12_000).end == 12_000, "one batch"
        with pytest.raises(
            streams.AppendTooLargeError, match=r"100001 records; a gateway takes at most 100000 .*in parts"
        ):
            stream.append([b""] * 100_001)
        (tmp_path / "lines").write_bytes(b"\n" * 12_000)
        assert main(["stream", "append", stream.name, str(tmp_path / "lines"), "--at", at, "--json"]) == 0
        assert [json.loads(line)["records"] for line in capsys.readouterr().out.splitlines()] == [10_000, 2000]
