"""The streams library on asyncio, over all of its back ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from tests.worlds.served_gateway import ServedGateway
from tests.worlds.served_node import Served

from duramen import streams
from duramen.errors import DuramenError
from duramen.streams import aio


@pytest.fixture(params=["node", "gateway", "directory"], scope="module")
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "node":
        served: Served = request.getfixturevalue("served")
        return f"duramen://{served.bootstrap}/aio/n"
    if request.param == "gateway":
        gateway: ServedGateway = request.getfixturevalue("shared_gateway")
        return f"duramen+http://127.0.0.1:{gateway.port}/aio/g"
    folder: Path = tmp_path_factory.mktemp("aio")
    return f"duramen+file://{folder}/log?namespace=aio"


def test_what_is_written_is_read_listed_truncated_and_closed(address: str) -> None:
    async def run() -> None:
        async with await aio.open(address, timeout_s=10) as space:
            stream = await space.create(f"s-{uuid4().hex}", txid="application")
            async with await stream.writer(name="w") as writer:
                for txid in (1, 2, 3):
                    await writer.write(b"%d" % txid, txid=txid)
            assert (writer.epoch, writer.sequence) == (0, 1)
            reader = await stream.reader(txid=2)
            assert [record.value async for record in reader] == [b"2", b"3"]
            assert reader.position == 3
            assert [each.record.txid async for each in await space.merged([stream.name], start_txid=3)] == [3]
            with pytest.raises(streams.TxidOutOfOrderError):
                await stream.append(streams.NewStreamRecord(b"0", txid=1))
            assert await stream.truncate(before=1) == 1
            assert (await stream.start(), await stream.end(), await stream.is_closed()) == (1, 3, False)
            await stream.close_stream(expected_position=3)
            assert await stream.is_closed()
            assert stream.name in await space.list()
            follower = await stream.reader(start=2, follow=True)
            await space.delete(stream.name)
            assert not await space.exists(stream.name)
            with pytest.raises(streams.NoSuchStreamError):
                await space.stream(stream.name)
            again = await space.create(stream.name)
            await again.append([b"a", b"b", b"c"])
            with pytest.raises(streams.PositionDivergedError, match="deleted and made again"):
                await anext(follower)
            assert (await again.reader()).stream_id not in ("", follower.stream_id)

    asyncio.run(run())


def test_readers_follow_while_others_write_and_leave_when_they_are_cancelled(address: str) -> None:
    async def run() -> None:
        async with await aio.open(address, timeout_s=10) as space:
            stream = await space.create(f"s-{uuid4().hex}")

            async def follow() -> list[bytes | None]:
                return [record.value async for record in await stream.reader(follow=True)]

            readers = [asyncio.create_task(follow()) for _ in range(4)]
            await asyncio.sleep(0.1)
            await asyncio.gather(*(stream.append(b"%d" % number) for number in range(8)))
            readers[0].cancel()
            await stream.append(b"last", close=True)
            found = await asyncio.wait_for(asyncio.gather(*readers[1:]), 10)
            assert found[0] == found[1] == found[2]
            assert found[0][-1] == b"last"
            assert sorted(found[0][:-1]) == [b"%d" % number for number in range(8)]  # type: ignore[type-var]
            with pytest.raises(asyncio.CancelledError):
                await readers[0]

    asyncio.run(run())


def test_closing_ends_a_reader_that_waits(address: str) -> None:
    async def run() -> None:
        space = await aio.open(address, timeout_s=10)
        stream = await space.create(f"s-{uuid4().hex}")
        reader = await stream.reader(follow=True)
        waiting = asyncio.create_task(anext(reader))
        await asyncio.sleep(0.2)
        await space.close()
        with pytest.raises(DuramenError):
            await asyncio.wait_for(waiting, 5)

    asyncio.run(run())
