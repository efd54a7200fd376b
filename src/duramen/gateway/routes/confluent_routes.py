"""Routes of Confluent's REST API."""

from __future__ import annotations

import msgspec

from duramen.gateway.confluent.group_resources import (
    AssignmentList,
    AssignmentResource,
    ConsumerList,
    ConsumerResource,
    GroupList,
    GroupResource,
    LagList,
    LagResource,
    LagSummary,
)
from duramen.gateway.confluent.rest_records import ProducedRecord, RecordReport
from duramen.gateway.confluent.rest_resources import (
    BrokerList,
    BrokerResource,
    ClusterList,
    ClusterResource,
    PartitionList,
    PartitionResource,
    ReplicaList,
    ReplicaResource,
    TopicList,
    TopicResource,
)
from duramen.gateway.confluent.setting_admin import WantedChanges, WantedValue
from duramen.gateway.confluent.topic_admin import WantedPartitions, WantedTopic
from duramen.gateway.confluent.v3_moves import ReassignmentList, ReassignmentResource
from duramen.gateway.confluent.v3_settings import SettingList, SettingResource
from duramen.gateway.routes.errors import ANY_CALL
from duramen.gateway.routes.route import KNOWN, LISTED, Parameter, RouteAnswer, RouteRow

_JSON = "application/json"
_CLUSTER = "/v3/clusters/{cluster_id}"
_TOPIC = f"{_CLUSTER}/topics/{{topic_name}}"
_PARTITION = f"{_TOPIC}/partitions/{{partition_id}}"
_GROUP = f"{_CLUSTER}/consumer-groups/{{consumer_group_id}}"
_CONSUMER = f"{_GROUP}/consumers/{{consumer_id}}"
_BROKER = f"{_CLUSTER}/brokers/{{broker_id}}"
_MEANINGS = {
    "cluster_id": "The id of the cluster, as /v3/clusters has it",
    "topic_name": "The name of the topic",
    "partition_id": "The number of the partition",
    "broker_id": "The id of the node",
    "name": "The name of the setting",
    "consumer_group_id": "The name of the group",
    "consumer_id": "The id of a member of the group",
}
_BODY = ("bad-request", "unsupported-type", "body-too-large", "body-timeout", "overloaded", "foreign-origin")


def _parameters(path: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, "path", meaning, True) for name, meaning in _MEANINGS.items() if f"{{{name}}}" in path)


def _got(
    path: str,
    operation: str,
    resource: str,
    what: str,
    body: type[msgspec.Struct],
    *errors: str,
    right: str = "read",
) -> RouteRow:
    """GET of a resource."""
    found = (*ANY_CALL, *(("no-such-cluster",) if "{cluster_id}" in path else ()), *errors)
    answers = (RouteAnswer(200, "It", (), _JSON, body),)
    return RouteRow("GET", path, operation, resource, what, answers, found, _parameters(path), right=right)


def _settings(path: str, kind: str, *errors: str) -> tuple[RouteRow, ...]:
    """Routes of the settings of a topic, of a node, or of all nodes."""
    resource = "topic" if kind == "Topic" else "cluster"
    one = f"{path}/{{name}}"
    errors = (*errors, "bad-request") if kind == "Topic" else errors  # what is no name of one
    return (
        _got(path, f"list{kind}SettingsV3", resource, "List the settings", SettingList, *errors),
        _changed("POST", f"{path}:alter", f"alter{kind}SettingsV3", resource, "Change settings, all or none",
                 errors, WantedChanges),
        _got(one, f"get{kind}SettingV3", resource, "Describe a setting", SettingResource, *errors, "no-such-setting"),
        _changed("PUT", one, f"set{kind}SettingV3", resource, "Change a setting", errors, WantedValue),
        _changed("DELETE", one, f"reset{kind}SettingV3", resource, "Set a setting back to its default", errors),
    )  # fmt: skip


def _changed(
    method: str,
    path: str,
    operation: str,
    resource: str,
    what: str,
    errors: tuple[str, ...],
    body: type[msgspec.Struct] | None = None,
) -> RouteRow:
    """A change of settings."""
    failures = (*ANY_CALL, *(_BODY if body else ("bad-request", "foreign-origin")), "no-such-cluster", *errors)
    return RouteRow(
        method,
        path,
        operation,
        resource,
        what,
        (RouteAnswer(204, "It is changed"),),
        (*failures, "no-such-setting"),
        _parameters(path),
        "What is wanted" if body else "",
        body,
        right="admin",
    )


def _access(method: str, operation: str, what: str, right: str) -> RouteRow:
    """Access lists are the cluster's to refuse."""
    errors = (*ANY_CALL, "no-such-cluster", "bad-request", "not-served", "foreign-origin")
    path = f"{_CLUSTER}/acls"
    return RouteRow(method, path, operation, "cluster", what, (), errors, _parameters(path), right=right)


V3_ROUTES: tuple[RouteRow, ...] = (
    _got("/v3/clusters", "listClustersV3", "cluster", "List the cluster that the gateway is for", ClusterList,
         right=KNOWN),
    _got(_CLUSTER, "getClusterV3", "cluster", "Describe the cluster", ClusterResource, right=KNOWN),
    _got(f"{_CLUSTER}/brokers", "listBrokersV3", "cluster", "List the nodes", BrokerList, right=KNOWN),
    _got(_BROKER, "getBrokerV3", "cluster", "Describe a node", BrokerResource, "no-such-broker", right=KNOWN),
    _got(f"{_BROKER}/partition-replicas", "listBrokerReplicasV3", "cluster", "List the copies that a node has",
         ReplicaList, "no-such-broker"),
    _got(f"{_CLUSTER}/brokers/-/configs", "listAllBrokerSettingsV3", "cluster", "List the settings of all nodes",
         SettingList),
    *_settings(f"{_BROKER}/configs", "Broker", "no-such-broker"),
    *_settings(f"{_CLUSTER}/broker-configs", "Cluster"),
    _got(f"{_CLUSTER}/topics", "listTopicsV3", "cluster", "List the topics", TopicList,
         right=LISTED),
    RouteRow(
        "POST",
        f"{_CLUSTER}/topics",
        "createTopicV3",
        "cluster",
        "Make a topic",
        (RouteAnswer(201, "It was made, or with `validate_only` it could be", (), _JSON, TopicResource),),
        (*ANY_CALL, *_BODY, "no-such-cluster", "topic-exists", "quota"),
        _parameters(_CLUSTER),
        "The topic",
        WantedTopic,
        right="admin",
    ),
    _got(_TOPIC, "getTopicV3", "topic", "Describe a topic", TopicResource, "no-such-topic"),
    RouteRow(
        "PATCH",
        _TOPIC,
        "changeTopicV3",
        "topic",
        "Give a topic more partitions",
        (RouteAnswer(200, "The topic as it is now", (), _JSON, TopicResource),),
        (*ANY_CALL, *_BODY, "no-such-cluster", "no-such-topic", "quota"),
        _parameters(_TOPIC),
        "How many it is to have",
        WantedPartitions,
        right="admin",
    ),
    RouteRow(
        "DELETE",
        _TOPIC,
        "deleteTopicV3",
        "topic",
        "Delete a topic with all that is in it",
        (RouteAnswer(204, "It is gone"),),
        (*ANY_CALL, "no-such-cluster", "no-such-topic", "foreign-origin", "quota"),
        _parameters(_TOPIC),
        right="admin",
    ),
    _got(f"{_CLUSTER}/topics/-/configs", "listAllTopicSettingsV3", "topic", "List the settings of all topics",
         SettingList, right=LISTED),
    *_settings(f"{_TOPIC}/configs", "Topic", "no-such-topic"),
    _got(f"{_CLUSTER}/topics/-/partitions/-/reassignment", "listReassignmentsV3", "cluster",
         "List the partitions that get other replicas", ReassignmentList),
    _got(f"{_TOPIC}/partitions/-/reassignment", "listTopicReassignmentsV3", "topic",
         "List the partitions of a topic that get other replicas", ReassignmentList, "no-such-topic"),
    _got(f"{_PARTITION}/reassignment", "getReassignmentV3", "topic", "Describe how the replicas of a partition change",
         ReassignmentResource, "no-such-topic", "no-such-move"),
    _got(f"{_TOPIC}/partitions", "listPartitionsV3", "topic", "List the partitions of a topic", PartitionList,
         "no-such-topic"),
    _got(_PARTITION, "getPartitionV3", "topic", "Describe a partition", PartitionResource,
         "no-such-topic", "no-such-partition"),
    _got(f"{_PARTITION}/replicas", "listReplicasV3", "topic", "List the copies of a partition", ReplicaList,
         "no-such-topic", "no-such-partition"),
    _got(f"{_PARTITION}/replicas/{{broker_id}}", "getReplicaV3", "topic", "Describe a copy of a partition",
         ReplicaResource, "no-such-topic", "no-such-partition", "no-such-broker"),
    RouteRow(
        "POST",
        f"{_TOPIC}/records",
        "produceRecordsV3",
        "topic",
        "Write records to a topic: one JSON object, or many one after another, which are reported while they come",
        (RouteAnswer(
            200,
            "A report for each record, in order, with its own `error_code`: 200 where it is stored",
            (),
            _JSON,
            RecordReport,
        ),),
        (*ANY_CALL, *_BODY, "no-such-cluster", "no-such-topic", "no-such-partition", "key-schema-needed",
         "value-schema-needed", "closed", "txid-out-of-order", "writer-fenced", "record-too-large",
         "too-few-replicas", "disk-full", "quota", "outcome-unknown"),
        _parameters(_TOPIC),
        "A record, or several one after another; sent in chunks, they are reported while more come",
        ProducedRecord,
        right="write",
    ),
    _got(f"{_CLUSTER}/consumer-groups", "listGroupsV3", "group", "List the consumer groups", GroupList,
         right=LISTED),
    _got(_GROUP, "getGroupV3", "group", "Describe a group", GroupResource, "no-such-group"),
    _got(f"{_GROUP}/consumers", "listConsumersV3", "group", "List the members of a group", ConsumerList,
         "no-such-group"),
    _got(f"{_CONSUMER}/assignments/{{topic_name}}/partitions/{{partition_id}}", "getAssignmentV3", "group",
         "Describe a partition that a member reads", AssignmentResource,
         "no-such-group", "no-such-consumer", "no-such-partition"),
    _got(f"{_CONSUMER}/assignments", "listAssignmentsV3", "group", "List the partitions that a member reads",
         AssignmentList, "no-such-group", "no-such-consumer"),
    _got(_CONSUMER, "getConsumerV3", "group", "Describe a member", ConsumerResource,
         "no-such-group", "no-such-consumer"),
    _got(f"{_GROUP}/lags", "listLagsV3", "group", "List how far a group is behind", LagList, "no-such-group"),
    _got(f"{_GROUP}/lags/{{topic_name}}/partitions/{{partition_id}}", "getLagV3", "group",
         "Describe how far a group is behind in a partition", LagResource, "no-such-group", "no-such-partition"),
    _got(f"{_GROUP}/lag-summary", "summariseLagsV3", "group", "Sum up how far a group is behind", LagSummary,
         "no-such-group"),
    _access("GET", "listAccessV3", "List access lists", "read"),
    _access("POST", "allowAccessV3", "Make access lists", "admin"),
    _access("DELETE", "removeAccessV3", "Delete access lists", "admin"),
)  # fmt: skip
