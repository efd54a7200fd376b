"""Reading a log that left memory: who reads it from the disk, and what it leaves in the page cache. No times.

How long others wait meanwhile is measured by `make bench-deep-reads`.
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rawclient import FETCH, Raw
from tests.worlds.served_node import Served, only_duramen

from duramen.page_cache import PAGE_BYTES, count_call
from duramen.storage.read.verified_window import RECENT_BYTES
from duramen.wire.batch import batches, records
from duramen.wire.messages import API

pytestmark = [only_duramen, pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")]
MIB = 1 << 20
BATCHES = 40
BATCH_BYTES = 700_000
COUNT = count_call()
REQUEST = API[FETCH].request


def value(number: int) -> bytes:
    return random.Random(number).randbytes(BATCH_BYTES)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A node with a log of 28 MB in several segments, and a hot window that it all fits in; other logs grew since."""
    settings = {"log.segment.bytes": str(9 * MIB), "log.retention.ms": "-1", "duramen.scrub.bytes.per.second": "0"}
    settings["log.flush.offset.checkpoint.interval.ms"] = "500"  # a checkpoint comes before a seal
    server = Served(tmp_path, settings)
    server.start()
    try:
        with Raw(server.port) as raw:
            raw.create_topic("deep", duramen_ack_durability="page-cache")
            raw.create_topic("tail", duramen_ack_durability="page-cache")
            raw.create_topic("other", duramen_ack_durability="page-cache")
            for number in range(BATCHES):
                assert raw.produce("deep", [value(number)]).error_code == 0
            other = value(BATCHES)
            for _ in range(RECENT_BYTES // len(other) + 1):
                assert raw.produce("other", [other]).error_code == 0
        yield server
    finally:
        server.stop()


def logs(server: Served) -> list[Path]:
    return sorted((server.data / "deep-0").glob("*.log"))


def cached(server: Served) -> int:
    """Bytes of the log in memory; asking brings nothing in."""
    assert COUNT is not None
    total = 0
    for path in logs(server):
        with path.open("rb") as file:
            total += COUNT(file.fileno(), 0, path.stat().st_size) * PAGE_BYTES
    return total


def evict(server: Served) -> None:
    """Wait until every finished segment is sealed, which reads it, then drop all pages."""
    patience = time.monotonic() + 60
    while any(not path.with_suffix(".seal").exists() for path in logs(server)[:-1]) and time.monotonic() < patience:
        time.sleep(0.1)
    for _ in range(50):
        for path in logs(server):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if cached(server) == 0:
            return
        time.sleep(0.05)
    pytest.skip("this file system keeps its pages")


def bytes_from_disk(server: Served) -> tuple[int, int]:
    """Bytes fetched from the disk so far: for the loop's thread, and for all others."""
    assert server.process is not None
    pid = server.process.pid
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            lines = (task / "io").read_text().splitlines()
        except OSError:
            pytest.skip("the kernel does not account for each thread's reads")
        found[int(task.name)] = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes:"))
    loop = found.pop(pid)
    return loop, sum(found.values())


def fetch(raw: Raw, topic: str, offset: int) -> Any:
    part = REQUEST.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=MIB)
    wanted = REQUEST.FetchTopic(topic=topic, partitions=[part])
    reply = raw.call(FETCH, 12, max_wait_ms=5000, min_bytes=1, topics=[wanted])
    ((entry,),) = [found.partitions for found in reply.responses]
    assert entry.error_code == 0
    return entry


def values(entry: Any) -> list[bytes]:
    data = memoryview(entry.records)
    return [
        bytes(record.value)
        for at, header in batches(data)
        for record in records(data[at : at + header.size], header, max_bytes=8 * MIB)
    ]


def test_cold_bytes_are_read_beside_the_loop_and_leave_the_cache_alone(served: Served) -> None:
    evict(served)
    loop_before, others_before = bytes_from_disk(served)
    size = sum(path.stat().st_size for path in logs(served))
    offset = 0
    with Raw(served.port) as deep, Raw(served.port) as tail:
        while offset < BATCHES:
            got = values(fetch(deep, "deep", offset))
            assert got == [value(offset + number) for number in range(len(got))]
            assert got
            offset += len(got)
            # Whoever follows the end is served in between.
            assert tail.produce("tail", [b"%d" % offset]).error_code == 0
        assert values(fetch(tail, "tail", 0))[-1] == b"%d" % BATCHES
    loop, others = bytes_from_disk(served)
    assert others - others_before >= size * 0.9, "somebody must have read it from the disk"
    assert loop - loop_before < MIB, "the loop waited for the disk"
    assert cached(served) < size // 4, "the page cache was filled with old data"


def test_what_is_in_memory_is_not_read_from_the_disk(served: Served) -> None:
    before = bytes_from_disk(served)
    with Raw(served.port) as raw:
        offset = 0
        while offset < BATCHES:
            offset += len(values(fetch(raw, "deep", offset)))
    after = bytes_from_disk(served)
    assert sum(after) - sum(before) < MIB
