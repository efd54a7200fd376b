"""A node in a small container, and producers that could fill its memory many times over."""

from __future__ import annotations

import re
import select
import sys
from pathlib import Path

import pytest
from tests.integration.rawclient import PRODUCE, Raw, batch, frame
from tests.worlds.served_node import Served, only_duramen

from duramen.wire.messages import API

MIB = 1024 * 1024
LIMIT = 128 * MIB
PRODUCERS = 160
QUIET_SECONDS = 0.3
STARTED_IN = """
import sys
from pathlib import Path
from duramen.server.net import memory_limit
memory_limit.ROOT = Path(sys.argv.pop(1))
from duramen.cli.main import main
main()
"""


class Contained(Served):
    """A server that finds this bound in its control group."""

    def __init__(self, folder: Path, limit: int) -> None:
        super().__init__(folder)
        self.root = folder / "root"
        for name, text in (("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", f"{limit}\n")):
            (self.root / name).parent.mkdir(parents=True)
            (self.root / name).write_text(text)

    def command(self) -> list[str]:
        return [sys.executable, "-c", STARTED_IN, str(self.root), *super().command()[1:]]

    def peak_bytes(self) -> int:
        """The most memory that the process has had."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def send_while_taken(unsent: dict[Raw, memoryview], leave: int) -> None:
    """Send to all as long as the node takes something of anybody, of each all but the last `leave` bytes."""
    while due := [raw for raw, rest in unsent.items() if len(rest) > leave]:
        _, writable, _ = select.select([], [raw.socket for raw in due], [], QUIET_SECONDS)
        if not writable:
            return
        for raw in due:
            if raw.socket in writable:
                rest = unsent[raw]
                unsent[raw] = rest[raw.socket.send(rest[: len(rest) - leave]) :]


@only_duramen
@pytest.mark.skipif(sys.platform != "linux", reason="control groups and VmHWM are Linux's")
def test_many_large_records_in_flight_stay_below_the_containers_memory(tmp_path: Path) -> None:
    server = Contained(tmp_path, LIMIT)
    server.start()
    raws = [Raw(server.port) for _ in range(PRODUCERS)]
    try:
        raws[0].create_topic("t")
        request = API[PRODUCE].request
        records = request.PartitionProduceData(index=0, records=batch(b"x" * 1_000_000))
        topic = request.TopicProduceData(name="t", partition_data=[records])
        whole = memoryview(frame(PRODUCE, 9, request.new(acks=-1, timeout_ms=30_000, topic_data=[topic])))
        unsent = dict.fromkeys(raws, whole)
        for raw in raws:
            raw.socket.setblocking(False)
        send_while_taken(unsent, leave=1)  # together more than there is, and no frame complete
        sent = [raw for raw, rest in unsent.items() if len(rest) == 1]
        assert sent
        while unsent:
            send_while_taken(unsent, leave=0)
            for raw in [raw for raw, rest in unsent.items() if not rest]:
                del unsent[raw]
                raw.socket.settimeout(60)
                _, reply = raw.reply(PRODUCE, 9)
                assert reply.responses[0].partition_responses[0].error_code == 0
        assert server.peak_bytes() < LIMIT
        assert f"limit={LIMIT}" in server.log()
    finally:
        for raw in raws:
            raw.socket.close()
        server.kill()
