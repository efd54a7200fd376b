"""The table of APIs: handler, versions, operation and resource on one screen; ApiVersions is derived from it.

Nothing is advertised that is not served, but for what clients look for before they go on: Produce is advertised from
version 0 although 0-2 are refused, because older librdkafka stops compressing otherwise (KAFKA-18659); access control
lists, SASL and ConsumerGroupHeartbeat answer as in a Kafka where they are switched off, quotas and SCRAM credentials as
where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.api.request import ApiRow, FastPath, LargeRequest, Request
from duramen.server.handlers import (
    acls,
    admin_configs,
    admin_topics,
    api_versions,
    commit_staged,
    consumer_group_heartbeat,
    delete_groups,
    delete_records,
    describe_client_quotas,
    describe_cluster,
    describe_damage,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_segments,
    describe_user_scram_credentials,
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
    sasl,
    sink_admin,
    stage_batch,
    sync_group,
    too_many_elements,
    update_features,
)
from duramen.server.handlers.produce_fast_path import KnownProduces, ProduceRequest
from duramen.wire.messages import API

if TYPE_CHECKING:
    from duramen.server.api.services import Services
    from duramen.server.net.connection import ClientConnection

MAX_ELEMENTS = 250_000
"""Of all arrays of a request above SMALL_BYTES (api/request_decoder.py), its unknown tagged fields counted; a fetch
session has at most 100,000 partitions. A frame full of the smallest elements would take minutes, and gigabytes."""

MAX_ELEMENTS_OF_ONE_DECISION = 20_000
"""The same where a machine decides about all of them at once. Kafka refuses more than 10,000 changes in one request."""
ONE_DECISION = MAX_ELEMENTS_OF_ONE_DECISION
REFUSE = too_many_elements.refuse

MAX_ELEMENTS_AT_ONCE = 2_000
"""Of a Produce request above SMALL_BYTES, whose bytes are usually those of records: two milliseconds."""

NEVER_FLEXIBLE = 1 << 15


def _row(
    key: int,
    handle: Callable[[Request], None],
    operation: Operation,
    resource: Resource,
    names: Callable[[Any], Iterable[str]],
    *,
    advertised_from: int | None = None,
    request_class: type[Request] = Request,
    large_class: type[Request] = LargeRequest,
    handle_large: Callable[[Request], None] | None = None,
    most: int = MAX_ELEMENTS,
    decoded_at_once: int = 0,
    refuse_excess: Callable[[Request], None] | None = None,
    refuse_version: Callable[[Services, ClientConnection, ApiRow, memoryview, int, int], bool] | None = None,
    fast_path: Callable[[], FastPath] | None = None,
) -> ApiRow:
    api = API[key]
    return ApiRow(
        api,
        handle,
        operation,
        resource,
        names,
        api.min_version,
        api.max_version,
        api.min_version if advertised_from is None else advertised_from,
        NEVER_FLEXIBLE if api.flexible_from is None else api.flexible_from,
        api.request,
        request_class,
        large_class,
        handle_large or handle,
        most,
        decoded_at_once,
        refuse_excess,
        refuse_version,
        fast_path,
    )


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


ROWS = (
    _row(
        0, produce.handle, Operation.WRITE, Resource.TOPIC, _topic_data, advertised_from=0,
        request_class=ProduceRequest, large_class=ProduceRequest, handle_large=produce.handle_large,
        decoded_at_once=MAX_ELEMENTS_AT_ONCE, refuse_version=produce.refuse_version, fast_path=KnownProduces,
    ),
    _row(1, fetch.handle, Operation.READ, Resource.TOPIC, _fetched, handle_large=fetch.handle_large),
    _row(2, list_offsets.handle, Operation.DESCRIBE, Resource.TOPIC, _topics),
    _row(3, metadata.handle, Operation.DESCRIBE, Resource.TOPIC, _topics),
    _row(8, offset_commit.handle, Operation.READ, Resource.GROUP, _group),
    _row(9, offset_fetch.handle, Operation.DESCRIBE, Resource.GROUP, _fetch_groups),
    _row(10, find_coordinator.handle, Operation.DESCRIBE, Resource.GROUP, _nothing),
    _row(11, join_group.handle, Operation.READ, Resource.GROUP, _group, most=ONE_DECISION),
    _row(12, heartbeat.handle, Operation.READ, Resource.GROUP, _group),
    _row(13, leave_group.handle, Operation.READ, Resource.GROUP, _group, most=ONE_DECISION),
    _row(14, sync_group.handle, Operation.READ, Resource.GROUP, _group, most=ONE_DECISION),
    _row(15, describe_groups.handle, Operation.DESCRIBE, Resource.GROUP, _groups),
    _row(16, list_groups.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(17, sasl.handle_handshake, Operation.ANY, Resource.NONE, _nothing),
    _row(18, api_versions.handle, Operation.ANY, Resource.NONE, _nothing, refuse_version=api_versions.refuse_version),
    _row(
        19, admin_topics.handle_create, Operation.CREATE, Resource.TOPIC, _topics,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(
        20, admin_topics.handle_delete, Operation.DELETE, Resource.TOPIC, _nothing,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(21, delete_records.handle, Operation.DELETE, Resource.TOPIC, _topics),
    _row(22, init_producer_id.handle, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, _cluster),
    _row(23, offset_for_leader_epoch.handle, Operation.DESCRIBE, Resource.TOPIC, _nothing),
    _row(29, acls.handle_describe, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(30, acls.handle_create, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(31, acls.handle_delete, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(32, admin_configs.handle_describe, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    _row(
        33, admin_configs.handle_alter, Operation.ALTER_CONFIGS, Resource.CLUSTER, _cluster,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(34, reassignments.handle_log_dirs, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(35, describe_log_dirs.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(36, sasl.handle_authenticate, Operation.ANY, Resource.NONE, _nothing),
    _row(
        37, admin_topics.handle_create_partitions, Operation.ALTER, Resource.TOPIC, _topics,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(42, delete_groups.handle, Operation.DELETE, Resource.GROUP, _group_names),
    _row(43, elect_leaders.handle, Operation.ALTER, Resource.CLUSTER, _cluster, most=ONE_DECISION),
    _row(
        44, admin_configs.handle_incremental, Operation.ALTER_CONFIGS, Resource.CLUSTER, _cluster,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(45, reassignments.handle_alter, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(46, reassignments.handle_list, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(47, offset_delete.handle, Operation.DELETE, Resource.GROUP, _group),
    _row(48, describe_client_quotas.handle, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    _row(50, describe_user_scram_credentials.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(55, describe_quorum.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(57, update_features.handle, Operation.ALTER, Resource.CLUSTER, _cluster, most=ONE_DECISION),
    _row(60, describe_cluster.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(61, describe_producers.handle, Operation.READ, Resource.TOPIC, _topics),
    _row(68, consumer_group_heartbeat.handle, Operation.READ, Resource.GROUP, _nothing),
    _row(74, admin_configs.handle_list, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    _row(75, metadata.handle_describe_partitions, Operation.DESCRIBE, Resource.TOPIC, _topics),
    _row(10000, sink_admin.handle_claim, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    _row(10001, stage_batch.handle, Operation.WRITE, Resource.TOPIC, _nothing, most=ONE_DECISION),
    _row(10002, commit_staged.handle, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink, most=ONE_DECISION),
    _row(10003, sink_admin.handle_describe, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _sink),
    _row(10004, sink_admin.handle_abort, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink, most=ONE_DECISION),
    _row(10005, sink_admin.handle_release, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    _row(10006, sink_admin.handle_list, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _nothing),
    _row(10010, describe_segments.handle, Operation.READ, Resource.TOPIC, _topics),
    _row(10011, describe_segments.handle_lease, Operation.ANY, Resource.NONE, _nothing),
    _row(10020, describe_damage.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
)  # fmt: skip

TABLE: dict[int, ApiRow] = {row.api.key: row for row in ROWS}


def advertised() -> list[tuple[int, int, int]]:
    """(key, lowest, highest version) of every API, as ApiVersions tells clients."""
    return [(row.api.key, row.advertised_from, row.highest) for row in ROWS]
