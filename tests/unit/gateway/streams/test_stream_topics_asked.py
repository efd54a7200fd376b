"""What is known of streams: asked for once by all who come at the same time, and never answered from before."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from duramen.client.protocol.metadata import TopicMetadata
from duramen.errors import ErrorCode
from duramen.gateway.streams.stream_topics import FRESH_S, StreamTopics
from duramen.model import TopicId


class SlowCluster:
    """A cluster that answers when it is let. there: whether it has the topic `a`."""

    def __init__(self) -> None:
        self.there = True
        self.questions = 0
        self.let = asyncio.Event()

    async def metadata(self, _topics: list[str]) -> Any:
        self.questions += 1
        there = self.there
        await self.let.wait()
        return SimpleNamespace(topics={"a": _topic()} if there else {})

    async def call(self, *_: object, **__: object) -> Any:
        result = SimpleNamespace(error_code=0, resource_name="a", configs=[])
        return SimpleNamespace(results=[result])


def _topic() -> TopicMetadata:
    partition = SimpleNamespace(leader_epoch=3, replicas=(0,))
    found = SimpleNamespace(
        name="a", topic_id=TopicId(b"t" * 16), error=ErrorCode.NONE, is_internal=False, partitions={0: partition}
    )
    return cast(TopicMetadata, found)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_requests_that_come_together_ask_once() -> None:
    async def run() -> None:
        cluster = SlowCluster()
        now = 0.0
        topics = StreamTopics(cast(Any, cluster), cast(Any, None), lambda: 0, lambda: now, 1 << 20)
        waiting = [asyncio.ensure_future(topics.get("a")) for _ in range(100)]
        await turns()
        cluster.let.set()
        assert {info.leader_epoch for info in await asyncio.gather(*waiting)} == {3}
        assert cluster.questions == 1
        await topics.get("a")
        assert cluster.questions == 1
        now = FRESH_S
        await topics.get("a")
        assert cluster.questions == 2

    asyncio.run(run())


def test_a_question_from_before_does_not_hide_what_was_made_since() -> None:
    async def run() -> None:
        cluster = SlowCluster()
        cluster.there = False
        topics = StreamTopics(cast(Any, cluster), cast(Any, None), lambda: 0, lambda: 0.0, 1 << 20)
        before = asyncio.ensure_future(topics.find("a"))
        await turns()
        cluster.there = True
        since = asyncio.ensure_future(topics.find("a"))
        await turns()
        cluster.let.set()
        assert await before is None
        assert await since is not None

    asyncio.run(run())


def test_a_request_that_leaves_does_not_end_the_question() -> None:
    async def run() -> None:
        cluster = SlowCluster()
        topics = StreamTopics(cast(Any, cluster), cast(Any, None), lambda: 0, lambda: 0.0, 1 << 20)
        first, second = (asyncio.ensure_future(topics.find("a")) for _ in range(2))
        await turns()
        first.cancel()
        cluster.let.set()
        assert await second is not None
        assert cluster.questions == 1

    asyncio.run(run())
