"""Writers on one asyncio client and a ledger: what was acknowledged is there, and nothing is there twice."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from duramen.client import LATEST
from duramen.client.aio import AsyncCluster
from duramen.errors import OutcomeUnknownError
from duramen.model import TopicPartition
from duramen.wire.batch import batches, build_batch, records

TIME = 1_760_000_000_000


def batch_of(*values: bytes, **fields: int) -> bytes:
    return bytes(build_batch([(None, value, (), TIME) for value in values], **fields))


def values(data: memoryview) -> list[bytes]:
    """Of the records of fetched batches."""
    found = []
    for position, header in batches(data):
        for record in records(data[position : position + header.size], max_bytes=1 << 20):
            assert record.value is not None
            found.append(bytes(record.value))
    return found


async def stored(cluster: AsyncCluster, tp: TopicPartition) -> list[bytes]:
    """The values of a whole partition, in order."""
    found: list[bytes] = []
    offset, end = 0, (await cluster.list_offsets({tp: LATEST}))[tp].offset
    while offset < end:
        fetched = await cluster.fetch(tp, offset, max_wait_ms=0)
        found += values(fetched.data)
        offset = fetched.next_offset
    return found


class AsyncLoad:
    """Eight writers without a producer id on `plain`, four with one each on `known`, until the block ends."""

    def __init__(self, cluster: AsyncCluster, plain: TopicPartition, known: TopicPartition) -> None:
        self.acknowledged: list[bytes] = []
        self.unknown: list[bytes] = []
        """Batches without a producer id of which it is not known whether they are stored."""
        self.once: dict[int, int] = {}
        """Batches of each producer id."""
        self._cluster = cluster
        self._plain = plain
        self._known = known
        self._ended = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        producers = [await self._cluster.init_producer_id() for _ in range(4)]
        writes = [self._write(number) for number in range(8)] + [self._write_once(*producer) for producer in producers]
        self._tasks = [asyncio.create_task(write) for write in writes]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        await asyncio.gather(*self._tasks)

    async def _write(self, writer: int) -> None:
        number = 0
        while not self._ended:
            value = b"%d-%d" % (writer, number)
            number += 1
            try:
                await self._cluster.produce(self._plain, batch_of(value))
                self.acknowledged.append(value)
            except OutcomeUnknownError:
                self.unknown.append(value)

    async def _write_once(self, producer_id: int, epoch: int) -> None:
        self.once[producer_id] = 0
        while not self._ended:
            number = self.once[producer_id]
            batch = batch_of(
                b"%d:%d" % (producer_id, number), producer_id=producer_id, producer_epoch=epoch, base_sequence=number
            )
            await self._cluster.produce(self._known, batch)
            self.once[producer_id] += 1

    async def goes_on(self, seconds: float = 60) -> None:
        """Wait until every kind of writer has written some more."""
        plain, once = len(self.acknowledged), dict(self.once)
        async with asyncio.timeout(seconds):
            while len(self.acknowledged) < plain + 20 or any(self.once[each] < once[each] + 3 for each in once):
                for task in self._tasks:
                    if task.done():
                        task.result()
                await asyncio.sleep(0.01)

    async def check(self) -> None:
        """What was acknowledged is there once, what is unknown at most once, and each producer id's all in order."""
        found = await stored(self._cluster, self._plain)
        assert len(found) == len(set(found))
        assert set(self.acknowledged) <= set(found) <= set(self.acknowledged) | set(self.unknown)
        found = await stored(self._cluster, self._known)
        for producer_id, count in self.once.items():
            mine = [value for value in found if value.startswith(b"%d:" % producer_id)]
            assert mine == [b"%d:%d" % (producer_id, number) for number in range(count)]
