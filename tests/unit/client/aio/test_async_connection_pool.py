"""Which connections an asyncio client has: one of each class for all callers, one for each that waits, none in vain."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.worlds.async_node import Asked, AsyncNode, a_batch, async_node, fetched, metadata, produced

from duramen.client.aio import AsyncCluster
from duramen.errors import ClosedError, DeadlineError, NothingThereError, OutcomeUnknownError
from duramen.model import TopicPartition

TP = TopicPartition("t", 0)
PRODUCE, FETCH, METADATA = 0, 1, 3
Test = Callable[[AsyncNode, AsyncCluster], Coroutine[Any, Any, None]]


def answering(asked: Asked) -> bool:
    """Metadata and appends at once; fetches are for the test."""
    if asked.key == METADATA:
        asked.answer(metadata(asked))
    elif asked.key == PRODUCE:
        asked.answer(produced(0))
    else:
        return True
    return False


def run(test: Test, behave: Callable[[Asked], bool | None] = answering, **options: Any) -> None:
    async def with_node() -> None:
        async with asyncio.timeout(30):
            async with async_node(behave) as node:
                async with AsyncCluster(node.bootstrap, **{"timeout_s": 10, **options}) as cluster:
                    await test(node, cluster)
                assert [task for task in asyncio.all_tasks() if "AsyncNode" not in repr(task)] == [
                    asyncio.current_task()
                ]

    asyncio.run(with_node())


def keys(node: AsyncNode) -> Counter[int]:
    return Counter(asked.key for asked in node.seen)


def waiting(cluster: AsyncCluster, **options: Any) -> asyncio.Task[Any]:
    return asyncio.create_task(cluster.fetch(TP, 0, max_wait_ms=5_000, **options))


def test_callers_share_connects_questions_and_connections() -> None:
    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        await asyncio.gather(*(cluster.produce(TP, a_batch(b"v")) for _ in range(50)))
        assert keys(node) == {METADATA: 1, PRODUCE: 50}
        assert node.connections == 2  # calls and writes

    run(test)


def test_a_cancelled_caller_leaves_connects_and_questions_to_the_others() -> None:
    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        tasks = [asyncio.create_task(cluster.produce(TP, a_batch(b"v"))) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[0].cancel()  # it began the connect
        asked = await node.asked.get()
        tasks[1].cancel()
        asked.answer(metadata(asked))
        (asked := await node.asked.get()).answer(produced(7))
        assert (await tasks[2]).base_offset == 7
        assert keys(node) == {METADATA: 1, PRODUCE: 1}

    run(test, lambda asked: True)


def test_calls_that_wait_have_connections_to_themselves_which_are_used_again() -> None:
    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        tasks = [waiting(cluster) for _ in range(3)]
        requests = [await node.asked.get() for _ in tasks]
        assert node.connections == 4
        await cluster.produce(TP, a_batch(b"v"))
        for asked in requests:
            asked.answer(fetched(a_batch(b"v")))
        await asyncio.gather(*tasks)
        again = waiting(cluster)
        (await node.asked.get()).answer(fetched())
        await again
        assert node.connections == 5  # one for the write

    run(test)


def test_more_waits_than_connections_take_turns() -> None:
    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        tasks = [waiting(cluster) for _ in range(4)]
        tasks.append(waiting(cluster, timeout_s=0.1))
        for number in range(2):
            asked = await node.asked.get()
            if not number:
                with pytest.raises(DeadlineError, match="too many requests wait"):
                    await tasks.pop()
                tasks.pop(2).cancel()
            assert node.asked.empty()
            asked.answer(fetched())
        (await node.asked.get()).answer(fetched())
        await asyncio.gather(*tasks)
        assert node.connections == 2

    run(test, waiting_connections=1)


def test_a_wait_without_a_caller_is_used_again_or_hung_up_when_its_place_is_needed() -> None:
    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        left = waiting(cluster)
        asked = await node.asked.get()
        left.cancel()
        await asyncio.wait([left])
        asked.answer(fetched())
        await asyncio.sleep(0.02)
        left = waiting(cluster)
        await node.asked.get()
        assert node.connections == 2
        left.cancel()
        await asyncio.wait([left])
        needed = waiting(cluster)
        (await node.asked.get()).answer(fetched())
        await needed
        assert (node.connections, node.open) == (3, 2)

    run(test, waiting_connections=1)


def test_a_turn_given_to_a_cancelled_caller_goes_to_the_next() -> None:
    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        async def first() -> None:
            await cluster.fetch(TP, 0, max_wait_ms=5_000)
            second.cancel()  # in the moment in which it is its turn

        begun = asyncio.create_task(first())
        asked = await node.asked.get()
        second, third = waiting(cluster), waiting(cluster)
        await asyncio.sleep(0.01)
        asked.answer(fetched())
        (await node.asked.get()).answer(fetched())
        await asyncio.gather(begun, third)
        assert keys(node)[FETCH] == 2
        assert node.connections == 2

    run(test, waiting_connections=1)


@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_lost_whatever_is_cancelled_or_hung_up(seed: int) -> None:
    random = Random(seed)

    def fate(asked: Asked) -> None:
        if asked.key == METADATA:
            asked.answer(metadata(asked))
        elif (chance := random.random()) < 0.1:
            asked.hang_up()
        elif chance < 0.9:
            asyncio.get_running_loop().call_later(random.random() / 500, asked.answer, fetched())

    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        async def wait() -> None:
            with suppress(TimeoutError, DeadlineError):
                async with asyncio.timeout(random.random() / 20):
                    await cluster.fetch(TP, 0, max_wait_ms=5_000, timeout_s=random.random() / 20)

        async def waits() -> None:
            for _ in range(30):
                await wait()

        await asyncio.gather(*(waits() for _ in range(10)))
        assert node.open <= 4
        node.behave = answering
        tasks = [waiting(cluster) for _ in range(6)]
        for _ in range(2):
            requests = [await node.asked.get() for _ in range(3)]
            assert node.asked.empty()
            for asked in requests:
                asked.answer(fetched())
        await asyncio.gather(*tasks)

    run(test, fate, waiting_connections=3)


def test_an_address_that_hangs_up_is_not_dialled_by_every_caller() -> None:
    async def test() -> None:
        dialled = 0

        async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal dialled
            dialled += 1
            writer.transport.abort()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with AsyncCluster(f"127.0.0.1:{port}", timeout_s=0.5) as cluster:
                calls = [asyncio.create_task(cluster.metadata([f"topic-{number}"])) for number in range(100)]
                for call in calls:
                    with pytest.raises(DeadlineError):
                        await call
        assert 2 <= dialled < 10

    asyncio.run(test())


def test_where_nothing_listens_it_is_said_before_the_limit_of_the_call() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

    async def test() -> None:
        async with AsyncCluster(address, timeout_s=60, first_contact_s=0.1) as cluster:
            with pytest.raises(NothingThereError, match=f"bootstrap.servers={address}"):
                await cluster.metadata()

    asyncio.run(asyncio.wait_for(test(), 20))


def test_an_address_that_does_not_answer_leaves_time_for_the_next() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        silent = f"127.0.0.1:{listener.getsockname()[1]}"

        async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
            async with AsyncCluster(f"{silent},{node.bootstrap}", timeout_s=1) as other:
                assert (await other.metadata()).nodes

        run(test)


def test_a_client_that_is_closed_ends_its_calls() -> None:
    """What may have taken effect and may not be sent again is of unknown outcome; the rest is just closed."""

    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        wait = waiting(cluster)
        (asked := await node.asked.get()).answer(metadata(asked))
        await node.asked.get()
        plain = asyncio.create_task(cluster.produce(TP, a_batch(b"v")))
        known = asyncio.create_task(cluster.produce(TP, a_batch(b"v", producer_id=4, base_sequence=0)))
        await node.asked.get()
        question = asyncio.create_task(cluster.metadata())
        await node.asked.get()
        connecting = asyncio.create_task(cluster.fetch(TP, 0, max_wait_ms=0))
        await asyncio.sleep(0)
        await cluster.close()
        with pytest.raises(OutcomeUnknownError):
            await plain
        for task in (wait, known, question, connecting):
            with pytest.raises(ClosedError):
                await task
        with pytest.raises(ClosedError):
            await cluster.produce(TP, a_batch(b"v"))

    run(test, lambda asked: True)


def test_a_node_that_hangs_is_not_asked_about_the_cluster_again() -> None:
    async def test(node: AsyncNode, cluster: AsyncCluster) -> None:
        async with (
            async_node(lambda asked: None) as hangs,
            AsyncCluster(f"{hangs.bootstrap},{node.bootstrap}", timeout_s=10, request_timeout_s=0.3) as other,
        ):
            assert await other.partitions("t") == [0]
            assert keys(hangs) == {METADATA: 1}
            await other.metadata()
            assert keys(hangs) == {METADATA: 1}

    run(test)
