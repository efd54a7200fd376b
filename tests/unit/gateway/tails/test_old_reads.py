"""Reads that are shared: one read of the cluster for those who want the same, and never an old end."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from duramen.dlsn import Dlsn
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.streams.stream_expiry import NEVER
from duramen.gateway.streams.stream_page import BatchPlace, StreamPage
from duramen.gateway.streams.stream_position import START, position_after
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.gateway.streams.streams import Streams
from duramen.gateway.tails.old_chunks import OldChunks
from duramen.gateway.tails.old_reads import PAUSE_S, OldReads
from duramen.gateway.tails.page_forms import MessageForm
from duramen.gateway.tails.read_turns import ReadTurns
from duramen.wire.batch import Record

INFO = StreamInfo("a", b"a" * 16, "text/plain", NEVER, 0)


class CountedStreams:
    """A log of single records, read two at a time; reads wait for `go`."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.start = 0
        self.reads = 0
        self.most = 0
        self.under_way = 0
        self.go = asyncio.Event()
        self.failure: Exception | None = None

    async def read(self, _info: StreamInfo, position: Dlsn) -> StreamPage:
        self.reads += 1
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        end = self.end
        await self.go.wait()
        self.under_way -= 1
        if self.failure is not None:
            raise self.failure
        if position.offset < self.start:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "gone")
        offsets = range(position.offset, min(position.offset + 2, end))
        last = offsets[-1] if offsets else position.offset - 1
        records = [Record(n, 0, None, b"%d" % n, []) for n in offsets]
        places = [BatchPlace(0, n) for n in offsets]
        return StreamPage(records, places, position_after(0, last, last), last + 1 >= end, False, self.start)

    async def leader(self, info: StreamInfo) -> int:
        return 1 if info.topic_id == INFO.topic_id else 2

    async def log_start(self, _info: StreamInfo) -> int:
        return self.start


class World:
    """Reads of such a log. now_s: the time."""

    def __init__(self, end: int) -> None:
        self.now_s = 0.0
        self.followed = False
        self.streams = CountedStreams(end)
        self.chunks = OldChunks(1 << 20)
        clock = GatewayClock(lambda: 0, lambda: self.now_s)
        streams = cast(Streams, cast(Any, self.streams))
        self.reads = OldReads(streams, self.chunks, lambda: self.followed, ReadTurns(2, 10), clock, GatewayMetrics())

    async def values(self, position: Dlsn, info: StreamInfo = INFO) -> list[bytes]:
        return (await self.reads.read(info, position, MessageForm("text/plain"))).page.messages


def test_ten_readers_read_once() -> None:
    async def scenario() -> None:
        world = World(9)
        waiting = [asyncio.ensure_future(world.values(START)) for _ in range(10)]
        await asyncio.sleep(0)
        waiting[0].cancel()  # who asked first leaves
        await asyncio.sleep(0)
        world.streams.go.set()
        assert await asyncio.gather(*waiting[1:]) == [[b"0", b"1"]] * 9
        assert await world.values(START) == [b"0", b"1"]
        assert await world.values(position_after(0, 0, 0)) == [b"1"]
        assert world.streams.reads == 1

    asyncio.run(scenario())


def test_an_end_is_read_by_each_who_came_later() -> None:
    async def scenario() -> None:
        world = World(1)
        first = asyncio.ensure_future(world.values(START))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        world.streams.end = 2  # a write is acknowledged, and its writer reads
        second = asyncio.ensure_future(world.values(START))
        await asyncio.sleep(0)
        world.streams.go.set()
        assert (await first, await second) == ([b"0"], [b"0", b"1"])
        assert len(world.chunks) == 0

    asyncio.run(scenario())


def test_what_was_truncated_is_not_given_a_second_later() -> None:
    async def scenario() -> None:
        world = World(9)
        world.streams.go.set()
        await world.values(START)
        world.streams.start = 1
        assert await world.values(START) == [b"0", b"1"]
        world.now_s = 1.5
        with pytest.raises(KafkaError):
            await world.values(START)
        assert await world.values(position_after(0, 0, 0)) == [b"1", b"2"]
        world.streams.start = 2
        world.reads.truncated(INFO, 2)  # by this gateway: at once
        with pytest.raises(KafkaError):
            await world.values(position_after(0, 0, 0))

    asyncio.run(scenario())


def test_compacted_topics_share_nothing_and_failures_are_not_kept() -> None:
    async def scenario() -> None:
        world = World(9)
        world.streams.go.set()
        for _ in range(2):
            assert await world.values(START, INFO._replace(is_compacted=True)) == [b"0", b"1"]
        assert (world.streams.reads, len(world.chunks)) == (2, 0)
        world.streams.failure = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "broken")
        with pytest.raises(KafkaError):
            await world.values(START)
        world.streams.failure = None
        assert await world.values(START) == [b"0", b"1"]

    asyncio.run(scenario())


def test_so_many_at_a_time() -> None:
    async def scenario() -> None:
        world = World(99)
        waiting = [asyncio.ensure_future(world.values(Dlsn(1, n, 0))) for n in range(10)]
        for _ in range(5):
            await asyncio.sleep(0)
        world.streams.go.set()
        await asyncio.gather(*waiting)
        assert (world.streams.most, world.streams.reads) == (2, 10)

    asyncio.run(scenario())


def test_a_leader_that_does_not_answer_holds_up_its_own_readers_alone() -> None:
    async def scenario() -> None:
        world = World(99)
        waiting = [asyncio.ensure_future(world.values(Dlsn(1, n, 0))) for n in range(10)]
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.streams.under_way == 2
        other = asyncio.ensure_future(world.values(START, INFO._replace(topic_id=b"b" * 16)))
        for _ in range(5):
            await asyncio.sleep(0)
        assert world.streams.under_way == 3, "that of another leader is under way, too"
        world.streams.go.set()
        assert await other == [b"0", b"1"]
        await asyncio.gather(*waiting)

    asyncio.run(scenario())


def test_old_records_leave_time_for_those_at_the_end() -> None:
    async def scenario(followed: bool) -> float:
        world = World(9)
        world.followed = followed
        world.streams.go.set()
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(world.values(START) for _ in range(10)))
        return asyncio.get_running_loop().time() - began

    assert asyncio.run(scenario(True)) >= 10 * PAUSE_S
    assert min(asyncio.run(scenario(False)) for _ in range(5)) < 10 * PAUSE_S
