"""The places of all consumers of a cluster, read and changed in their topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from duramen.client.aio import AsyncCluster
from duramen.client.aio.async_record_table import AsyncRecordTable
from duramen.errors import DeadlineError
from duramen.gateway.consumers.consumer_place import (
    CONSUMERS_SETTINGS,
    CONSUMERS_TOPIC,
    ConsumerKey,
    ConsumerPlace,
    Places,
    claim,
    place_table,
    removals,
)
from duramen.wire.batch import NewRecord


class ConsumerPlaces:
    """All raise KafkaError, DeadlineError and NetworkError. What is changed is on stable storage on return.

    timeout_s: of a look-up, which may have to wait for another one that does not end.
    """

    def __init__(self, cluster: AsyncCluster, now_ms: Callable[[], int], timeout_s: float) -> None:
        self._table = AsyncRecordTable(cluster, CONSUMERS_TOPIC, CONSUMERS_SETTINGS, place_table())
        self._now_ms = now_ms
        self._timeout_s = timeout_s

    async def all(self) -> Places:
        """All of them, as they are now."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._table.records()
        except TimeoutError:
            raise DeadlineError(f"where consumers are: not known within {self._timeout_s:g} s") from None

    async def find(self, key: ConsumerKey) -> ConsumerPlace | None:
        """Where a consumer is now."""
        return (await self.all()).get(str(key))

    async def claim(self, key: ConsumerKey, place: ConsumerPlace, instead_of: ConsumerPlace | None) -> bool:
        """Say where a consumer is, unless there is another one of its name than this; whether that was said."""
        is_said = False

        def decide(places: Places) -> Sequence[NewRecord]:
            nonlocal is_said
            there = places.get(str(key))
            is_said = there == place or there == instead_of  # the first where it is sent again
            return [] if there == place or not is_said else [claim(key, place, self._now_ms())]

        await self._table.change(decide)
        return is_said

    async def remove(self, gone: Mapping[str, str]) -> None:
        """Say that consumers are gone, by their keys and ids; nothing of others of their names."""
        left = bool(gone)

        def decide(places: Places) -> Sequence[NewRecord]:
            nonlocal left
            rows = removals(places, gone, self._now_ms())
            left = bool(rows)
            return rows

        while left:
            await self._table.change(decide)
