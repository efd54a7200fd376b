"""Thousands of connections to a gateway that do nothing, or begin something and go no further, beside one that works.

A quarter each: nothing at all, half a head, half a body, and kept after an answer. The first three have to be told
408 and closed in time; the last ones can still be used; and who works beside them is answered all the while.

    make torture-idle       [CONNECTIONS=5000]
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import select
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.worlds.served_gateway import ServedGateway, request
from tests.worlds.served_node import Served

HEAD_S: Final = 10.0
BODY_S: Final = 15.0
SETTINGS = {"gateway.head.timeout.ms": str(int(HEAD_S * 1000)), "gateway.request.timeout.ms": str(int(BODY_S * 1000))}
LATE_S: Final = 10.0
"""A shared machine may be so much later."""
ANSWER_S_MAX: Final = 2.0
KIB_MAX: Final = 32
"""Of the gateway's memory, for a connection."""
SPARE_DESCRIPTORS: Final = 200

ASKED = request("GET", "/healthz")
HALF_HEAD = ASKED[:-10]
HALF_BODY = request("POST", "/v1/stream/idle", b"half", content_type="text/plain", content_length="1000")


def resident_kib(pid: int) -> int:
    """Memory of a process."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


class Bystander:
    """Somebody who works: one request at a time, each on a connection of its own."""

    def __init__(self, gateway: ServedGateway) -> None:
        self._gateway = gateway
        self.seconds: list[float] = []

    def work(self) -> None:
        began = time.monotonic()
        answer = self._gateway.ask("POST", "/v1/stream/idle", b"x", content_type="text/plain")
        assert answer.status == 204, answer
        self.seconds.append(time.monotonic() - began)


def answered(connection: socket.socket) -> None:
    """ASKED is answered."""
    found = b""
    while not found.endswith(b"ok\n"):
        found += connection.recv(4096)
    assert found.startswith(b"HTTP/1.1 200")


def ended(waiting: set[socket.socket], bystander: Bystander, within_s: float) -> None:
    """All of them are told 408 and closed in time."""
    until = time.monotonic() + within_s
    poll = select.poll()
    by_number = {each.fileno(): each for each in waiting}
    for number in by_number:
        poll.register(number, select.POLLIN)
    while by_number:
        assert time.monotonic() < until, f"{len(by_number)} connections are still open after {within_s} s"
        for number, _ in poll.poll(100):
            said = by_number[number].recv(4096)
            assert not said or b" 408 " in said or b"body-timeout" in said, said
            if not said:
                poll.unregister(number)
                by_number.pop(number).close()
        bystander.work()


def run(gateway: ServedGateway, connections: int) -> str:
    """One run; what it has found in one line. AssertionError where something is not as it should be."""
    assert gateway.process is not None
    gateway.ask("PUT", "/v1/stream/idle", content_type="text/plain")
    bystander = Bystander(gateway)
    for _ in range(20):
        bystander.work()
    alone = max(bystander.seconds)
    before = resident_kib(gateway.process.pid)
    kinds: dict[bytes, set[socket.socket]] = {b"": set(), HALF_HEAD: set(), HALF_BODY: set(), ASKED: set()}
    for number in range(connections):
        sent, opened = list(kinds.items())[number % 4]
        connection = gateway.connect()
        connection.sendall(sent)
        opened.add(connection)
        if not number % 100:
            bystander.work()
    for kept in kinds[ASKED]:
        answered(kept)
    each = (resident_kib(gateway.process.pid) - before) / connections
    ended(kinds[b""] | kinds[HALF_HEAD], bystander, HEAD_S + LATE_S)
    ended(kinds[HALF_BODY], bystander, BODY_S + LATE_S)
    for kept in kinds[ASKED]:
        kept.sendall(ASKED)
    for kept in kinds[ASKED]:
        answered(kept)
        kept.close()
    bystander.work()
    slowest = max(bystander.seconds)
    assert slowest < ANSWER_S_MAX, f"somebody who worked waited {slowest:.2f} s"
    assert each < KIB_MAX, f"{each:.1f} KiB for each connection"
    return (
        f"{connections} connections, {each:.1f} KiB each; {len(bystander.seconds)} requests beside them, "
        f"slowest {slowest * 1000:.0f} ms (alone {alone * 1000:.0f} ms)"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=5000)
    connections = parser.parse_args().connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < connections + SPARE_DESCRIPTORS:
        sys.stdout.write(f"skipped: a process may open {hard} files here (ulimit -Hn)\n")
        return 0
    with tempfile.TemporaryDirectory() as name:
        node = Served(Path(name))
        gateway = ServedGateway(Path(name), node.bootstrap, SETTINGS)
        with contextlib.ExitStack() as stack:
            stack.callback(node.kill)
            stack.callback(gateway.kill)
            node.start()
            gateway.start()  # with the few that this process has: it takes more by itself
            wanted = connections + SPARE_DESCRIPTORS
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
            sys.stdout.write(run(gateway, connections) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
