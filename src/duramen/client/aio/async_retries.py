"""Trying again on asyncio: one call at a time, or a request to each of many leaders, until a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from duramen.client.aio.async_connection_pool import AsyncConnectionPool
from duramen.client.protocol.deadline import Deadline
from duramen.client.protocol.outcomes import settled
from duramen.client.protocol.routes import Route
from duramen.errors import ClosedError, DuramenError
from duramen.model import TopicPartition

_T = TypeVar("_T")


class AsyncRetries:
    """Runs the attempts of one client. timeout_s: of a call. Attempts get the moment by which the call ends: a node
    that is silent is given up by its connection."""

    def __init__(self, pool: AsyncConnectionPool, timeout_s: float) -> None:
        self._pool = pool
        self._timeout_s = timeout_s

    async def retry(
        self, what: str, route: Route, attempt: Callable[[float], Awaitable[_T]], timeout_s: float | None = None
    ) -> _T:
        """The result of an attempt."""
        deadline = self._deadline(what, timeout_s)
        while True:
            try:
                return await attempt(deadline.end)
            except DuramenError as error:
                self._pool.view.forget(route)
                await self._pause(deadline, error)

    async def from_leaders(
        self,
        what: str,
        wanted: Iterable[TopicPartition],
        ask: Callable[[int, list[TopicPartition], float], Awaitable[dict[TopicPartition, Any]]],
        timeout_s: float | None,
        *,
        partial: bool = False,
    ) -> dict[TopicPartition, Any]:
        """Answers for every partition: `ask` is called for each leader with its share, for all of them at once.

        Partitions whose refusal may pass, or whose leader is lost, are asked for again until the time limit. partial:
        only while no partition has an answer; else their errors are values of the result.
        """
        deadline = self._deadline(what, timeout_s)
        found: dict[TopicPartition, Any] = {}
        pending = list(wanted)

        async def settle(node: int, tps: list[TopicPartition]) -> dict[TopicPartition, DuramenError]:
            try:
                return settled(tps, await ask(node, tps, deadline.end), None, found)
            except DuramenError as error:
                return settled(tps, {}, error, found)

        while pending:
            refused: dict[TopicPartition, DuramenError] = {}
            try:
                lookup = self._pool.view.by_leader(pending, refused if partial else None)
                shares = await self._pool.find(lookup, deadline.end)
                if len(shares) == 1:
                    refused |= await settle(*next(iter(shares.items())))
                else:
                    for outcome in await asyncio.gather(*(settle(*share) for share in shares.items())):
                        refused |= outcome
            except DuramenError as error:
                refused = dict.fromkeys((tp for tp in pending if tp not in found), error)
            if not refused:
                break
            pending = [tp for tp in pending if tp not in found]
            self._pool.view.forget({tp.topic: None for tp in pending})
            if partial and found:
                return found | refused
            await self._pause(deadline, next(reversed(refused.values())))
        return found

    def _deadline(self, what: str, timeout_s: float | None) -> Deadline:
        if self._pool.closed:
            raise ClosedError("this client was closed")
        now = asyncio.get_running_loop().time()
        return Deadline(what, self._timeout_s if timeout_s is None else timeout_s, now)

    async def _pause(self, deadline: Deadline, error: DuramenError) -> None:
        """Wait before the next attempt; raises the error when there is to be none."""
        pause_s = deadline.pause_s(error, asyncio.get_running_loop().time())
        if not self._pool.closed:
            await asyncio.sleep(pause_s)
        if self._pool.closed:
            raise ClosedError("this client was closed") from error
