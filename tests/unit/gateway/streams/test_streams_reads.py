"""Reads from positions of a log that lost records to a power cut, or whose beginning was truncated."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest

from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import EARLIEST, LATEST, ListedOffset
from duramen.client.protocol.positions import BelowStartError, DlsnDivergedError
from duramen.dlsn import Dlsn
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.streams.stream_expiry import NEVER
from duramen.gateway.streams.stream_page import StreamPage
from duramen.gateway.streams.stream_position import START, position_after
from duramen.gateway.streams.stream_topics import StreamInfo
from duramen.gateway.streams.streams import StreamEnd, Streams
from duramen.model import TopicId, TopicPartition
from duramen.wire.batch import build_batch

TP = TopicPartition("a", 0)
CHUNK = 1 << 20


class StoredLog:
    """A cluster with one partition. batches: (leader epoch, count) front to back; record n holds n."""

    def __init__(self, *batches: tuple[int, int], start: int = 0) -> None:
        self.start = start
        self.end = 0
        self.batches: list[tuple[int, bytes]] = []
        self.requests = 0
        for epoch, count in batches:
            values = [(None, b"%d" % (self.end + number), (), 1) for number in range(count)]
            made = bytes(build_batch(values, base_offset=self.end, leader_epoch=epoch))
            self.end += count
            self.batches.append((self.end, made))
        self.epoch = batches[-1][0]

    async def list_offsets(self, wanted: Mapping[TopicPartition, int], _isolation: int = 0) -> Any:
        self.requests += 1
        return {TP: ListedOffset({EARLIEST: self.start, LATEST: self.end}[wanted[TP]], -1, self.epoch)}

    async def fetch(self, tp: TopicPartition, offset: int, max_bytes: int, *_: object, **__: object) -> FetchedBytes:
        self.requests += 1
        if not self.start <= offset <= self.end:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        found = [batch for end, batch in self.batches if end > offset]
        data = b"".join(found if max_bytes == CHUNK else found[:1])
        return FetchedBytes(tp, offset, memoryview(data), self.end, self.end, self.end, self.start, [])

    def streams(self) -> Streams:
        return Streams(cast(Any, self), cast(Any, None), cast(Any, None), CHUNK)

    def info(self) -> StreamInfo:
        return StreamInfo("a", TopicId(bytes(16)), "text/plain", NEVER, self.epoch)

    def read(self, position: Dlsn) -> StreamPage:
        self.requests = 0
        return asyncio.run(self.streams().read(self.info(), position))

    def stream_end(self) -> StreamEnd:
        return asyncio.run(self.streams().end(self.info()))


def test_a_read_that_goes_on_costs_one_request() -> None:
    log = StoredLog((3, 2), (3, 2))
    for position, values, requests in (
        (START, [b"0", b"1", b"2", b"3"], 1),
        (position_after(3, 0, 0), [b"1", b"2", b"3"], 1),
        (position_after(3, 0, 1), [b"2", b"3"], 1),
        (position_after(3, 2, 3), [], 2),
    ):
        assert (log.read(position).messages, log.requests) == (values, requests)


def test_over_a_change_of_leaders_the_batch_is_looked_up() -> None:
    log = StoredLog((3, 2), (5, 2))
    assert log.read(position_after(3, 0, 1)).messages == [b"2", b"3"]
    log = StoredLog((3, 2))
    log.epoch = 5
    assert log.read(position_after(3, 0, 1)).messages == []


@pytest.mark.parametrize(
    "position",
    [
        position_after(3, 2, 2),  # the log has batches of epoch 5 from offset 2 on
        position_after(3, 2, 3),
        position_after(3, 4, 7),  # which is above the end by now
        Dlsn(4, 2, 0),
        position_after(4, 0, 1),
        Dlsn(6, 1, 2),
    ],
)
def test_lost_records_are_never_other_ones(position: Dlsn) -> None:
    log = StoredLog((3, 2), (5, 2))
    with pytest.raises(DlsnDivergedError) as error:
        log.read(position)
    problem = problem_of(error.value)
    assert (problem.status, problem.code) == (409, "position-diverged")


def test_who_follows_is_told_of_lost_records() -> None:
    log = StoredLog((3, 2), (5, 2))
    arriving = log.streams().arriving
    assert asyncio.run(arriving(log.info(), position_after(3, 0, 1))).next_offset == 4
    with pytest.raises(DlsnDivergedError):
        asyncio.run(arriving(log.info(), position_after(3, 2, 2)))
    asyncio.run(arriving(log.info(), position_after(5, 2, 3)))  # nothing came, and nothing was looked at


def test_below_the_start_the_first_position_is_told() -> None:
    log = StoredLog((3, 4), (5, 2), start=3)
    for position in (START, position_after(3, 0, 0), position_after(9, 1, 1)):
        with pytest.raises(BelowStartError) as error:
            log.read(position)
        problem = problem_of(error.value)
        assert (problem.status, problem.headers) == (410, {"stream-next-offset": str(Dlsn(4, 0, 3))})
    assert log.read(Dlsn(4, 0, 3)).messages == [b"3", b"4", b"5"]


def test_what_was_emptied_goes_on() -> None:
    log = StoredLog((3, 2), start=2)
    log.epoch = 4
    end = log.stream_end().position
    assert log.read(end).messages == []
    log = StoredLog((3, 2), (6, 1), start=2)
    assert log.read(end).messages == [b"2"]
    assert log.stream_end()[:2] == (position_after(6, 2, 2), False)
