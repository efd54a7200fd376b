"""Where consumers are, by the cluster."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from duramen.client.aio import AsyncCluster
from duramen.errors import DeadlineError
from duramen.gateway.consumers.consumer_place import ConsumerKey
from duramen.gateway.consumers.consumer_places import ConsumerPlaces


class SilentCluster:
    """No node answers, for longer than a request may take."""

    def __init__(self) -> None:
        self.asked = 0

    async def metadata(self, _topics: list[str]) -> Any:
        self.asked += 1
        await asyncio.sleep(3600)


def test_a_look_up_does_not_wait_for_others_without_end() -> None:
    async def look_up() -> None:
        cluster = SilentCluster()
        places = ConsumerPlaces(cast(AsyncCluster, cluster), lambda: 0, 0.02)
        async with asyncio.timeout(5):
            for _ in range(2):  # the second one waits for the first
                with pytest.raises(DeadlineError, match=r"0\.02 s"):
                    await places.find(ConsumerKey("g", "c"))
        assert cluster.asked == 1

    asyncio.run(look_up())
