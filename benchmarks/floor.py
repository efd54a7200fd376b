"""Owns the limits: what this machine takes of a process for a request, and for a gigabyte, that does nothing with them.

The budgets of `benchmarks.scenarios` are absolute and machines differ by a factor of three. Beside a broker's figure
belongs that of a loop in the same language that only receives and answers (`per_request_us`), or only receives, sums
and writes (`per_gb_s`): the rest is what the broker adds.
"""

from __future__ import annotations

import os
import resource
import selectors
import socket
import statistics
import subprocess
import sys
from pathlib import Path

import crc32c

from benchmarks import clients, machine

MIB = 1 << 20
CONNECTIONS = 16
REQUEST_SECONDS = 2.0
BULK_MIB = 512
PIECE = 256 << 10
ROUNDS = 3

ANSWER = b"\0\x02\x02f\x02" + bytes(4) + bytes(2) + bytes(24) + b"\x01\0\0" + b"\0" + bytes(4) + b"\0"
"""A Produce v10 response behind its correlation id: topic "f", partition 0, no error, offset 0."""


def per_request_us() -> float:
    """Processor time in µs of a loop that receives a one-record Produce request of 100 B and sends a fixed answer."""
    return statistics.median(_one_round_of_requests() for _ in range(ROUNDS))


def per_gb_s(directory: Path) -> float:
    """Processor seconds of a loop that receives 10^9 bytes from loopback, sums them once (CRC-32C) and writes them."""
    found = []
    for _ in range(ROUNDS):
        machine.heat_page_cache(directory, BULK_MIB * 5 // 4)
        machine.settle_disk(directory)
        found.append(_one_round_of_bulk(directory / "floor.probe"))
    return statistics.median(found)


def _one_round_of_requests() -> float:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.floor"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        load = clients.raw(
            "produce", port, REQUEST_SECONDS + 30, topic="f", size=100, records=1, seconds=REQUEST_SECONDS,
            connections=CONNECTIONS, partitions=1, inflight=1,
        )  # fmt: skip
        said, _ = server.communicate(timeout=30)
    return float(said) / int(load["requests"]) * 1e6


def _answer_everything() -> None:
    """The other process: print the port, answer until standard input ends, print the processor time it took."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    waiting.register(sys.stdin, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    size = (4 + len(ANSWER)).to_bytes(4, "big")
    before = _cpu_seconds()
    while True:
        for key, _ in waiting.select():
            if key.fileobj is sys.stdin:
                print(_cpu_seconds() - before)
                return
            if key.fileobj is listener:
                connection, _ = listener.accept()
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                waiting.register(connection, selectors.EVENT_READ, connection)
                continue
            request = key.data.recv(65536)
            if request:
                key.data.send(size + request[8:12] + ANSWER)
            else:
                waiting.unregister(key.data)


def _one_round_of_bulk(path: Path) -> float:
    total = BULK_MIB * MIB
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = os.fork()
        if sender == 0:
            with socket.create_connection(listener.getsockname()) as connection:
                for _ in range(BULK_MIB):
                    connection.sendall(bytes(MIB))
            os._exit(0)
        ours, _ = listener.accept()
    with ours:
        before = _cpu_seconds()
        buffer = memoryview(bytearray(PIECE))
        with path.open("wb", buffering=0) as file:
            while size := ours.recv_into(buffer):
                crc32c.crc32c(buffer[:size])
                file.write(buffer[:size])
        took = _cpu_seconds() - before
        path.unlink()
        os.waitpid(sender, 0)
    return took / total * 1e9


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    _answer_everything()
