"""A process that may not open many files, and clients that would take all of them."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.worlds.served_node import Served, only_duramen

DESCRIPTORS = 256


class Narrow(Served):
    """A server that may have so many descriptors."""

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh", *super().command()]


@only_duramen
def test_connections_leave_the_files_their_descriptors(tmp_path: Path) -> None:
    server = Narrow(tmp_path, {"log.flush.offset.checkpoint.interval.ms": "500"})
    server.start()
    try:
        client = {"bootstrap.servers": server.bootstrap}
        admin = AdminClient(client)
        admin.create_topics([NewTopic("t", 3, 1)])["t"].result(30)
        producer = Producer(client)
        failures: list[object] = []

        def produce() -> int:
            for _ in range(20):
                producer.produce("t", b"x" * 1000, on_delivery=lambda error, _: failures.append(error))
            return producer.flush(30)

        assert produce() == 0
        with ExitStack() as held:
            for _ in range(DESCRIPTORS + 100):
                held.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=30))
            for _ in range(4):
                assert produce() == 0, "who was there before is served, and what he writes is checkpointed"
                time.sleep(1)
        assert produce() == 0
        assert failures
        assert not any(failures)
        assert "directory-failed" not in server.log()
    finally:
        server.kill()
