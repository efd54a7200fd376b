"""Commands of the metadata machine as Kafka's requests, and its answers as responses; both ways.

BrokerRegistration, BrokerHeartbeat, UnregisterBroker, AllocateProducerIds, AlterPartition: what brokers have the active
controller decide. An answer is what the machine says, or a KafkaError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import BY_NAME, NodeRequest
from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.metadata.commands import (
    AllocateProducerIds,
    AlterPartition,
    BrokerHeartbeat,
    HeartbeatAnswer,
    IsrChange,
    IsrChanged,
    NewTopic,
    ProducerIds,
    RegisterBroker,
    Registered,
    Result,
    TopicCreated,
    UnregisterBroker,
)
from duramen.machines.metadata.image import Endpoint
from duramen.wire.frame import parse_response
from duramen.wire.messages import ApiMessage

NO_ERROR: Final = Result()


class CommandMessage(NamedTuple):
    """How one command travels. version: that is sent; the dispatch table says which ones are understood.

    fields: of the request, from command and cluster id. answer: from a response without an error. command: from a
    request. told: fields of the response, from an answer that is no error.
    """

    api: ApiMessage
    version: int
    kind: type
    fields: Callable[[Any, str], dict[str, Any]]
    answer: Callable[[Any], Any]
    command: Callable[[Any], Any]
    told: Callable[[Any], dict[str, Any]]


def to_wire(command: Any, cluster_id: str) -> NodeRequest:
    """The request that the command is."""
    message = BY_COMMAND[type(command)]
    return NodeRequest(message.api, message.version, message.api.request.new(**message.fields(command, cluster_id)))


def answer_from_wire(command: Any, response: Any) -> Any:
    """What the machine said."""
    if response.error_code:
        return error_from_wire(response.error_code, getattr(response, "error_message", None))
    return BY_COMMAND[type(command)].answer(response)


def error_from_wire(code: int, message: str | None = None) -> KafkaError:
    """The error of a response."""
    try:
        return KafkaError(ErrorCode(code), message or "")
    except ValueError:
        return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, message or f"error {code}")


def answer_to_wire(api: ApiMessage, answer: Any) -> Any:
    """A response from the machine's answer."""
    if not isinstance(answer, DuramenError):
        return api.response.new(**BY_API[api.name].told(answer))
    fields: dict[str, Any] = {"error_code": int(answer.code)}
    if any(field.name == "error_message" for field in api.response.struct.fields):
        fields["error_message"] = str(answer)
    return api.response.new(**fields)


# ---- BrokerRegistration


def _registration(command: RegisterBroker, cluster_id: str) -> dict[str, Any]:
    request = BY_NAME["BrokerRegistration"].request
    return {
        "broker_id": command.node_id,
        "cluster_id": cluster_id,
        "incarnation_id": command.incarnation_id,
        "listeners": [
            request.Listener(name=each.name, host=each.host, port=each.port, security_protocol=each.security_protocol)
            for each in command.endpoints
        ],
        "features": [
            request.Feature(name=name, min_supported_version=lowest, max_supported_version=highest)
            for name, lowest, highest in command.features
        ],
        "rack": command.rack,
        "log_dirs": list(command.directories),
        "previous_broker_epoch": command.previous_broker_epoch,
    }


def _register(body: Any) -> RegisterBroker:
    return RegisterBroker(
        body.broker_id,
        bytes(body.incarnation_id),
        tuple(Endpoint(each.name, each.host, each.port, each.security_protocol) for each in body.listeners),
        body.rack,
        tuple(map(bytes, body.log_dirs)),
        tuple((each.name, each.min_supported_version, each.max_supported_version) for each in body.features),
        body.previous_broker_epoch,
    )


# ---- BrokerHeartbeat


def _heartbeat(command: BrokerHeartbeat, _: str) -> dict[str, Any]:
    return {
        "broker_id": command.node_id,
        "broker_epoch": command.broker_epoch,
        "current_metadata_offset": command.metadata_offset,
        "want_fence": command.wants_fence,
        "want_shut_down": command.wants_shutdown,
    }


def _beat(body: Any) -> BrokerHeartbeat:
    return BrokerHeartbeat(
        body.broker_id, body.broker_epoch, body.current_metadata_offset, body.want_fence, body.want_shut_down
    )


# ---- AlterPartition

NO_BROKER_EPOCH: Final = -1


def _by_topic(items: Iterable[Any]) -> list[tuple[bytes, list[Any]]]:
    """Neighbours of one topic together: what is answered keeps the order of what was asked."""
    return [(topic_id, list(group)) for topic_id, group in groupby(items, lambda item: item.topic_id)]


def _proposals(command: AlterPartition, _: str) -> dict[str, Any]:
    request = BY_NAME["AlterPartition"].request
    topics = [
        request.TopicData(
            topic_id=topic_id,
            partitions=[
                request.PartitionData(
                    partition_index=each.index,
                    leader_epoch=each.leader_epoch,
                    new_isr_with_epochs=[
                        request.BrokerState(broker_id=node_id, broker_epoch=epoch) for node_id, epoch in each.isr
                    ],
                    partition_epoch=each.partition_epoch,
                )
                for each in changes
            ],
        )
        for topic_id, changes in _by_topic(command.partitions)
    ]
    return {"broker_id": command.node_id, "broker_epoch": command.broker_epoch, "topics": topics}


def _alter(body: Any) -> AlterPartition:
    return AlterPartition(
        body.broker_id,
        body.broker_epoch,
        tuple(
            IsrChange(bytes(topic.topic_id), each.partition_index, each.leader_epoch, _isr(each), each.partition_epoch)
            for topic in body.topics
            for each in topic.partitions
        ),
    )


def _isr(partition: Any) -> tuple[tuple[int, int], ...]:
    """Version 2 has no broker epochs."""
    known = tuple((each.broker_id, each.broker_epoch) for each in partition.new_isr_with_epochs)
    return known or tuple((node_id, NO_BROKER_EPOCH) for node_id in partition.new_isr)


def _altered(response: Any) -> list[IsrChanged]:
    return [
        IsrChanged(
            bytes(topic.topic_id),
            each.partition_index,
            error_from_wire(each.error_code).code if each.error_code else ErrorCode.NONE,
            each.leader_id,
            each.leader_epoch,
            tuple(each.isr),
            each.partition_epoch,
        )
        for topic in response.topics
        for each in topic.partitions
    ]


def _told_of_isr(answers: list[IsrChanged]) -> dict[str, Any]:
    response = BY_NAME["AlterPartition"].response
    topics = [
        response.TopicData(
            topic_id=topic_id,
            partitions=[
                response.PartitionData(
                    partition_index=each.index,
                    error_code=int(each.error),
                    leader_id=each.leader,
                    leader_epoch=each.leader_epoch,
                    isr=list(each.isr),
                    partition_epoch=each.partition_epoch,
                )
                for each in changed
            ],
        )
        for topic_id, changed in _by_topic(answers)
    ]
    return {"topics": topics}


MESSAGES: Final = (
    CommandMessage(
        BY_NAME["BrokerRegistration"],
        4,
        RegisterBroker,
        _registration,
        lambda response: Registered(response.broker_epoch),
        _register,
        lambda answer: {"broker_epoch": answer.broker_epoch},
    ),
    CommandMessage(
        BY_NAME["BrokerHeartbeat"],
        2,
        BrokerHeartbeat,
        _heartbeat,
        lambda response: HeartbeatAnswer(response.is_caught_up, response.is_fenced, response.should_shut_down),
        _beat,
        HeartbeatAnswer._asdict,
    ),
    CommandMessage(
        BY_NAME["UnregisterBroker"],
        0,
        UnregisterBroker,
        lambda command, _: {"broker_id": command.node_id},
        lambda response: NO_ERROR,
        lambda body: UnregisterBroker(body.broker_id),
        lambda answer: {"error_code": int(answer.error), "error_message": answer.message},
    ),
    CommandMessage(
        BY_NAME["AllocateProducerIds"],
        0,
        AllocateProducerIds,
        lambda command, _: {"broker_id": command.node_id, "broker_epoch": command.broker_epoch},
        lambda response: ProducerIds(response.producer_id_start, response.producer_id_len),
        lambda body: AllocateProducerIds(body.broker_id, body.broker_epoch),
        lambda answer: {"producer_id_start": answer.first, "producer_id_len": answer.size},
    ),
    CommandMessage(BY_NAME["AlterPartition"], 3, AlterPartition, _proposals, _altered, _alter, _told_of_isr),
)
BY_COMMAND: Final = {each.kind: each for each in MESSAGES}
HEARTBEATS: Final[frozenset[type]] = frozenset({BrokerHeartbeat})
"""What waits behind nothing, and is soon followed by the next one."""
BY_API: Final = {each.api.name: each for each in MESSAGES}


# ---- DescribeConfigs, too

BROKER_RESOURCE: Final = 4
SESSION_MS: Final = "broker.session.timeout.ms"


def session_to_wire(controller_id: int) -> NodeRequest:
    """Asks this node for its session time-out."""
    api = BY_NAME["DescribeConfigs"]
    kinds = api.request
    resource = kinds.DescribeConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name=str(controller_id), configuration_keys=[SESSION_MS]
    )
    return NodeRequest(api, 4, kinds.new(resources=[resource]))


def session_from_wire(response: Any) -> int | KafkaError:
    """In ms. Where the node was not the one, another one is the controller by now."""
    (result,) = response.results
    if result.error_code:
        return KafkaError(ErrorCode.NOT_CONTROLLER, result.error_message or "")
    return int(result.configs[0].value)


# ---- CreateTopics, which is a client's request, too

CREATE_VERSION: Final = 7


def creation_to_wire(topics: list[NewTopic], timeout_ms: int) -> NodeRequest:
    """Creates topics, with the defaults and the ids of the active controller."""
    api = BY_NAME["CreateTopics"]
    request = api.request
    wanted = [
        request.CreatableTopic(
            name=topic.name,
            num_partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            assignments=[
                request.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes))
                for index, nodes in topic.assignments
            ],
            configs=[request.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs],
        )
        for topic in topics
    ]
    return NodeRequest(api, CREATE_VERSION, request.new(topics=wanted, timeout_ms=timeout_ms))


def created_from_wire(reply: memoryview) -> list[TopicCreated]:
    """What the machine said of each topic; reply: without its size."""
    _, response = parse_response(BY_NAME["CreateTopics"], CREATE_VERSION, reply)
    found = []
    for topic in response.topics:
        error = error_from_wire(topic.error_code, topic.error_message) if topic.error_code else None
        result = NO_ERROR if error is None else Result(error.code, topic.error_message)
        found.append(
            TopicCreated(topic.name, result, bytes(topic.topic_id), topic.num_partitions, topic.replication_factor)
        )
    return found
