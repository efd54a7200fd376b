"""Many readers follow one stream: the gateway reads it once for all of them, and each gets every record once."""

from __future__ import annotations

import json
import re
import selectors
import socket
import time
from pathlib import Path

from tests.worlds.served_gateway import ServedGateway, request
from tests.worlds.served_node import Served

JSON = "application/json"
READERS = 100
PATH = "/v1/stream/crowd"
SECONDS_MAX = 30


def test_a_hundred_readers_over_a_kill(served: Served, tmp_path: Path) -> None:
    gateway = ServedGateway(tmp_path, served.bootstrap)
    gateway.start()
    readers: dict[socket.socket, bytearray] = {}
    try:
        gateway.ask("PUT", PATH, b"0", content_type=JSON)
        for _ in range(READERS):
            reader = gateway.connect()
            reader.sendall(request("GET", f"{PATH}?offset=-1&live=sse"))
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
    finally:
        for reader in readers:
            reader.close()
        gateway.kill()


def _write(gateway: ServedGateway, numbers: range) -> None:
    for number in numbers:
        named = {"producer_id": "w", "producer_epoch": "0", "producer_seq": str(number - 1)}
        answer = gateway.ask("POST", PATH, b"%d" % number, content_type=JSON, **named)
        assert answer.status in (200, 204), answer


def _read_until(readers: dict[socket.socket, bytearray], count: int) -> None:
    """Every reader has exactly the first numbers, in order."""
    end = time.monotonic() + SECONDS_MAX
    with selectors.DefaultSelector() as selector:
        for reader in readers:
            selector.register(reader, selectors.EVENT_READ)
        while selector.get_map():
            assert time.monotonic() < end
            for key, _ in selector.select(1):
                reader = key.fileobj
                assert isinstance(reader, socket.socket)
                part = reader.recv(1 << 16)
                assert part, readers[reader][-200:]
                readers[reader] += part
            for reader in [each for each in readers if each in selector.get_map()]:
                if len(_numbers(readers[reader])) >= count:
                    selector.unregister(reader)
    for received in readers.values():
        assert _numbers(received) == list(range(count))


def _numbers(received: bytearray) -> list[int]:
    return [n for event in re.findall(rb"event: data\ndata:(.*)\n\n", received) for n in json.loads(event)]
