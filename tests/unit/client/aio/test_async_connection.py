"""One connection on asyncio: answers out of order and in halves, callers that leave, silence, floods, and nonsense."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from tests.worlds.async_node import Asked, AsyncNode, a_batch, async_node, fetched, metadata, produced

from duramen.client.aio.async_connection import AsyncConnection, ConnectionLimits
from duramen.client.protocol import produce
from duramen.errors import NetworkError, NoConnectionError
from duramen.model import TopicPartition
from duramen.wire.errors import DecodeError
from duramen.wire.messages import API

METADATA, PRODUCE, FETCH = 3, 0, 1
LIMITS = ConnectionLimits(max_frame_bytes=1 << 20)
Test = Callable[[AsyncNode, AsyncConnection], Coroutine[Any, Any, None]]


def soon(seconds: float = 10) -> float:
    return asyncio.get_running_loop().time() + seconds


def run(test: Test, behave: Callable[[Asked], bool | None] = lambda asked: True, **limits: float) -> None:
    async def with_node() -> None:
        async with asyncio.timeout(30):
            async with async_node(behave) as node:
                connection = await connected(node, **limits)
                await test(node, connection)
                connection.close("the test is over")
            assert len(asyncio.all_tasks()) == 1

    asyncio.run(with_node())


async def connected(node: AsyncNode, **limits: float) -> AsyncConnection:
    return await AsyncConnection.open(
        ("127.0.0.1", node.port),
        "test",
        LIMITS._replace(**limits),  # type: ignore[arg-type]
        soon(),
        on_quiet=lambda connection: None,
        on_closed=lambda connection: None,
    )


def ask(connection: AsyncConnection, until: float | None = None, wait_s: float = 0.0) -> asyncio.Task[Any]:
    """A Metadata request."""
    request = API[METADATA].request.new(topics=None)
    return asyncio.create_task(connection.call(METADATA, request, soon() if until is None else until, wait_s=wait_s))


def numbered(asked: Asked, number: int) -> Any:
    reply = metadata(asked)
    reply.controller_id = number
    return reply


def test_answers_find_their_callers_in_any_order() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        tasks = [ask(connection) for _ in range(50)]
        requests = [(number, await node.asked.get()) for number in range(50)]
        Random(1).shuffle(requests)
        for number, asked in requests:
            asked.answer(numbered(asked, number))
        assert [(await task).controller_id for task in tasks] == list(range(50))
        assert connection.in_flight == 0
        assert node.connections == 1

    run(test)


def test_frames_in_halves_and_many_at_once() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        tasks = [ask(connection) for _ in range(4)]
        requests = [await node.asked.get() for _ in range(4)]
        data = b"".join(asked.bytes_of(numbered(asked, number)) for number, asked in enumerate(requests))
        for at in range(0, 60, 7):
            requests[0].send(data[at : at + 7])
            await asyncio.sleep(0.001)
        requests[0].send(data[63:])
        assert [(await task).controller_id for task in tasks] == [0, 1, 2, 3]

    run(test)


def test_large_answers_are_views_of_what_was_received() -> None:
    records = a_batch(b"r" * 300_000)

    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        for _ in range(3):
            response = await connection.call(FETCH, API[FETCH].request.new(topics=[]), soon())
            data = response.responses[0].partitions[0].records
            assert isinstance(data, memoryview)
            assert data == records
        assert isinstance(data.obj, bytearray)
        assert len(data.obj) < len(records) + 1000  # its own buffer, made for it

    run(test, lambda asked: asked.answer(fetched(records)))


def test_a_cancelled_caller_leaves_the_connection_usable() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        tasks = [ask(connection) for _ in range(3)]
        requests = [await node.asked.get() for _ in range(3)]
        tasks[1].cancel()
        await asyncio.wait([tasks[1]])
        assert connection.in_flight == 3
        for number, asked in enumerate(requests):
            asked.answer(numbered(asked, number))
        assert [(await tasks[number]).controller_id for number in (0, 2)] == [0, 2]
        last = ask(connection)
        (asked := await node.asked.get()).answer(numbered(asked, 9))
        assert (await last).controller_id == 9
        assert connection.in_flight == 0
        assert node.connections == 1

    run(test)


def test_a_caller_cancelled_together_with_its_answer_or_loss_is_cancelled() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        answered, lost = ask(connection), ask(connection)
        asked = await node.asked.get()
        await node.asked.get()
        connection.buffer_updated(fill(connection.get_buffer(-1), asked.bytes_of(metadata(asked))))
        answered.cancel()
        connection.close("lost")
        lost.cancel()
        with pytest.raises(asyncio.CancelledError):
            await answered
        with pytest.raises(asyncio.CancelledError):
            await lost

    run(test)


def fill(room: memoryview, data: bytes) -> int:
    room[: len(data)] = data
    return len(data)


def test_a_late_caller_leaves_the_connection_usable() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        late = ask(connection, soon(0.05))
        asked = await node.asked.get()
        with pytest.raises(NetworkError, match="did not answer in time"):
            await late
        asked.answer(numbered(asked, 1))
        other = ask(connection)
        (asked := await node.asked.get()).answer(numbered(asked, 2))
        assert (await other).controller_id == 2

    run(test)


def test_a_frame_that_is_too_long_takes_no_memory_and_ends_the_connection() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        first, second = ask(connection), ask(connection)
        asked = await node.asked.get()
        asked.send((1 << 30).to_bytes(4, "big") + b"x")
        with pytest.raises(DecodeError, match="1073741824"):
            await first
        with pytest.raises(NetworkError, match="not understood"):
            await second
        assert connection.closed
        with pytest.raises(NoConnectionError):
            await ask(connection)

    run(test)


@pytest.mark.parametrize(
    "nonsense",
    [
        (4).to_bytes(4, "big") + (999).to_bytes(4, "big"),
        bytes(4),
        (-5).to_bytes(4, "big", signed=True),
        (6).to_bytes(4, "big") + (2).to_bytes(4, "big") + b"\0x",
    ],
    ids=["of another request", "empty", "negative", "cut short"],
)
def test_nonsense_ends_the_connection(nonsense: bytes) -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        task = ask(connection)
        (await node.asked.get()).send(nonsense)
        with pytest.raises(DecodeError):
            await task
        assert connection.closed

    run(test)


def test_a_node_that_hangs_up_fails_what_is_in_flight() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        tasks = [ask(connection) for _ in range(3)]
        (await node.asked.get()).hang_up()
        for task in tasks:
            with pytest.raises(NetworkError, match=r"^127.0.0.1:\d+: the node hung up$"):
                await task
        assert connection.closed

    run(test)


def test_who_is_no_node_is_named() -> None:
    async def test() -> None:
        left = asyncio.Event()

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            with suppress(ConnectionError):
                await reader.read()
            writer.transport.abort()
            left.set()

        async with await asyncio.start_server(speak, "127.0.0.1", 0) as server:
            node = AsyncNode(lambda asked: None)
            node.port = server.sockets[0].getsockname()[1]
            with pytest.raises(DecodeError, match=f"^{node.bootstrap} does not speak Kafka's protocol"):
                await connected(node)
            await left.wait()
            await asyncio.sleep(0)  # the transport's turn

    asyncio.run(test())


def test_more_than_may_be_in_flight_waits_in_order() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        tasks = [ask(connection) for _ in range(8)]
        first = [await node.asked.get() for _ in range(2)]
        await asyncio.sleep(0.02)
        assert (len(node.seen), connection.in_flight) == (2, 2)
        tasks[3].cancel()
        tasks[0].cancel()  # in flight: its place stays taken until its answer has come
        await asyncio.sleep(0.02)
        assert len(node.seen) == 2
        answered = 0
        for asked in first:
            asked.answer(numbered(asked, answered))
            answered += 1
        while answered < 7:
            asked = await node.asked.get()
            asked.answer(numbered(asked, answered))
            answered += 1
            assert connection.in_flight <= 2
        left = [tasks[number] for number in (1, 2, 4, 5, 6, 7)]
        assert [(await task).controller_id for task in left] == [1, 2, 3, 4, 5, 6]

    run(test, in_flight=2)


def test_a_place_given_to_a_cancelled_caller_goes_to_the_next() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        first, second, third = (ask(connection) for _ in range(3))
        asked = await node.asked.get()
        await asyncio.sleep(0)
        connection.buffer_updated(fill(connection.get_buffer(-1), asked.bytes_of(metadata(asked))))
        second.cancel()  # it was let in and has not run yet
        (asked := await node.asked.get()).answer(numbered(asked, 3))
        assert (await third).controller_id == 3
        await first

    run(test, in_flight=1)


def test_who_waits_for_room_was_not_sent() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        sent, late, waiting = ask(connection), ask(connection, soon(0.05)), ask(connection)
        await node.asked.get()
        with pytest.raises(NoConnectionError, match="no room"):
            await late
        node.hang_up()
        with pytest.raises(NoConnectionError):
            await waiting
        with pytest.raises(NetworkError) as lost:
            await sent
        assert not isinstance(lost.value, NoConnectionError)

    run(test, in_flight=1)


def test_a_node_that_does_not_read_bounds_what_is_unsent() -> None:
    big = a_batch(b"b" * 400_000)

    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        node.reading.clear()
        await connection.call(METADATA, API[METADATA].request.new(topics=None), soon())
        request, highest = produce.request(TopicPartition("t", 0), [big], -1, b"i" * 16, 1000)
        tasks = [asyncio.create_task(connection.call(PRODUCE, request, soon(), highest)) for _ in range(100)]
        await asyncio.sleep(0.1)
        assert connection.in_flight < 30  # what the system takes, and some more
        node.reading.set()
        offsets = [(await task).responses[0].partition_responses[0].base_offset for task in tasks]
        assert offsets == list(range(100))

    offsets = iter(range(100))
    run(
        test,
        lambda asked: asked.answer(metadata(asked) if asked.key == METADATA else produced(next(offsets))),
        unsent_bytes=500_000,
    )


def test_a_node_that_takes_no_bytes_is_given_up() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        node.reading.clear()
        await connection.call(METADATA, API[METADATA].request.new(topics=None), soon())
        await asyncio.sleep(0.6)  # nothing is due, and it is looked at next when it may be idle
        request, highest = produce.request(TopicPartition("t", 0), [bytes(1 << 20)], 0, b"i" * 16, 1000)
        sends = [asyncio.create_task(connection.send_only(PRODUCE, request, soon(), highest)) for _ in range(100)]
        with pytest.raises(NoConnectionError, match="takes no bytes"):
            await asyncio.gather(*sends)
        await asyncio.wait(sends)

    run(
        test,
        lambda asked: asked.answer(metadata(asked)) if asked.key == METADATA else None,
        unsent_bytes=100_000,
        silence_s=0.5,
    )


def test_silence_ends_the_connection_and_an_answer_on_its_way_does_not() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        slow = ask(connection)
        asked = await node.asked.get()
        data = asked.bytes_of(metadata(asked))
        began = time.monotonic()
        for at in range(0, len(data), 8):
            asked.send(data[at : at + 8])
            await asyncio.sleep(0.05)
        await slow
        assert time.monotonic() - began > 0.5
        waits = ask(connection, wait_s=0.3)
        began = time.monotonic()
        with pytest.raises(NetworkError, match="did not answer in time"):
            await waits
        assert 0.7 < time.monotonic() - began < 20

    run(test, silence_s=0.5)


def test_an_idle_connection_is_closed() -> None:
    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        task = ask(connection, wait_s=1)
        asked = await node.asked.get()
        await asyncio.sleep(0.3)
        assert not connection.closed
        answered = time.monotonic()
        asked.answer(metadata(asked))
        await task
        async with asyncio.timeout(30):
            while not connection.closed or node.open:
                await asyncio.sleep(0.01)
        assert time.monotonic() - answered >= 0.19

    run(test, idle_s=0.2, silence_s=0.2)


def test_a_node_that_asks_for_a_pause_gets_it() -> None:
    def throttled(asked: Asked) -> None:
        reply = metadata(asked)
        reply.throttle_time_ms = 150
        asked.answer(reply)

    async def test(node: AsyncNode, connection: AsyncConnection) -> None:
        await ask(connection)
        began = time.monotonic()
        await ask(connection)
        assert time.monotonic() - began >= 0.14

    run(test, throttled)
