"""Consumer groups, their members, assignments and lags as resources of version 3 of the API. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from duramen.client.protocol.group_descriptions import DescribedGroup, DescribedMember
from duramen.gateway.confluent.group_lags import PartitionLag
from duramen.gateway.confluent.rest_links import ListMetadata, Related, ResourceMetadata, RestLinks
from duramen.model import TopicPartition


class GroupResource(msgspec.Struct):
    """A group. state: STABLE, EMPTY, PREPARING_REBALANCE, …; is_simple: it has offsets alone and never had members."""

    kind: Literal["KafkaConsumerGroup"]
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    is_simple: bool
    partition_assignor: str
    state: str
    coordinator: Related
    consumers: Related
    lag_summary: Related


class GroupList(msgspec.Struct):
    """All groups, by name."""

    kind: Literal["KafkaConsumerGroupList"]
    metadata: ListMetadata
    data: list[GroupResource]


class ConsumerResource(msgspec.Struct):
    """A member of a group. instance_id: its group.instance.id, if it has one."""

    kind: Literal["KafkaConsumer"]
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    instance_id: str | None
    client_id: str
    assignments: Related


class ConsumerList(msgspec.Struct):
    """All members of a group."""

    kind: Literal["KafkaConsumerList"]
    metadata: ListMetadata
    data: list[ConsumerResource]


class AssignmentResource(msgspec.Struct):
    """A partition that a member reads."""

    kind: Literal["KafkaConsumerAssignment"]
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    consumer_id: str
    topic_name: str
    partition_id: int
    partition: Related
    lag: Related


class AssignmentList(msgspec.Struct):
    """All partitions that a member reads."""

    kind: Literal["KafkaConsumerAssignmentList"]
    metadata: ListMetadata
    data: list[AssignmentResource]


class LagResource(msgspec.Struct):
    """How far a group is behind in a partition. consumer_id, client_id: empty where no member reads it."""

    kind: Literal["KafkaConsumerLag"]
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    topic_name: str
    partition_id: int
    current_offset: int
    log_end_offset: int
    lag: int
    consumer_id: str
    instance_id: str | None
    client_id: str


class LagList(msgspec.Struct):
    """Of all partitions that the group has committed an offset of."""

    kind: Literal["KafkaConsumerLagList"]
    metadata: ListMetadata
    data: list[LagResource]


class LagSummary(msgspec.Struct):
    """The partition that is furthest behind, and all lags together."""

    kind: Literal["KafkaConsumerGroupLagSummary"]
    metadata: ResourceMetadata
    cluster_id: str
    consumer_group_id: str
    max_lag_consumer_id: str
    max_lag_instance_id: str | None
    max_lag_client_id: str
    max_lag_topic_name: str
    max_lag_partition_id: int
    max_lag: int
    total_lag: int
    max_lag_consumer: Related
    max_lag_partition: Related


def group_resource(links: RestLinks, node: int, group: DescribedGroup) -> GroupResource:
    """A group. node: its coordinator."""
    path = ("consumer-groups", group.group_id)
    return GroupResource(
        "KafkaConsumerGroup",
        links.metadata(path, ("consumer-group", group.group_id)),
        links.cluster_id,
        group.group_id,
        group.is_simple,
        group.assignor,
        re.sub(r"(?<=[a-z])(?=[A-Z])", "_", group.state).upper(),
        links.related("brokers", node),
        links.related(*path, "consumers"),
        links.related(*path, "lag-summary"),
    )


def consumer_resource(links: RestLinks, group: str, member: DescribedMember) -> ConsumerResource:
    """A member."""
    path = ("consumer-groups", group, "consumers", member.member_id)
    return ConsumerResource(
        "KafkaConsumer",
        links.metadata(path, ("consumer-group", group), ("consumer", member.member_id)),
        links.cluster_id,
        group,
        member.member_id,
        member.instance,
        member.client_id,
        links.related(*path, "assignments"),
    )


def assignment_resource(links: RestLinks, group: str, member: str, tp: TopicPartition) -> AssignmentResource:
    """A partition of a member."""
    where = (tp.topic, "partitions", tp.partition)
    path = ("consumer-groups", group, "consumers", member, "assignments", *where)
    names = (("consumer-group", group), ("consumer", member), ("assignment", tp.topic), ("partition", tp.partition))
    return AssignmentResource(
        "KafkaConsumerAssignment",
        links.metadata(path, *names),
        links.cluster_id,
        group,
        member,
        tp.topic,
        tp.partition,
        links.related("topics", *where),
        links.related("consumer-groups", group, "lags", *where),
    )


def readers_of(members: Iterable[DescribedMember]) -> Mapping[TopicPartition, DescribedMember]:
    """Who reads each partition."""
    return {tp: member for member in members for tp in member.partitions}


def lag_resource(
    links: RestLinks, group: str, lag: PartitionLag, readers: Mapping[TopicPartition, DescribedMember]
) -> LagResource:
    """How far a group is behind in a partition."""
    tp, reader = lag.partition, readers.get(lag.partition)
    path = ("consumer-groups", group, "lags", tp.topic, "partitions", tp.partition)
    return LagResource(
        "KafkaConsumerLag",
        links.metadata(path, ("consumer-group", group), ("lag", tp.topic), ("partition", tp.partition)),
        links.cluster_id,
        group,
        tp.topic,
        tp.partition,
        lag.committed,
        lag.end,
        lag.lag,
        reader.member_id if reader else "",
        reader.instance if reader else None,
        reader.client_id if reader else "",
    )


def lag_summary(links: RestLinks, group: str, lags: Sequence[LagResource]) -> LagSummary:
    """Of one partition at least."""
    most = max(lags, key=lambda each: each.lag)
    metadata = ResourceMetadata(
        links.url("consumer-groups", group, "lag-summary"),
        f"{links.metadata((), ('consumer-group', group)).resource_name}/lag-summary",
    )
    return LagSummary(
        "KafkaConsumerGroupLagSummary",
        metadata,
        links.cluster_id,
        group,
        most.consumer_id,
        most.instance_id,
        most.client_id,
        most.topic_name,
        most.partition_id,
        most.lag,
        sum(each.lag for each in lags),
        links.related("consumer-groups", group, "consumers", most.consumer_id),
        links.related("topics", most.topic_name, "partitions", most.partition_id),
    )
