"""What a consumer group has committed, read and written with an `AsyncCluster`."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from duramen.client.aio.async_cluster import AsyncCluster
from duramen.client.protocol.group_descriptions import OFFSET_FETCH
from duramen.client.protocol.group_offsets import NO_MEMBER, OFFSET_COMMIT, Committer, GroupOffset, OffsetsExchange
from duramen.client.protocol.routes import GROUP, CoordinatorKey
from duramen.model import TopicId, TopicPartition


class AsyncGroupOffsets:
    """The committed offsets of one group.

    Programs outside any membership leave `committer` out: the group takes their commits while it has no members, and
    refuses them with UNKNOWN_MEMBER_ID while it has some. Members use `AsyncGroupMember.commit`, which knows its epoch.
    topic_ids: by name, where the caller knows which topics it has read; what was read of a topic that has been deleted
    is then never committed for another one of its name.

    Calls raise what those of `AsyncCluster` raise; KafkaError GROUP_AUTHORIZATION_FAILED, UNKNOWN_MEMBER_ID,
    STALE_MEMBER_EPOCH (113), UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID, OFFSET_METADATA_TOO_LARGE.
    """

    def __init__(self, cluster: AsyncCluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._route = CoordinatorKey(group, GROUP)

    async def commit(
        self,
        offsets: Mapping[TopicPartition, GroupOffset],
        committer: Committer = NO_MEMBER,
        *,
        topic_ids: Mapping[str, TopicId] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Commit these; on stable storage when it returns. Where one partition is refused, others may be stored."""
        if not offsets:
            return
        exchange = OffsetsExchange(self._group, committer, topic_ids)
        response = await self._cluster.call(
            self._route,
            OFFSET_COMMIT,
            exchange.commit(offsets),
            code_of=exchange.commit_code,
            timeout_s=timeout_s,
            highest=exchange.highest(offsets),
        )
        exchange.check_committed(response, offsets)

    async def committed(
        self,
        partitions: Collection[TopicPartition],
        committer: Committer = NO_MEMBER,
        *,
        topic_ids: Mapping[str, TopicId] | None = None,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, GroupOffset]:
        """What is committed of these partitions; those of which nothing is are left out.

        What an open transaction may change is waited for until it ends, or the time limit.
        """
        if not partitions:
            return {}
        exchange = OffsetsExchange(self._group, committer, topic_ids)
        response = await self._cluster.call(
            self._route,
            OFFSET_FETCH,
            exchange.fetch(partitions),
            code_of=exchange.fetch_code,
            timeout_s=timeout_s,
            highest=exchange.highest(partitions),
        )
        return exchange.fetched(response, partitions)
