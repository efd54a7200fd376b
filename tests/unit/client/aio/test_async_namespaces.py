"""Namespaces by an asynchronous cluster: one reading for those who ask together, changes in turn, a topic made anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, cast

import pytest
from tests.worlds.namespace_topic import NamespaceTopic

from duramen.client.aio import AsyncCluster
from duramen.client.aio.async_namespaces import AsyncNamespaces
from duramen.client.protocol.fetch import FetchedBytes
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.client.protocol.metadata import ClusterMetadata, PartitionMetadata, TopicMetadata
from duramen.client.protocol.namespaces import NAMESPACES_TOPIC, NamespaceRecord, put
from duramen.client.protocol.record_table import ReadTable
from duramen.errors import ErrorCode, KafkaError, NetworkError
from duramen.model import TopicPartition
from duramen.wire.batch import batches, parse_header, records
from duramen.wire.messages import API


class FakeCluster:
    """Answers as a cluster with such a topic, which is made when it is asked for."""

    def __init__(self) -> None:
        self.topic: NamespaceTopic | None = None
        self.topic_id = b"\1" * 16
        self.metadata_asked = 0
        self.producers = 0
        self.stored: set[tuple[int, int]] = set()
        self.before_metadata: Callable[[], None] = lambda: None
        self.answers_lost = 0

    async def metadata(self, topics: list[str]) -> ClusterMetadata:
        self.metadata_asked += 1
        await asyncio.sleep(0)
        self.before_metadata()
        code = ErrorCode.NONE if self.topic else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = PartitionMetadata(0, 1, 0, (1,), (1,), ErrorCode.NONE)
        found = TopicMetadata(NAMESPACES_TOPIC, self.topic_id, False, {0: partition}, code)
        return ClusterMetadata("c", 1, {}, dict.fromkeys(topics, found))

    async def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, ListedOffset]:
        assert self.topic is not None
        return {tp: ListedOffset(self.topic.start, -1, 0) for tp in wanted}

    async def fetch(self, tp: TopicPartition, offset: int, *_: int, max_wait_ms: int, topic_id: bytes) -> FetchedBytes:
        assert (self.topic is not None, topic_id) == (True, self.topic_id)
        assert self.topic is not None
        found = self.topic.answer(ReadTable(offset, max_wait_ms > 0))
        if found is None:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        assert not isinstance(found, bool)
        return FetchedBytes(tp, offset, memoryview(found.data), -1, found.end, found.end, 0, [])

    async def init_producer_id(self) -> tuple[int, int]:
        self.producers += 1
        return self.producers, 0

    async def call(self, _route: object, key: int, request: Any, *, code_of: Callable[[Any], int]) -> Any:
        message = API[key].response
        if key == 19:
            self.topic = self.topic or NamespaceTopic()
            return message.new(topics=[message.CreatableTopicResult(name=NAMESPACES_TOPIC, error_code=0)])
        assert self.topic is not None
        header = parse_header(request.records)
        batch = (header.producer_id, header.base_sequence)
        while True:
            if batch in self.stored:
                code = 0
            elif request.expected_offset == self.topic.end:
                rows = [(row.key, row.value, (), row.timestamp) for row in _rows(request.records)]
                self.topic.append(rows)
                self.stored.add(batch)
                code = 0
            else:
                code = int(ErrorCode.END_IS_ELSEWHERE)
            if not self.answers_lost:
                response = message.new(error_code=code, error_message=None)
                assert code_of(response) == code
                return response
            self.answers_lost -= 1  # the client sends it again


def _rows(data: bytes) -> list[Any]:
    return [row for _, header in batches(data) for row in records(data, header, max_bytes=1 << 20)]


def putting(path: str) -> Callable[[Mapping[str, NamespaceRecord]], Any]:
    return lambda known: put(path, {}, known, 1).rows


def run(work: Callable[[FakeCluster, AsyncNamespaces], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        cluster = FakeCluster()
        await work(cluster, AsyncNamespaces(cast(AsyncCluster, cluster)))

    asyncio.run(go())


def test_those_who_ask_together_share_a_reading_that_began_behind_them() -> None:
    async def work(cluster: FakeCluster, namespaces: AsyncNamespaces) -> None:
        await namespaces.change(putting("a"))
        cluster.metadata_asked = 0
        first = asyncio.ensure_future(namespaces.records())
        await asyncio.sleep(0)
        await asyncio.sleep(0)  # it has asked
        assert cluster.metadata_asked == 1
        assert cluster.topic is not None
        later = [asyncio.ensure_future(namespaces.records()) for _ in range(50)]
        later[0].cancel()
        cluster.topic.append(put("b", {}, {}, 1).rows)
        await first
        assert [sorted(await each) for each in later[1:]] == [["a", "b"]] * 49
        assert cluster.metadata_asked == 2
        assert await namespaces.defaults_for("top-level") == {}
        assert cluster.metadata_asked == 2

    run(work)


def test_a_reading_that_fails_is_no_end() -> None:
    async def work(cluster: FakeCluster, namespaces: AsyncNamespaces) -> None:
        def fail() -> None:
            raise NetworkError("gone")

        cluster.before_metadata = fail
        for outcome in await asyncio.gather(*(namespaces.records() for _ in range(3)), return_exceptions=True):
            assert isinstance(outcome, NetworkError)
        cluster.before_metadata = lambda: None
        assert await namespaces.records() == {}

    run(work)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_changes_that_meet_and_answers_that_are_lost(lost: int) -> None:
    async def work(cluster: FakeCluster, namespaces: AsyncNamespaces) -> None:
        other = AsyncNamespaces(cast(AsyncCluster, cluster))
        cluster.answers_lost = lost
        await asyncio.gather(*(each.change(putting(f"n{n}")) for n in range(10) for each in (namespaces, other)))
        assert sorted(await namespaces.records()) == sorted(f"n{n}" for n in range(10))
        assert cluster.topic is not None
        assert cluster.topic.end == 10

    run(work)


def test_a_topic_that_was_deleted_and_one_that_was_made_anew() -> None:
    async def work(cluster: FakeCluster, namespaces: AsyncNamespaces) -> None:
        for name in "abc":
            await namespaces.change(putting(name))
        cluster.topic = None
        assert await namespaces.records() == {}
        await namespaces.change(putting("d"))
        assert sorted(await namespaces.records()) == ["d"]
        cluster.topic, cluster.topic_id = NamespaceTopic(), b"\2" * 16
        for name in "ef":
            cluster.topic.append(put(name, {}, {}, 1).rows)
        assert sorted(await namespaces.records()) == ["e", "f"]

    run(work)
