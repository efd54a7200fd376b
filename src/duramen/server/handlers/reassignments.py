"""AlterPartitionReassignments, ListPartitionReassignments and AlterReplicaLogDirs: replicas on the move.

A partition's replicas stay where they are: asking for that is granted, anything else is refused by name.
Moving a replica between log directories is not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.topics import check_replicas
from duramen.model import TopicPartition
from duramen.server.api.authorizer import CLUSTER_NAME
from duramen.server.handlers.describe_log_dirs import absolute_path
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsResponse
from duramen.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsResponse
from duramen.wire.messages.list_partition_reassignments import ListPartitionReassignmentsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle_list(request: Request) -> None:
    """Partitions whose replicas are moving, as their image says (KIP-455). Version 0."""
    if CLUSTER_NAME in request.denied:
        code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request.reply(ListPartitionReassignmentsResponse.new(error_code=code, error_message=None, topics=[]))
        return
    image = request.services.image
    asked = None
    if request.body.topics is not None:
        asked = {(topic.name, index) for topic in request.body.topics for index in topic.partition_indexes}
    topics = []
    for name in image.names():
        moving = [
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=index,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
            for index, partition in enumerate(image.topics[name].partitions)
            if (partition.adding or partition.removing) and (asked is None or (name, index) in asked)
        ]
        if moving:
            topics.append(ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name, partitions=moving))
    request.reply(ListPartitionReassignmentsResponse.new(error_message=None, topics=topics))


def handle_alter(request: Request) -> None:
    """Versions 0-1 (v1 may forbid a change of the replication factor, KIP-860)."""
    response = AlterPartitionReassignmentsResponse.new(error_message=None, responses=[])
    if CLUSTER_NAME in request.denied:
        response.error_code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
        request.reply(response)
        return
    if request.version >= 1:
        response.allow_replication_factor_change = request.body.allow_replication_factor_change
    request.reply_in_steps(_altered(request, response))


def _altered(request: Request, response: Any) -> Steps:
    done = 0
    for topic in request.body.topics:
        entries = []
        done += 1
        if done % STEP == 0:
            yield
        for wanted in topic.partitions:
            entry = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=wanted.partition_index, error_message=None
            )
            try:
                _reassign(request, topic.name, wanted)
            except KafkaError as error:
                entry.error_code, entry.error_message = int(error.code), error.message
            entries.append(entry)
            done += 1
            if done % STEP == 0:
                yield
        response.responses.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name, partitions=entries)
        )
    return response


def _reassign(request: Request, name: str, wanted: Any) -> None:
    """Nothing to do when the partition is where it is wanted; KafkaError says why it cannot be elsewhere."""
    image = request.services.image
    partition = image.partition(TopicPartition(name, wanted.partition_index))
    if partition is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{name}-{wanted.partition_index} does not exist")
    if wanted.replicas is None:
        if not partition.adding and not partition.removing:
            raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{name}-{wanted.partition_index} is not moving")
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a move cannot be cancelled here")
    check_replicas(image, wanted.replicas, None)
    fixed = request.version >= 1 and not request.body.allow_replication_factor_change
    if fixed and len(wanted.replicas) != len(partition.replicas):
        raise KafkaError(ErrorCode.INVALID_REPLICATION_FACTOR, "the number of replicas may not change")
    if tuple(wanted.replicas) != partition.replicas:
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, "replicas are not moved in this release")


def handle_log_dirs(request: Request) -> None:
    """Versions 1-2. LOG_DIR_NOT_FOUND for a directory this node has not; POLICY_VIOLATION for a real move."""
    request.reply_in_steps(_moved(request))


def _moved(request: Request) -> Steps:
    topics: dict[str, list[Any]] = {}
    store = request.services.store
    paths = {absolute_path(request, directory.path) for directory in store.data_directories}
    done = 0
    for wanted in request.body.dirs:
        done += 1
        if done % STEP == 0:
            yield
        for topic in wanted.topics:
            done += 1
            if done % STEP == 0:
                yield
            for index in topic.partitions:
                done += 1
                if done % STEP == 0:
                    yield
                tp = TopicPartition(topic.name, index)
                if CLUSTER_NAME in request.denied:
                    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                elif absolute_path(request, wanted.path) not in paths:
                    code = ErrorCode.LOG_DIR_NOT_FOUND
                elif tp not in store.partitions:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif absolute_path(request, store.home(tp).path) == absolute_path(request, wanted.path):
                    code = ErrorCode.NONE
                else:
                    code = ErrorCode.POLICY_VIOLATION
                topics.setdefault(topic.name, []).append(
                    AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult(
                        partition_index=index, error_code=int(code)
                    )
                )
    results = []
    for number, (name, entries) in enumerate(topics.items(), 1):
        if number % STEP == 0:
            yield
        results.append(AlterReplicaLogDirsResponse.AlterReplicaLogDirTopicResult(topic_name=name, partitions=entries))
    return AlterReplicaLogDirsResponse.new(results=results)
