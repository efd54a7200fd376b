"""The client on asyncio against a real node: the calls, many at a time, and a node that is killed under load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.worlds.async_load import AsyncLoad, batch_of, values
from tests.worlds.served_node import Served

from duramen.client import CONTROLLER, EARLIEST, LATEST, READ_COMMITTED, CoordinatorKey
from duramen.client.aio import AsyncCluster
from duramen.errors import ClosedError, DeadlineError, ErrorCode, KafkaError, TopicReplacedError
from duramen.model import TopicPartition
from duramen.wire.messages import API

CREATE_TOPICS, FIND_COORDINATOR = 19, 10


async def create(cluster: AsyncCluster, topic: str, partitions: int = 1) -> None:
    message = API[CREATE_TOPICS].request
    wanted = message.CreatableTopic(name=topic, num_partitions=partitions, replication_factor=1)
    reply = await cluster.call(CONTROLLER, CREATE_TOPICS, message.new(topics=[wanted], timeout_ms=10_000))
    assert reply.topics[0].error_code == 0, reply.topics[0]


def run(test: Callable[[AsyncCluster], Coroutine[Any, Any, None]], bootstrap: str, **options: Any) -> None:
    async def with_client() -> None:
        async with client(bootstrap, **options) as cluster:
            await test(cluster)

    asyncio.run(with_client(), debug=False)


@asynccontextmanager
async def client(bootstrap: str, **options: Any) -> AsyncIterator[AsyncCluster]:
    """Closed at the end, and nothing of it is left on the loop."""
    async with AsyncCluster(bootstrap, **{"timeout_s": 20, **options}) as cluster:
        yield cluster
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_what_is_written_is_read(served: Served) -> None:
    async def test(cluster: AsyncCluster) -> None:
        await create(cluster, "aio-calls", 3)
        tps = [TopicPartition("aio-calls", number) for number in range(3)]
        assert await cluster.partitions("aio-calls") == [0, 1, 2]
        assert (await cluster.api_versions()).is_duramen
        topic_id = await cluster.topic_id("aio-calls")
        assert (await cluster.metadata(["aio-calls"])).topics["aio-calls"].topic_id == topic_id
        assert await cluster.leader(tps[0]) == await cluster.coordinator(CoordinatorKey("a group"))
        for number, tp in enumerate(tps):
            assert (await cluster.produce(tp, batch_of(b"%d" % number, b"more"))).base_offset == 0
        assert (await cluster.produce(tps[0], batch_of(b"unasked"), acks=0)).base_offset == -1
        producer_id, epoch = await cluster.init_producer_id()
        batch = batch_of(b"once", producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
        assert (await cluster.produce(tps[1], batch)).base_offset == 2
        assert (await cluster.produce(tps[1], batch)).base_offset == 2
        found = await cluster.fetch_many(dict.fromkeys(tps, 0), isolation=READ_COMMITTED)
        assert [values(found[tp].data)[0] for tp in tps] == [b"0", b"1", b"2"]  # type: ignore[union-attr]
        ends = await cluster.list_offsets(dict.fromkeys(tps, LATEST))
        assert [ends[tp].offset for tp in tps] == [3, 3, 2]
        assert (await cluster.list_offsets({tps[2]: EARLIEST}))[tps[2]].offset == 0
        empty = await cluster.fetch(tps[2], 2, max_wait_ms=1)
        assert (len(empty.data), empty.next_offset) == (0, 2)

    run(test, served.bootstrap)


def test_refusals_are_those_of_the_blocking_client(served: Served) -> None:
    async def test(cluster: AsyncCluster) -> None:
        await create(cluster, "aio-refused")
        tp = TopicPartition("aio-refused", 0)
        with pytest.raises(KafkaError) as beyond:
            await cluster.fetch(tp, 7)
        assert beyond.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
        with pytest.raises(KafkaError) as missing:
            await cluster.partitions("aio-not-there")
        assert missing.value.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(TopicReplacedError):
            await cluster.fetch(tp, 0, topic_id=b"x" * 16)
        with pytest.raises(KafkaError, match="CRC"):
            await cluster.produce(tp, batch_of(b"v")[:-2] + b"x\0")
        with pytest.raises(DeadlineError):
            await cluster.fetch(tp, 0, max_wait_ms=5_000, timeout_s=0.1)
        await cluster.close()
        with pytest.raises(ClosedError):
            await cluster.metadata()

    run(test, served.bootstrap)


def test_a_fetch_that_waits_delays_nothing(served: Served) -> None:
    async def test(cluster: AsyncCluster) -> None:
        await create(cluster, "aio-waits")
        tp = TopicPartition("aio-waits", 0)
        waiting = [asyncio.create_task(cluster.fetch(tp, 0, max_wait_ms=10_000)) for _ in range(5)]
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await cluster.list_offsets({tp: LATEST})
        await cluster.produce(tp, batch_of(b"v"))
        assert [values(found.data) for found in await asyncio.gather(*waiting)] == [[b"v"]] * 5
        assert time.monotonic() - began < 5

    run(test, served.bootstrap)


def test_a_node_killed_under_load_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Batches without a producer id are stored at most once and, once the node is gone, of unknown outcome; those with
    one are stored once."""
    node = Served(tmp_path, {"log.retention.ms": "-1"})
    node.start()

    async def test(cluster: AsyncCluster) -> None:
        await create(cluster, "aio-killed", 2)
        async with AsyncLoad(cluster, TopicPartition("aio-killed", 0), TopicPartition("aio-killed", 1)) as load:
            kills = 0
            while kills < 2 or not load.unknown:
                await load.goes_on()
                node.kill()
                await asyncio.to_thread(node.start)
                kills += 1
            await load.goes_on()
        await load.check()

    try:
        run(test, node.bootstrap)
    finally:
        node.kill()
