"""A program that writes with our own client as fast as it can: batches of 100 records of 1 KB, one after the other on
each of eight connections. It prints MB/s.

    python -m benchmarks.stream_client 127.0.0.1:9092 TOPIC SECONDS
"""

from __future__ import annotations

import asyncio
import sys
import time

from duramen.client.aio import AsyncCluster
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch

WRITERS, RECORDS, SIZE = 8, 100, 1000
WARM_SECONDS = 0.5


async def write(bootstrap: str, topic: str, seconds: float) -> float:
    """MB/s, after a moment that does not count."""
    value = b"v" * SIZE
    started = time.monotonic() + WARM_SECONDS
    done = 0

    async def writer(cluster: AsyncCluster) -> None:
        nonlocal done
        while (now := time.monotonic()) < started + seconds:
            rows = [(None, value, (), int(time.time() * 1000))] * RECORDS
            await cluster.produce(TopicPartition(topic, 0), build_batch(rows))
            done += now >= started

    clusters = [AsyncCluster([bootstrap]) for _ in range(WRITERS)]
    try:
        await asyncio.gather(*(writer(cluster) for cluster in clusters))
    finally:
        for cluster in clusters:
            await cluster.close()
    return done * RECORDS * SIZE / seconds / 1e6


if __name__ == "__main__":
    print(asyncio.run(write(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
