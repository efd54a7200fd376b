"""Many readers follow one stream: the gateway reads it once for all of them, and each gets every record once."""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tests.worlds.served_gateway import ServedGateway, answer_from, request
from tests.worlds.served_node import Served

JSON = "application/json"
READERS = 100
PATH = "/v1/stream/crowd"
SECONDS_MAX = 30
LAST_CHUNK = b"\r\n0\r\n\r\n"
TAIL_BYTES = 1 << 20


def test_a_hundred_readers_over_a_kill(served: Served, tmp_path: Path) -> None:
    gateway = ServedGateway(tmp_path, served.bootstrap)
    gateway.start()
    readers: dict[socket.socket, bytearray] = {}
    try:
        gateway.ask("PUT", PATH, b"0", content_type=JSON)
        for number in range(READERS):
            reader = gateway.connect()
            asked = request("GET", f"{PATH}?offset=-1&live=sse")
            reader.sendall(asked if number % 2 else asked.replace(b"HTTP/1.1", b"HTTP/1.0"))  # these go through ASGI
            readers[reader] = bytearray()
        _read_until(readers, 1)
        _write(gateway, range(1, 20))
        _read_until(readers, 20)
        served.kill()
        served.start()
        _write(gateway, range(20, 40))
        _read_until(readers, 40)
        metrics = gateway.ask("GET", "/metrics").body.decode()
        assert "\nduramen_gateway_tails 1.0\n" in metrics
        one_copy = sum(len(str(number)) + 80 for number in range(1, 40))  # a batch has some 70 bytes around a record
        found = re.search(r"\nduramen_gateway_tail_bytes_read_total (\S+)\n", metrics)
        assert found is not None
        assert 0 < float(found[1]) < 1.5 * one_copy
        gateway.ask("POST", PATH, stream_closed="true")
        _receive(readers, lambda received: received.endswith(LAST_CHUNK))  # uvicorn ends HTTP/1.0's so, too
        assert all(received.count(b'"streamClosed":true') == 1 for received in readers.values())
    finally:
        for reader in readers:
            reader.close()
        gateway.kill()


def test_a_slow_reader_keeps_nobody_waiting_and_loses_nothing(served: Served, tmp_path: Path) -> None:
    path, count = "/v1/stream/slow", 60
    gateway = ServedGateway(tmp_path, served.bootstrap, {"gateway.tail.max.bytes": str(TAIL_BYTES)})
    gateway.start()
    try:
        gateway.ask("PUT", path, content_type="text/plain")
        with gateway.connect() as slow, gateway.connect() as quick, gateway.connect() as polling:
            for reader in (slow, quick):
                reader.sendall(request("GET", f"{path}?offset=-1&live=sse"))
            received = {quick: bytearray()}
            _receive(received, lambda got: b"upToDate" in got)
            for number in range(count):
                body = b"<%d>" % number + b"x" * (128 << 10)
                assert gateway.ask("POST", path, body, content_type="text/plain").status == 204
                _receive(received, lambda got, mark=b"<%d>" % number: mark in got)  # type: ignore[misc]
            held = re.search(rb"\nduramen_gateway_tail_held_bytes (\S+)\n", gateway.ask("GET", "/metrics").body)
            assert held is not None
            assert float(held[1]) <= TAIL_BYTES
            assert b"catch_up_reads_total 0.0" in gateway.ask("GET", "/metrics").body
            received[slow] = bytearray()
            _receive(received, lambda got: b"<%d>" % (count - 1) in got)
            for got in received.values():
                assert _marks(bytes(got)) == list(range(count))
            assert b"catch_up_reads_total 0.0" not in gateway.ask("GET", "/metrics").body
            polling.sendall(request("GET", f"{path}?offset=now&live=long-poll"))
            time.sleep(0.2)
            assert gateway.ask("DELETE", path).status == 204
            assert answer_from(polling).status == 404
            _receive(received, lambda got: got.endswith(LAST_CHUNK))
    finally:
        gateway.kill()


def test_a_reader_that_reads_nothing_is_cut_and_goes_on_from_its_position(served: Served, tmp_path: Path) -> None:
    path, count = "/v1/stream/stuck", 80
    gateway = ServedGateway(tmp_path, served.bootstrap, {"gateway.sse.ms": "1000"})
    gateway.start()
    try:
        gateway.ask("PUT", path, content_type="text/plain")
        for number in range(count):
            gateway.ask("POST", path, b"<%d>" % number + b"x" * (128 << 10), content_type="text/plain")
        received = bytearray()
        with gateway.connect() as stuck:
            stuck.sendall(request("GET", f"{path}?offset=-1&live=sse"))
            while b"event: data" not in received:  # it is a reader now, until it is cut
                received += stuck.recv(64)
            assert _no_readers(gateway)
            with contextlib.suppress(ConnectionResetError):
                while part := stuck.recv(1 << 20):
                    received += part
        whole = bytes(received[: received.rindex(b"\n\n")])
        last_id = re.findall(rb"\nid: (\S+)", whole)[-1].decode()
        assert len(_marks(whole)) < count
        got = _marks(whole[: whole.rindex(last_id.encode())])
        while len(got) < count:
            answer = gateway.ask("GET", f"{path}?offset={last_id}")
            got += [int(number) for number in re.findall(rb"<(\d+)>", answer.body)]
            last_id = answer.next
        assert got == list(range(count))
    finally:
        gateway.kill()


def _no_readers(gateway: ServedGateway) -> bool:
    """Whether it comes to that."""
    end = time.monotonic() + SECONDS_MAX
    while b"\nduramen_gateway_readers 0.0\n" not in gateway.ask("GET", "/metrics").body:
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _marks(received: bytes) -> list[int]:
    return [int(number) for number in re.findall(rb"data:<(\d+)>", received)]


def _write(gateway: ServedGateway, numbers: range) -> None:
    for number in numbers:
        named = {"producer_id": "w", "producer_epoch": "0", "producer_seq": str(number - 1)}
        answer = gateway.ask("POST", PATH, b"%d" % number, content_type=JSON, **named)
        assert answer.status in (200, 204), answer


def _read_until(readers: dict[socket.socket, bytearray], count: int) -> None:
    """Every reader has exactly the first numbers, in order."""
    _receive(readers, lambda received: len(_numbers(received)) >= count)
    for received in readers.values():
        assert _numbers(received) == list(range(count))


def _receive(readers: dict[socket.socket, bytearray], has_all: Callable[[bytearray], bool]) -> None:
    """Until each reader has what it has to."""
    end = time.monotonic() + SECONDS_MAX
    with selectors.DefaultSelector() as selector:
        for reader, received in readers.items():
            if not has_all(received):
                selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            assert time.monotonic() < end
            for key, _ in selector.select(1):
                reader = key.fileobj
                assert isinstance(reader, socket.socket)
                part = reader.recv(1 << 20)
                readers[reader] += part
                if has_all(readers[reader]):
                    selector.unregister(reader)
                else:
                    assert part, readers[reader][-200:]


def _numbers(received: bytearray) -> list[int]:
    return [n for event in re.findall(rb"event: data\ndata:(.*)\nid: ", received) for n in json.loads(event)]
