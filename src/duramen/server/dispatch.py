"""The table of APIs: listeners, handler, versions, operation, resource on one screen; ApiVersions is derived from it.

A row is served on the listeners that it names: B a broker's, C a controller's; elsewhere its API is unknown.

Nothing is advertised that is not served, but for what clients look for before they go on: Produce is advertised from
version 0 although 0-2 are refused, because older librdkafka stops compressing otherwise (KAFKA-18659); access control
lists and SASL answer as in a Kafka where they are switched off, quotas and SCRAM credentials as
where there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.api.request import ApiRow, FastPath, LargeRequest, Request
from duramen.server.handlers import (
    acls,
    add_offsets_to_txn,
    add_partitions_to_txn,
    admin_configs,
    admin_topics,
    api_versions,
    commit_staged,
    conditional_append,
    consumer_group_describe,
    consumer_group_heartbeat,
    controller_commands,
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
    describe_transactions,
    describe_user_scram_credentials,
    elect_leaders,
    end_txn,
    envelope,
    fetch,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    open_writer,
    produce,
    raft,
    raft_voters,
    reassignments,
    sasl,
    sink_admin,
    stage_batch,
    sync_group,
    too_many_elements,
    txn_offset_commit,
    update_features,
    write_txn_markers,
)
from duramen.server.handlers.produce_fast_path import KnownProduces, ProduceRequest
from duramen.server.net.listener_type import ListenerType
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

B, C = ListenerType.BROKER, ListenerType.CONTROLLER
BC = B | C


def _row(
    key: int,
    listeners: ListenerType,
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
        listeners,
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


def _group_ids(body: Any) -> Iterable[str]:
    return body.group_ids  # type: ignore[no-any-return]


def _group_names(body: Any) -> Iterable[str]:
    return body.groups_names  # type: ignore[no-any-return]


def _fetch_groups(body: Any) -> Iterable[str]:
    return [body.group_id] if body.group_id else (group.group_id for group in body.groups)


def _transaction(body: Any) -> Iterable[str]:
    return (body.transactional_id,)


def _clients_transaction(body: Any) -> Iterable[str]:
    return () if body.transactions else (body.v3_and_below_transactional_id,)


def _transactions(body: Any) -> Iterable[str]:
    return body.transactional_ids  # type: ignore[no-any-return]


FORWARDED: set[Callable[[Request], None]] = set()
"""What handles requests that may come in an Envelope."""
FORWARDABLE: dict[int, ApiRow] = {}
"""The rows of these."""


def _forwarded(handle: Callable[[Request], None]) -> Callable[[Request], None]:
    """Answered by the active controller, wherever it is (KIP-590)."""
    return _known(lambda request: request.services.controller_client.forward(request, handle))


def _forwarded_creation(handle: Callable[[Request], None]) -> Callable[[Request], None]:
    """The same, and the answer waits for this node's own partitions, too."""
    return _known(lambda request: request.services.controller_client.forward(request, handle, makes_partitions=True))


def _known(handle_there: Callable[[Request], None]) -> Callable[[Request], None]:
    FORWARDED.add(handle_there)
    return handle_there


ROWS = (
    _row(
        0, B, produce.handle, Operation.WRITE, Resource.TOPIC, _topic_data, advertised_from=0,
        request_class=ProduceRequest, large_class=ProduceRequest, handle_large=produce.handle_large,
        decoded_at_once=MAX_ELEMENTS_AT_ONCE, refuse_version=produce.refuse_version, fast_path=KnownProduces,
    ),
    _row(1, B, fetch.handle, Operation.READ, Resource.TOPIC, _fetched, handle_large=fetch.handle_large),
    _row(1, C, raft.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(2, B, list_offsets.handle, Operation.DESCRIBE, Resource.TOPIC, _topics),
    _row(3, B, metadata.handle, Operation.DESCRIBE, Resource.TOPIC, _topics),
    _row(8, B, offset_commit.handle, Operation.READ, Resource.GROUP, _group),
    _row(9, B, offset_fetch.handle, Operation.DESCRIBE, Resource.GROUP, _fetch_groups),
    _row(10, B, find_coordinator.handle, Operation.DESCRIBE, Resource.GROUP, _nothing),
    _row(11, B, join_group.handle, Operation.READ, Resource.GROUP, _group, most=ONE_DECISION),
    _row(12, B, heartbeat.handle, Operation.READ, Resource.GROUP, _group),
    _row(13, B, leave_group.handle, Operation.READ, Resource.GROUP, _group, most=ONE_DECISION),
    _row(14, B, sync_group.handle, Operation.READ, Resource.GROUP, _group, most=ONE_DECISION),
    _row(15, B, describe_groups.handle, Operation.DESCRIBE, Resource.GROUP, _groups),
    _row(16, B, list_groups.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(17, BC, sasl.handle_handshake, Operation.ANY, Resource.NONE, _nothing),
    _row(
        18, BC, api_versions.handle, Operation.ANY, Resource.NONE, _nothing,
        refuse_version=api_versions.refuse_version,
    ),
    _row(
        19, BC, _forwarded_creation(admin_topics.handle_create), Operation.CREATE, Resource.TOPIC, _topics,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(
        20, BC, _forwarded(admin_topics.handle_delete), Operation.DELETE, Resource.TOPIC, _nothing,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(21, B, delete_records.handle, Operation.DELETE, Resource.TOPIC, _topics),
    _row(22, B, init_producer_id.handle, Operation.IDEMPOTENT_WRITE, Resource.CLUSTER, _cluster),
    _row(23, B, offset_for_leader_epoch.handle, Operation.DESCRIBE, Resource.TOPIC, _nothing),
    _row(
        24, B, add_partitions_to_txn.handle, Operation.WRITE, Resource.TRANSACTIONAL_ID, _clients_transaction,
        most=ONE_DECISION,
    ),
    _row(25, B, add_offsets_to_txn.handle, Operation.WRITE, Resource.TRANSACTIONAL_ID, _transaction),
    _row(26, B, end_txn.handle, Operation.WRITE, Resource.TRANSACTIONAL_ID, _transaction),
    _row(27, B, write_txn_markers.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(28, B, txn_offset_commit.handle, Operation.WRITE, Resource.TRANSACTIONAL_ID, _transaction),
    _row(29, BC, acls.handle_describe, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(30, BC, acls.handle_create, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(31, BC, acls.handle_delete, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(32, BC, admin_configs.handle_describe, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    _row(
        33, BC, _forwarded(admin_configs.handle_alter), Operation.ALTER_CONFIGS, Resource.CLUSTER, _cluster,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(34, B, reassignments.handle_log_dirs, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(35, B, describe_log_dirs.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(36, BC, sasl.handle_authenticate, Operation.ANY, Resource.NONE, _nothing),
    _row(
        37, BC, _forwarded_creation(admin_topics.handle_create_partitions), Operation.ALTER, Resource.TOPIC, _topics,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(42, B, delete_groups.handle, Operation.DELETE, Resource.GROUP, _group_names),
    _row(43, BC, _forwarded(elect_leaders.handle), Operation.ALTER, Resource.CLUSTER, _cluster, most=ONE_DECISION),
    _row(
        44, BC, _forwarded(admin_configs.handle_incremental), Operation.ALTER_CONFIGS, Resource.CLUSTER, _cluster,
        most=ONE_DECISION, refuse_excess=REFUSE,
    ),
    _row(45, BC, _forwarded(reassignments.handle_alter), Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(46, BC, _forwarded(reassignments.handle_list), Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(47, B, offset_delete.handle, Operation.DELETE, Resource.GROUP, _group),
    _row(48, B, describe_client_quotas.handle, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    _row(50, BC, describe_user_scram_credentials.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(52, C, raft.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(53, C, raft.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(54, C, raft.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(55, BC, _forwarded(describe_quorum.handle), Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(56, C, controller_commands.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(57, BC, _forwarded(update_features.handle), Operation.ALTER, Resource.CLUSTER, _cluster, most=ONE_DECISION),
    _row(
        58, C, partial(envelope.handle, FORWARDABLE, MAX_ELEMENTS), Operation.CLUSTER_ACTION, Resource.CLUSTER,
        _cluster,
    ),
    _row(59, C, raft.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(60, B, describe_cluster.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(60, C, describe_cluster.handle_controllers, Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(61, B, describe_producers.handle, Operation.READ, Resource.TOPIC, _topics),
    _row(
        62, C, controller_commands.handle_registration, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster,
        most=ONE_DECISION,
    ),
    _row(63, C, controller_commands.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(64, BC, _forwarded(controller_commands.handle), Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(65, B, describe_transactions.handle, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _transactions),
    _row(66, B, list_transactions.handle, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _nothing),
    _row(67, C, controller_commands.handle, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(68, B, consumer_group_heartbeat.handle, Operation.READ, Resource.GROUP, _group, most=ONE_DECISION),
    _row(69, B, consumer_group_describe.handle, Operation.DESCRIBE, Resource.GROUP, _group_ids),
    _row(70, C, controller_commands.handle_controller, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(74, B, admin_configs.handle_list, Operation.DESCRIBE_CONFIGS, Resource.CLUSTER, _cluster),
    _row(75, B, metadata.handle_describe_partitions, Operation.DESCRIBE, Resource.TOPIC, _topics),
    _row(80, BC, _forwarded(raft_voters.handle_change), Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(81, BC, _forwarded(raft_voters.handle_change), Operation.ALTER, Resource.CLUSTER, _cluster),
    _row(82, C, raft_voters.handle_update, Operation.CLUSTER_ACTION, Resource.CLUSTER, _cluster),
    _row(10000, B, sink_admin.handle_claim, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    _row(10001, B, stage_batch.handle, Operation.WRITE, Resource.TOPIC, _nothing, most=ONE_DECISION),
    _row(10002, B, commit_staged.handle, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink, most=ONE_DECISION),
    _row(10003, B, sink_admin.handle_describe, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _sink),
    _row(10004, B, sink_admin.handle_abort, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink, most=ONE_DECISION),
    _row(10005, B, sink_admin.handle_release, Operation.WRITE, Resource.TRANSACTIONAL_ID, _sink),
    _row(10006, B, sink_admin.handle_list, Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, _nothing),
    _row(10010, B, describe_segments.handle, Operation.READ, Resource.TOPIC, _topics),
    _row(10011, B, describe_segments.handle_lease, Operation.ANY, Resource.NONE, _nothing),
    _row(10020, B, describe_damage.handle, Operation.DESCRIBE, Resource.CLUSTER, _cluster),
    _row(10030, B, open_writer.handle, Operation.WRITE, Resource.TOPIC, _nothing),
    _row(10031, B, conditional_append.handle, Operation.WRITE, Resource.TOPIC, _nothing),
)  # fmt: skip

TABLES: dict[ListenerType, dict[int, ApiRow]] = {
    each: {row.api.key: row for row in ROWS if each in row.listeners} for each in ListenerType
}
"""What the listeners of each type serve."""
FORWARDABLE.update((row.api.key, row) for row in ROWS if row.handle in FORWARDED)
TABLE = TABLES[ListenerType.BROKER]


def advertised(listener: ListenerType) -> list[tuple[int, int, int]]:
    """(key, lowest, highest version) of every API of such a listener, as ApiVersions tells clients."""
    return [(row.api.key, row.advertised_from, row.highest) for row in TABLES[listener].values()]
