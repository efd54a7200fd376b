"""Turns of reads, so many at a time for each node: one that hangs keeps nobody waiting but its own readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from duramen.gateway.edge.problem import SOON, ProblemError


class ReadTurns:
    """most: reads of a node at a time; wait_s: how long one waits for its turn."""

    def __init__(self, most: int, wait_s: float) -> None:
        self._most = most
        self._wait_s = wait_s
        self._of_nodes: dict[int, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def turn(self, node: int) -> AsyncIterator[None]:
        """A turn at a node, as long as the context lasts. Problem 503 where none came in time."""
        turns = self._of_nodes.setdefault(node, asyncio.Semaphore(self._most))
        try:
            async with asyncio.timeout(self._wait_s):
                await turns.acquire()
        except TimeoutError:
            raise ProblemError(
                503,
                "overloaded",
                f"{self._most} reads of node {node} are under way (gateway.old.reads.max), and none of them ended in "
                "time; try again",
                SOON,
                retriable=True,
            ) from None
        try:
            yield
        finally:
            turns.release()
