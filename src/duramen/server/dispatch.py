"""The table of APIs: handler, versions, operation and resource on one screen; ApiVersions is derived from it.

Nothing is advertised that is not served, but for what clients look for before they go on: Produce is advertised from
version 0 although 0-2 are refused, because older librdkafka stops compressing otherwise (KAFKA-18659); access control
lists and ConsumerGroupHeartbeat answer as in a Kafka where they are switched off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.api.request import LargeRequest, Request
from duramen.server.handlers import (
    acls,
    admin_configs,
    admin_topics,
    api_versions,
    commit_staged,
    consumer_group_heartbeat,
    delete_groups,
    delete_records,
    describe_cluster,
    describe_damage,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_segments,
    elect_leaders,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    reassignments,
    sink_admin,
    stage_batch,
    sync_group,
    update_features,
)
from duramen.wire.messages import API, ApiMessage
from duramen.wire.schema import Message

PRODUCE_ADVERTISED_FROM = 0

MAX_ELEMENTS = 250_000
"""Of all arrays of a request above SMALL_BYTES (door.py), its unknown tagged fields counted; a fetch session has at
most 100,000 partitions. A frame full of the smallest elements would take minutes, and gigabytes."""

MAX_ELEMENTS_OF_ONE_DECISION = 20_000
"""The same where a machine decides about all of them at once. Kafka refuses more than 10,000 changes in one request."""

ONE_DECISION = frozenset({11, 13, 14, 19, 20, 33, 37, 43, 44, 57, 10001, 10002, 10004})
"""Those APIs."""


class Row(NamedTuple):
    """One API as served here. `names` gives the resources a request touches, for the authorizer."""

    api: ApiMessage
    handle: Callable[[Request], None]
    operation: Operation
    resource: Resource
    names: Callable[[Any], Iterable[str]]
    lowest: int
    highest: int
    flexible_from: int
    """First version whose header has tagged fields; beyond every version when there is none."""
    request: Message
    request_class: type[Request]
    large_class: type[Request]
    """Of requests above SMALL_BYTES, as what follows."""
    handle_large: Callable[[Request], None]
    most: int
    """Elements."""


NEVER_FLEXIBLE = 1 << 15
LARGE: dict[int, Callable[[Request], None]] = {0: produce.handle_large, 1: fetch.handle_large}
"""Handlers of those above SMALL_BYTES, where they are others."""


def _row(
    key: int,
    handle: Callable[[Request], None],
    operation: Operation,
    resource: Resource,
    names: Callable[[Any], Iterable[str]],
) -> Row:
    api = API[key]
    flexible = NEVER_FLEXIBLE if api.flexible_from is None else api.flexible_from
    return Row(
        api, handle, operation, resource, names, api.min_version, api.max_version, flexible, api.request,
        produce.ProduceRequest if key == 0 else Request, produce.ProduceRequest if key == 0 else LargeRequest,
        LARGE.get(key, handle), MAX_ELEMENTS_OF_ONE_DECISION if key in ONE_DECISION else MAX_ELEMENTS,
    )  # fmt: skip


def _cluster(body: Any) -> Iterable[str]:
    return (CLUSTER_NAME,)


def _nothing(body: Any) -> Iterable[str]:
    return ()


def _topic_data(body: Any) -> Iterable[str]:
    return (topic.name for topic in body.topic_data)


def _fetched(body: Any) -> Iterable[str]:
    return (topic.topic for topic in body.topics)


def _sink(body: Any) -> Iterable[str]:
    return (body.sink_id,)


def _topics(body: Any) -> Iterable[str]:
    return (topic.name for topic in body.topics or ())


def _group(body: Any) -> Iterable[str]:
    return (body.group_id,)


def _groups(body: Any) -> Iterable[str]:
    return body.groups  # type: ignore[no-any-return]


def _group_names(body: Any) -> Iterable[str]:
    return body.groups_names  # type: ignore[no-any-return]


def _fetch_groups(body: Any) -> Iterable[str]:
    return [body.group_id] if body.group_id else (group.group_id for group in body.groups)


_TABLE: list[tuple[int, Callable[[Request], None], Operation, Resource, Callable[[Any], Iterable[str]]]] = [
    (0, produce.handle, Operation.WRITE, Resource.TOPIC, _topic_data),
    (1, fetch.handle, Operation.READ, Resource.TOPIC, _fetched),
    (2, list_offsets.handle, Operation.DESCRIBE, Resource.TOPIC, _topics),
    (3, metadata.handle, Operation.DESCRIBE, Resource.TOPIC, _topics),
    (8, offset_commit.handle, Operation.READ, Resource.GROUP, _group),
    (9, offset_fetch.handle, Operation.DESCRIBE, Resource.GROUP, _fetch_groups),
    (10, find_coordinator.handle, Operation.DESCRIBE, Resource.GROUP, _nothing),
    (11, join_group.handle, Operation.READ, Resource.GROUP, _group),
    (12, heartbeat.handle, Operation.READ, Resource.GROUP, _group),
    (13, leave_group.handle, Operation.READ, Resource.GROUP, _group),
    (14, sync_group.handle, Operation.READ, Resource.GROUP, _group),
    (15, describe_groups.handle, Operation.DESCRIBE, Resource.GROUP, _groups),
    (16, list_groups.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    (18, api_versions.handle, Operation.ANY, Resource.NONE, _nothing),
    (19, admin_topics.handle_create, Operation.CREATE, Resource.TOPIC, _topics),
    (20, admin_topics.handle_delete, Operation.DELETE, Resource.TOPIC, _nothing),
    (21, delete_records.handle, Operation.DELETE, Resource.TOPIC, _topics),
    (22, init_producer_id.handle, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, _cluster),
    (23, offset_for_leader_epoch.handle, Operation.DESCRIBE, Resource.TOPIC, _nothing),
    (29, acls.handle_describe, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    (30, acls.handle_create, Operation.ALTER, Resource.CLUSTER, _cluster),
    (31, acls.handle_delete, Operation.ALTER, Resource.CLUSTER, _cluster),
    (32, admin_configs.handle_describe, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    (33, admin_configs.handle_alter, Operation.ALTER_CONFIGS, Resource.CLUSTER, _cluster),
    (34, reassignments.handle_log_dirs, Operation.ALTER, Resource.CLUSTER, _cluster),
    (35, describe_log_dirs.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    (37, admin_topics.handle_create_partitions, Operation.ALTER, Resource.TOPIC, _topics),
    (42, delete_groups.handle, Operation.DELETE, Resource.GROUP, _group_names),
    (43, elect_leaders.handle, Operation.ALTER, Resource.CLUSTER, _cluster),
    (44, admin_configs.handle_incremental, Operation.ALTER_CONFIGS, Resource.CLUSTER, _cluster),
    (45, reassignments.handle_alter, Operation.ALTER, Resource.CLUSTER, _cluster),
    (46, reassignments.handle_list, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    (47, offset_delete.handle, Operation.DELETE, Resource.GROUP, _group),
    (55, describe_quorum.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    (57, update_features.handle, Operation.ALTER, Resource.CLUSTER, _cluster),
    (60, describe_cluster.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    (61, describe_producers.handle, Operation.READ, Resource.TOPIC, _topics),
    (68, consumer_group_heartbeat.handle, Operation.READ, Resource.GROUP, _nothing),
    (74, admin_configs.handle_list, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    (75, metadata.handle_describe_partitions, Operation.DESCRIBE, Resource.TOPIC, _topics),
    (10000, sink_admin.handle_claim, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    (10001, stage_batch.handle, Operation.WRITE, Resource.TOPIC, _nothing),
    (10002, commit_staged.handle, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    (10003, sink_admin.handle_describe, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _sink),
    (10004, sink_admin.handle_abort, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    (10005, sink_admin.handle_release, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    (10006, sink_admin.handle_list, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _nothing),
    (10010, describe_segments.handle, Operation.READ, Resource.TOPIC, _topics),
    (10011, describe_segments.handle_lease, Operation.ANY, Resource.NONE, _nothing),
    (10020, describe_damage.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
]

TABLE: dict[int, Row] = {line[0]: _row(*line) for line in _TABLE}


def advertised() -> list[tuple[int, int, int]]:
    """(key, lowest, highest version) of every API, as ApiVersions tells clients."""
    return [
        (key, PRODUCE_ADVERTISED_FROM if key == 0 else row.api.min_version, row.api.max_version)
        for key, row in TABLE.items()
    ]
