"""Metadata and DescribeTopicPartitions: brokers, topics, partitions and their leaders.

Metadata versions 0-13: null topics mean all, an empty list none (v1+); v0's empty list means all. Topics that do not
exist are created when the request allows it (before v4 always) and `auto.create.topics.enable` says so; the reply
then waits for the creation instead of telling the client to ask again, which only those beyond MOST_CREATED are told.
v10 topic ids · v13 top-level error.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.metadata.commands import TopicCreated
from duramen.machines.metadata.image import NO_LEADER, PartitionImage, TopicImage
from duramen.machines.metadata.topics import name_problem
from duramen.model import INTERNAL_TOPICS, NO_TOPIC_ID
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.describe_topic_partitions import DescribeTopicPartitionsResponse
from duramen.wire.messages.metadata import MetadataResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

TOPIC_OPERATIONS = (3, 4, 5, 6, 7, 8, 10, 11)
CLUSTER_OPERATIONS = (5, 7, 8, 9, 10, 11, 12)
MOST_CREATED = 500
"""Partitions, of new topics, that one request creates, in one decision of the metadata: fifteen milliseconds. One topic
may have more."""

NOT_ASKED = -(2**31)


def operations_bits(request: Request, resource: Resource, name: str) -> int:
    """The bit field of operations this principal may do on a resource (KIP-430)."""
    candidates = CLUSTER_OPERATIONS if resource is Resource.CLUSTER else TOPIC_OPERATIONS
    bits = 0
    for code in candidates:
        if not request.denies(Operation(code), resource, [name]):
            bits |= 1 << code
    return bits


def handle(request: Request) -> None:
    """Create what may be created, then describe what was asked for."""
    body = request.body
    wanted = body.topics
    everything = wanted is None or (request.version == 0 and not wanted)
    if everything or not body.allow_auto_topic_creation or not request.services.settings.auto_create_topics:
        request.reply_in_steps(_response(request, everything, {}))
        return
    most = max(MOST_CREATED // request.services.config.integer("num.partitions"), 1)
    request.in_steps(_missing(request, most), partial(_create, request, most))


def _missing(request: Request, most: int) -> Steps:
    """So many names, at most, of topics that are to be created; and what is told of those that cannot be.

    These must not take the places of others in each request anew.
    """
    services = request.services
    missing: dict[str, None] = {}
    failures: dict[str, ErrorCode] = {}
    for number, topic in enumerate(request.body.topics, 1):
        if number % STEP == 0:
            yield
        name = topic.name
        absent = name and name not in services.image.topics and name not in request.denied
        if not absent or name in missing or name_problem(name) is not None:
            continue
        if services.image.colliding_topic(name) is not None:
            failures[name] = ErrorCode.INVALID_TOPIC_EXCEPTION
            continue
        missing[name] = None
        if len(missing) == most:
            break
    return missing, failures


def _create(request: Request, most: int, found: tuple[dict[str, None], dict[str, ErrorCode]]) -> None:
    missing, failures = found
    if not missing:
        request.reply_in_steps(_response(request, False, failures))
        return

    def created(results: list[TopicCreated] | DuramenError) -> None:
        # Those beyond the bound are made when the client asks again, and this error is the one at which clients do:
        # at UNKNOWN_TOPIC_OR_PARTITION, Kafka's answer for topics that it is making, some give up after a few times.
        absent = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if len(missing) < most else ErrorCode.LEADER_NOT_AVAILABLE
        if isinstance(results, DuramenError):
            absent = results.code
        else:
            for result in results:
                if result.result.error not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    failures[result.name] = result.result.error
        request.reply_in_steps(_response(request, False, failures, absent))

    controller = request.services.controller_client
    controller.create([controller.new_topic(name) for name in missing], created)


def _response(
    request: Request,
    everything: bool,
    failures: dict[str, ErrorCode],
    absent: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> Steps:
    """What was asked for, each topic once; with `absent` what is not there, unless its failure is known."""
    body = request.body
    services = request.services
    image = services.image
    topics = []
    done = 0
    if everything:
        names = list(image.names())  # some may come and go between the steps
        denied = request.deny_topics(names)
        for name in names:
            topic = image.topic(name)
            if topic is not None and name not in denied:
                topics.append((yield from _topic(request, topic)))
                done += 1 + len(topic.partitions)
                if done >= STEP:
                    done = 0
                    yield
    else:
        # Once each: the request may repeat a name for three bytes, the reply for thousands.
        told: set[tuple[str | None, bytes]] = set()
        for wanted in body.topics:
            done += 1
            key = (wanted.name, wanted.topic_id)
            if key not in told:
                told.add(key)
                topics.append((yield from _wanted_topic(request, wanted, failures, absent)))
                done += len(topics[-1].partitions)
            if done >= STEP:
                done = 0
                yield
    response = MetadataResponse.new(
        brokers=[
            MetadataResponse.MetadataResponseBroker(node_id=node, host=host, port=port, rack=rack)
            for node, host, port, rack in services.endpoints(request.connection.listener)
        ],
        cluster_id=services.node.cluster_id,
        controller_id=services.node.id,
        topics=topics,
    )
    if 8 <= request.version <= 10 and body.include_cluster_authorized_operations:
        response.cluster_authorized_operations = operations_bits(request, Resource.CLUSTER, "kafka-cluster")
    return response


def _wanted_topic(request: Request, wanted: Any, failures: dict[str, ErrorCode], absent: ErrorCode) -> Steps:
    image = request.services.image
    if request.version < 12 and (wanted.name is None or wanted.topic_id != NO_TOPIC_ID):
        return _refused(wanted.name or "", wanted.topic_id, ErrorCode.INVALID_REQUEST)
    by_id = wanted.name is None or (wanted.topic_id != NO_TOPIC_ID and request.version >= 12)
    image_topic = image.topic_by_id(wanted.topic_id) if by_id else image.topic(wanted.name)
    if image_topic is not None:
        if request.deny_topics([image_topic.name]):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _refused(None if by_id else wanted.name, wanted.topic_id, code)
        return (yield from _topic(request, image_topic))
    if by_id:
        return _refused(None if request.version >= 12 else "", wanted.topic_id, ErrorCode.UNKNOWN_TOPIC_ID)
    if wanted.name in request.denied:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif name_problem(wanted.name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        code = failures.get(wanted.name, absent)
    return _refused(wanted.name, NO_TOPIC_ID, code)


def _refused(name: str | None, topic_id: bytes, code: ErrorCode) -> Any:
    return MetadataResponse.MetadataResponseTopic(error_code=int(code), name=name, topic_id=topic_id, partitions=[])


def _error_here(request: Request, topic: TopicImage, index: int, partition: PartitionImage) -> ErrorCode:
    """Where another node leads it, a copy here that is offline is nobody's trouble."""
    services = request.services
    leader = services.image.leader(partition)
    if leader not in (NO_LEADER, services.node.id):
        return ErrorCode.NONE
    if services.node.id in partition.replicas and services.store.hosted.is_offline((topic.id, index)):
        return ErrorCode.KAFKA_STORAGE_ERROR
    return ErrorCode.LEADER_NOT_AVAILABLE if leader == NO_LEADER else ErrorCode.NONE


def _topic(request: Request, topic: TopicImage) -> Steps:
    version = request.version
    response = MetadataResponse.MetadataResponseTopic(
        name=topic.name, topic_id=topic.id, is_internal=topic.name in INTERNAL_TOPICS, partitions=[]
    )
    partitions = topic.partitions
    for start in range(0, len(partitions), STEP):
        if start:
            yield
        response.partitions += [
            MetadataResponse.MetadataResponsePartition(
                error_code=int(_error_here(request, topic, index, partition)),
                partition_index=index,
                leader_id=request.services.image.leader(partition),
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=request.services.partitions.offline_replicas(topic.name, index, partition),
            )
            for index, partition in enumerate(partitions[start : start + STEP], start)
        ]
    if version >= 8 and request.body.include_topic_authorized_operations:
        response.topic_authorized_operations = operations_bits(request, Resource.TOPIC, topic.name)
    return response


def handle_describe_partitions(request: Request) -> None:
    """Topics with their partitions, page by page in the order of names (KIP-966). Version 0."""
    body = request.body
    image = request.services.image
    names = sorted({topic.name for topic in body.topics}) if body.topics else list(image.names())
    cursor_topic, cursor_partition = "", 0
    if body.cursor is not None:
        cursor_topic, cursor_partition = body.cursor.topic_name, body.cursor.partition_index
        if cursor_partition < 0 or (body.topics and cursor_topic not in names):
            _refuse_cursor(request, names)
            return
        names = [name for name in names if name >= cursor_topic]
    request.reply_in_steps(_page(request, names, cursor_topic, cursor_partition))


def _page(request: Request, names: list[str], cursor_topic: str, cursor_partition: int) -> Steps:
    body = request.body
    left = min(
        max(body.response_partition_limit, 1), request.services.config.integer("max.request.partition.size.limit")
    )
    topics: list[Any] = []
    cursor = None
    for number, name in enumerate(names, 1):
        if number % STEP == 0:
            yield
        topic = request.services.image.topic(name)
        if topic is None or request.deny_topics([name]):
            if body.topics:
                topics.append(_undescribed(request, name, topic))
            continue
        if left <= 0:
            cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=0)
            break
        first = cursor_partition if name == cursor_topic else 0
        page = topic.partitions[first : first + left]
        topics.append(_described(request, topic, first, page))
        left -= len(page)
        if first + len(page) < len(topic.partitions):
            cursor = DescribeTopicPartitionsResponse.Cursor(topic_name=name, partition_index=first + len(page))
            break
    return DescribeTopicPartitionsResponse.new(topics=topics, next_cursor=cursor)


def _refuse_cursor(request: Request, names: list[str]) -> None:
    """It leads nowhere, and each topic that was asked for says so; where none was, nothing could."""
    if not request.body.topics:
        request.drop_connection("DescribeTopicPartitions with a negative cursor")
        return
    topic = DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic
    refused = [topic(error_code=int(ErrorCode.INVALID_REQUEST), name=name) for name in names]
    request.reply(DescribeTopicPartitionsResponse.new(topics=refused))


def _undescribed(request: Request, name: str, topic: TopicImage | None) -> Any:
    if topic is not None:
        code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    elif name_problem(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    else:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(error_code=int(code), name=name)


def _described(request: Request, topic: TopicImage, first: int, page: list[PartitionImage]) -> Any:
    return DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=[
            DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition(
                error_code=int(_error_here(request, topic, first + number, partition)),
                partition_index=first + number,
                leader_id=request.services.image.leader(partition),
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=list(partition.last_known_elr),
                offline_replicas=request.services.partitions.offline_replicas(topic.name, first + number, partition),
            )
            for number, partition in enumerate(page)
        ],
        topic_authorized_operations=operations_bits(request, Resource.TOPIC, topic.name),
    )
