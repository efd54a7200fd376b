"""Each node has its turns; who gets none in time is told, and takes nothing from others."""

from __future__ import annotations

import asyncio

import pytest

from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.tails.read_turns import ReadTurns


def test_each_node_has_its_own() -> None:
    async def scenario() -> None:
        turns = ReadTurns(1, 0.01)
        async with turns.turn(1):
            async with turns.turn(2):
                pass
            with pytest.raises(ProblemError, match=r"^1 reads of node 1 .*gateway\.old\.reads\.max") as caught:
                async with turns.turn(1):
                    pass
            assert (caught.value.status, caught.value.code, caught.value.retriable) == (503, "overloaded", True)
            assert "retry-after" in caught.value.headers
        async with turns.turn(1):
            pass

    asyncio.run(scenario())


def test_the_time_limit_is_of_the_waiting_alone() -> None:
    async def scenario() -> None:
        turns = ReadTurns(1, 0.01)
        async with turns.turn(1):
            await asyncio.sleep(0.03)

    asyncio.run(scenario())


def test_who_leaves_gives_it_back() -> None:
    async def scenario() -> None:
        turns = ReadTurns(1, 5)

        async def hold() -> None:
            async with turns.turn(1):
                await asyncio.sleep(60)

        first, second = asyncio.ensure_future(hold()), asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        async with turns.turn(1):
            pass

    asyncio.run(scenario())
