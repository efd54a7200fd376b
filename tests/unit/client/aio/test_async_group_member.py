"""A member on asyncio before a coordinator on a socket: its listener, commits in time, and ends of all kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.worlds.async_node import async_node
from tests.worlds.group_node import FIND_COORDINATOR, HEARTBEAT, METADATA, OFFSET_COMMIT, SERVED, GroupNode

from duramen.client.aio import AsyncCluster, AsyncGroupMember
from duramen.client.protocol.group_offsets import GroupOffset, PartitionNotAssignedError
from duramen.errors import ClosedError, ConfigError, DeadlineError, DuramenError, ErrorCode, KafkaError
from duramen.model import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class Owner:
    """Notes what it is told; `on` may raise or wait."""

    def __init__(self, on: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.told: list[tuple[str, list[int]]] = []
        self._on = on

    async def _tell(self, change: str, partitions: frozenset[TopicPartition]) -> None:
        self.told.append((change, sorted(tp.partition for tp in partitions)))
        if self._on is not None:
            await self._on(change)

    async def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await self._tell("assigned", partitions)

    async def revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await self._tell("revoked", partitions)

    async def lost(self, partitions: frozenset[TopicPartition]) -> None:
        await self._tell("lost", partitions)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)


def run(
    test: Callable[[GroupNode, AsyncCluster], Awaitable[None]],
    versions: Mapping[int, tuple[int, int]] = SERVED,
    **partitions: int,
) -> None:
    async def with_node() -> None:
        world = GroupNode(**partitions)
        async with (
            asyncio.timeout(30),
            async_node(world.behave, versions) as node,
            AsyncCluster(node.bootstrap, timeout_s=10) as cluster,
        ):
            await test(world, cluster)
            names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
            assert not [name for name in names if "Member" in name], names

    asyncio.run(with_node())


def test_partitions_go_to_another_member_when_the_listener_and_its_commits_are_done() -> None:
    async def test(world: GroupNode, cluster: AsyncCluster) -> None:
        first_owner, second_owner = Owner(), Owner()
        async with (
            AsyncGroupMember(cluster, "g", first_owner) as first,
            AsyncGroupMember(cluster, "g", second_owner) as second,
        ):
            first.subscribe(topics=["t"])
            await first.joined()
            assert first.epoch > 0
            await until(lambda: first.assignment == {T0, T1})
            world.holds_commits = True
            commit = asyncio.create_task(first.commit({T0: GroupOffset(7, 2, "n"), T1: GroupOffset(8)}))
            await until(lambda: len(world.commits) == 1)
            second.subscribe(topics=["t"])
            await until(lambda: len(first_owner.told) == 2)
            assert first_owner.told[1][0] == "revoked"
            beats = len(world.of(HEARTBEAT))
            await until(lambda: len(world.of(HEARTBEAT)) > beats + 4)
            assert (len(first.assignment), second.assignment) == (2, frozenset())
            (moved,) = first_owner.told[1][1]
            with pytest.raises(PartitionNotAssignedError, match=rf"t-{moved} is not assigned"):
                await first.commit({TopicPartition("t", moved): GroupOffset(9)})
            world.answer_commits()
            await commit
            await until(lambda: second.assignment == {TopicPartition("t", moved)})
            world.holds_commits = False
            assert await second.committed([T0, T1]) == {T0: GroupOffset(7, 2, "n"), T1: GroupOffset(8)}
        assert first_owner.told[-1] == ("revoked", [1 - moved])
        assert first.assignment == frozenset()
        assert not world.world.machine.consumers.groups["g"].members
        with pytest.raises(ClosedError):
            first.subscribe(topics=["t"])

    run(test, t=2)


def test_a_commit_at_an_old_epoch_is_repeated_at_the_next() -> None:
    async def test(world: GroupNode, cluster: AsyncCluster) -> None:
        async with AsyncGroupMember(cluster, "g") as member, AsyncGroupMember(cluster, "g") as other:
            member.subscribe(topics=["t"])
            await until(lambda: member.assignment == {T0})
            world.commit_codes = [ErrorCode.STALE_MEMBER_EPOCH]
            world.holds_commits = True
            epoch = member.epoch
            commit = asyncio.create_task(member.commit({T0: GroupOffset(5)}))
            await until(lambda: len(world.commits) == 1)
            world.holds_commits = False
            other.subscribe(topics=["t"])
            await other.joined()
            world.answer_commits()
            await commit
            sent = [asked.request.generation_id_or_member_epoch for asked in world.of(OFFSET_COMMIT)]
            assert (sent[0], sent[-1]) == (epoch, member.epoch)
            assert epoch < member.epoch
            assert world.offsets == {("t", 0): (5, -1, "")}
            assert world.of(OFFSET_COMMIT)[0].request.topics[0].topic_id == member.topic_ids["t"]

            world.commit_codes = [ErrorCode.STALE_MEMBER_EPOCH]
            with pytest.raises(DeadlineError, match="STALE_MEMBER_EPOCH"):
                await member.commit({T0: GroupOffset(6)}, timeout_s=0.1)
            with pytest.raises(PartitionNotAssignedError):
                await member.commit({T1: GroupOffset(6)})

    run(test, t=1)


def test_one_that_a_commit_finds_thrown_out_joins_again() -> None:
    async def test(world: GroupNode, cluster: AsyncCluster) -> None:
        owner = Owner()
        async with AsyncGroupMember(cluster, "g", owner, member_id="m") as member:
            member.subscribe(topics=["t"])
            await until(lambda: member.assignment == {T0})
            world.world.clock.advance(60_000)
            world.commit_codes = [ErrorCode.UNKNOWN_MEMBER_ID]
            with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID"):
                await member.commit({T0: GroupOffset(5)})
            await until(lambda: [what for what, _ in owner.told] == ["assigned", "lost", "assigned"])
            assert member.member_id == "m"

    run(test, t=1)


def test_a_coordinator_elsewhere_is_looked_for_and_names_are_asked_again() -> None:
    async def test(world: GroupNode, cluster: AsyncCluster) -> None:
        async with AsyncGroupMember(cluster, "g") as member:
            world.codes = [ErrorCode.NOT_COORDINATOR]
            world.hides_topics = 1
            member.subscribe(topics=["t"])
            await member.joined()
            assert len(world.of(FIND_COORDINATOR)) == 2
            await until(lambda: member.assignment == {T0})
            assert len([asked for asked in world.of(METADATA) if asked.request.topics[0].name is None]) == 2
            await member.unsubscribe()
            assert (member.epoch, member.failure) == (-1, None)
            with pytest.raises(ClosedError, match="has left"):
                await member.joined()
            member.subscribe(pattern="t.*")
            await until(lambda: member.assignment == {T0})

    run(test, t=1)


@pytest.mark.parametrize("versions", [{HEARTBEAT: None}, {HEARTBEAT: (0, 0)}])
def test_expressions_and_groups_need_a_cluster_that_has_them(versions: Any) -> None:
    async def test(_: GroupNode, cluster: AsyncCluster) -> None:
        async with AsyncGroupMember(cluster, "g") as member:
            member.subscribe(pattern="t.*")
            with pytest.raises(DuramenError) as refused:
                await member.joined()
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
            assert member.failure is refused.value

    served = {key: each for key, each in {**SERVED, **versions}.items() if each is not None}
    run(test, served, t=1)


def test_a_coordinator_of_version_0_gives_the_id() -> None:
    async def test(_: GroupNode, cluster: AsyncCluster) -> None:
        async with AsyncGroupMember(cluster, "g", member_id="m") as member:
            member.subscribe(topics=["t"])
            await until(lambda: member.assignment == {T0})
            assert member.member_id == "given"

    run(test, {**SERVED, HEARTBEAT: (0, 0)}, t=1)


def test_a_listener_that_fails_ends_the_membership() -> None:
    async def fails(change: str) -> None:
        if change == "assigned":
            raise OSError("no room")

    async def test(world: GroupNode, cluster: AsyncCluster) -> None:
        owner = Owner(fails)
        async with AsyncGroupMember(cluster, "g", owner) as member:
            member.subscribe(topics=["t"])
            await until(lambda: member.epoch == -1 and member.failure is not None)
            assert owner.told == [("assigned", [0]), ("revoked", [0])]
            with pytest.raises(OSError, match="no room"):
                await member.joined()
            assert not world.world.machine.consumers.groups["g"].members

    run(test, t=1)


def test_a_listener_that_takes_too_long_is_cut_off() -> None:
    async def hangs(change: str) -> None:
        if change == "revoked":
            await asyncio.sleep(60)

    async def test(world: GroupNode, cluster: AsyncCluster) -> None:
        owner = Owner(hangs)
        member = AsyncGroupMember(cluster, "g", owner, rebalance_timeout_s=0.2)
        member.subscribe(topics=["t"])
        await until(lambda: member.assignment == {T0})
        await member.unsubscribe()
        assert isinstance(member.failure, DeadlineError)
        member.subscribe(topics=["t"])
        await until(lambda: member.assignment == {T0})
        await member.close(timeout_s=0.05)
        assert owner.told[-1] == ("revoked", [0])
        await member.close()

    run(test, t=1)


def test_the_end_waits_for_no_coordinator() -> None:
    async def test(world: GroupNode, cluster: AsyncCluster) -> None:
        never = AsyncGroupMember(cluster, "g")
        with pytest.raises(ConfigError):
            never.subscribe()
        await never.close()
        owner = Owner()
        member = AsyncGroupMember(cluster, "g", owner)
        member.subscribe(topics=["t"])
        await until(lambda: member.assignment == {T0})
        world.silent = True
        with pytest.raises(DeadlineError, match="leaving group g"):
            await member.unsubscribe(timeout_s=0.05)
        await member.close(timeout_s=0.05)
        assert owner.told == [("assigned", [0]), ("revoked", [0])]
        waits = AsyncGroupMember(cluster, "g")
        waits.subscribe(topics=["t"])
        with pytest.raises(DeadlineError, match="joining group g"):
            await waits.joined(timeout_s=0.05)
        await waits.close(timeout_s=0.05)

    run(test, t=1)


def test_a_client_that_is_closed_ends_its_members() -> None:
    async def test(_: GroupNode, cluster: AsyncCluster) -> None:
        async with AsyncGroupMember(cluster, "g") as member:
            member.subscribe(topics=["t"])
            await until(lambda: member.assignment == {T0})
            await cluster.close()
            await until(lambda: member.failure is not None and member.epoch == -1)
            assert isinstance(member.failure, ClosedError)

    run(test, t=1)
