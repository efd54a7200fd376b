"""Committed offsets of a group by an asynchronous cluster: by name and by id, members and others, refusals."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import pytest
from tests.worlds.async_node import async_node
from tests.worlds.group_node import OFFSET_COMMIT, OFFSET_FETCH, SERVED, GroupNode

from duramen.client.aio import AsyncCluster, AsyncGroupOffsets
from duramen.client.protocol.group_offsets import Committer, GroupOffset
from duramen.errors import DeadlineError, ErrorCode, KafkaError
from duramen.model import TopicPartition

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def run(
    test: Callable[[GroupNode, AsyncGroupOffsets], Awaitable[None]],
    versions: Mapping[int, tuple[int, int]] = SERVED,
) -> None:
    async def with_node() -> None:
        world = GroupNode(t=2, u=1)
        async with (
            asyncio.timeout(30),
            async_node(world.behave, versions) as node,
            AsyncCluster(node.bootstrap, timeout_s=5) as cluster,
        ):
            await test(world, AsyncGroupOffsets(cluster, "g"))

    asyncio.run(with_node())


@pytest.mark.parametrize("newest", [8, 9, 10])
@pytest.mark.parametrize("has_ids", [False, True])
def test_what_is_committed_is_found(newest: int, has_ids: bool) -> None:
    async def test(world: GroupNode, offsets: AsyncGroupOffsets) -> None:
        ids = {name: seen.id for name, seen in world.world.topics.seen.items()} if has_ids else None
        assert await offsets.committed([T0, U0], topic_ids=ids) == {}
        placed = {T0: GroupOffset(5, 3, "note"), U0: GroupOffset(0)}
        await offsets.commit(placed, topic_ids=ids)
        assert await offsets.committed([T0, T1, U0], topic_ids=ids) == placed
        await offsets.commit({T1: GroupOffset(9)}, Committer("m", 4, "i"), topic_ids=ids)
        await offsets.committed([T1], Committer("m", 4), topic_ids=ids)
        first, last = world.of(OFFSET_COMMIT)
        version = newest if has_ids else min(newest, 9)
        assert first.header.api_version == last.header.api_version == version
        assert (first.request.member_id, first.request.generation_id_or_member_epoch) == ("", -1)
        request = last.request
        assert (request.member_id, request.generation_id_or_member_epoch, request.group_instance_id) == ("m", 4, "i")
        asked = world.of(OFFSET_FETCH)
        assert {each.header.api_version for each in asked} == {version}
        assert all(each.request.require_stable for each in asked)
        if newest > 8:
            groups = [each.request.groups[0] for each in asked]
            assert [(each.member_id, each.member_epoch) for each in groups] == [(None, -1), (None, -1), ("m", 4)]

    run(test, {**SERVED, OFFSET_COMMIT: (2, newest), OFFSET_FETCH: (1, newest)})


def test_nothing_is_asked_about_nothing() -> None:
    async def test(world: GroupNode, offsets: AsyncGroupOffsets) -> None:
        await offsets.commit({})
        assert await offsets.committed([]) == {}
        assert not world.asked

    run(test)


def test_refusals_are_raised_and_those_that_pass_are_waited_for() -> None:
    async def test(world: GroupNode, offsets: AsyncGroupOffsets) -> None:
        world.commit_codes = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID]
        await offsets.commit({T0: GroupOffset(1)})
        with pytest.raises(KafkaError, match="group g cannot commit t-0: UNKNOWN_MEMBER_ID"):
            await offsets.commit({T0: GroupOffset(2)})
        world.offset_codes = [ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED]
        assert await offsets.committed([T0]) == {T0: GroupOffset(1)}
        with pytest.raises(KafkaError, match="offset of group g in t-0: TOPIC_AUTHORIZATION_FAILED"):
            await offsets.committed([T0])
        world.offset_codes = [ErrorCode.UNSTABLE_OFFSET_COMMIT] * 9
        with pytest.raises(DeadlineError, match="UNSTABLE_OFFSET_COMMIT"):
            await offsets.committed([T0], timeout_s=0.1)

    run(test)
