"""Topics of streams whose time is up are deleted, by any gateway, some time after that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from duramen.errors import DuramenError
from duramen.gateway.streams.stream_topics import StreamTopics


async def sweep_expired(
    topics: StreamTopics, delay_ms: int, now_ms: Callable[[], int], on_deleted: Callable[[str], None]
) -> None:
    """Look for them for ever, every `delay_ms`; on_deleted: told of each topic. What fails is tried the next time.

    A stream that ended so long ago is expired for every gateway whose clock differs by less, so that nobody renews it.
    """
    while True:
        await asyncio.sleep(delay_ms / 1000)
        try:
            for info in await topics.all():
                if info.expiry.expired(now_ms() - delay_ms) and await topics.delete(info):
                    on_deleted(info.topic)
        except DuramenError:
            continue
