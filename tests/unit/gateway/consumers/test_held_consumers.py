"""The consumers that a gateway holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from duramen.gateway.consumers.consumer_instance import ConsumerInstance
from duramen.gateway.consumers.consumer_place import ConsumerKey
from duramen.gateway.consumers.consumer_settings import consumer_settings
from duramen.gateway.consumers.held_consumers import HeldConsumers
from duramen.gateway.edge.problem import ProblemError

NO_CLUSTER: Any = None


def made(now_s: float) -> ConsumerInstance:
    return ConsumerInstance(NO_CLUSTER, "g", f"id-{now_s}", "alice", consumer_settings(b""), now_s)


def test_names_are_unique_and_there_are_so_many() -> None:
    held = HeldConsumers(2, 10.0)
    one, two = ConsumerKey("g", "one"), ConsumerKey("g", "two")
    first = made(0.0)
    held.add(one, first)
    with pytest.raises(ProblemError) as refused:
        held.add(one, made(1.0))
    assert (refused.value.status, refused.value.code) == (409, "consumer-exists")
    held.check_room()
    held.add(two, made(0.0))
    with pytest.raises(ProblemError) as refused:
        held.check_room()
    assert (refused.value.status, refused.value.retriable) == (503, True)
    held.remove(one, made(1.0))  # another one
    assert held.find(one) is first
    held.remove(one, first)
    assert held.find(one) is None


def test_those_that_nobody_uses() -> None:
    held = HeldConsumers(5, 10.0)
    keys = [ConsumerKey("g", str(number)) for number in range(3)]
    for key, used_s in zip(keys, (0.0, 5.0, 0.0), strict=True):
        held.add(key, made(used_s))
    in_use = held.all[keys[2]]

    async def use() -> list[ConsumerKey]:
        async with in_use.turn:
            return list(held.idle(10.0))

    assert asyncio.run(use()) == [keys[0]]
    assert list(held.idle(15.0)) == keys
