"""A read of a consumer answers what there is: a partition that is away holds up no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import pytest

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.fetch import FetchedBytes
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.gateway.consumers import consumer_instance
from duramen.gateway.consumers.consumer_instance import ConsumerInstance
from duramen.gateway.consumers.consumer_settings import ConsumerSettings
from duramen.model import TopicPartition
from duramen.wire.batch import build_batch

A, B = (TopicPartition("t", number) for number in range(2))
AWAY = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, "t-1 has no leader")
REFUSED = KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "t-1")
SETTINGS = ConsumerSettings("c", "binary", "earliest", False, 1, 1000)


class FakeCluster:
    """Records come to A at the given fetch, the first is 1; fate: of B."""

    def __init__(self, at: int, fate: Callable[[int], DuramenError | None]) -> None:
        self.fetches = 0
        self._at = at
        self._fate = fate

    async def leader(self, tp: TopicPartition) -> int:
        return 0

    async def fetch_available(self, wanted: Mapping[TopicPartition, int], *_: Any, **options: Any) -> dict[Any, Any]:
        await asyncio.sleep(options["max_wait_ms"] / 1000)
        self.fetches += 1
        data = bytes(build_batch([(None, b"v", (), 0)], base_offset=0)) if self.fetches >= self._at else b""
        found: dict[TopicPartition, FetchedBytes | DuramenError] = {
            A: FetchedBytes(A, wanted[A], memoryview(data), 1 if data else 0, 1, 1, 0, [])
        }
        error = self._fate(self.fetches)
        found[B] = FetchedBytes(B, wanted[B], memoryview(b""), 0, 0, 0, 0, []) if error is None else error
        return found


def read(cluster: FakeCluster, wait_s: float) -> list[int]:
    async def run() -> list[int]:
        consumer = ConsumerInstance(cast(AsyncCluster, cluster), "g", "id", "me", SETTINGS, 0.0)
        consumer.positions.add({B: 0, A: 0}, ())
        answer = await consumer.read(wait_s, 1 << 20, asyncio.Event())
        return [each.offset for each in answer.records]

    return asyncio.run(run())


def test_a_partition_that_is_away_holds_up_no_other() -> None:
    assert read(FakeCluster(1, lambda _: AWAY), 0) == [0]
    later = FakeCluster(2, lambda _: AWAY)
    assert read(later, 5) == [0]
    assert later.fetches == 2


def test_it_is_an_error_where_nothing_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    back = FakeCluster(1000, lambda fetch: AWAY if fetch == 1 else None)
    assert read(back, 0) == []
    assert back.fetches == 2
    monkeypatch.setattr(consumer_instance, "_AWAY_S", 0.15)
    start = time.monotonic()
    with pytest.raises(KafkaError) as raised:
        read(FakeCluster(1000, lambda _: AWAY), 0)
    assert raised.value is AWAY
    assert time.monotonic() - start >= 0.15


def test_what_is_refused_for_good_is_not_waited_for() -> None:
    cluster = FakeCluster(1000, lambda _: REFUSED)
    with pytest.raises(KafkaError, match="t-1"):
        read(cluster, 5)
    assert cluster.fetches == 1
    assert read(FakeCluster(1, lambda _: REFUSED), 0) == [0]
