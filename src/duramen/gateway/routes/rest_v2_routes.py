"""Routes of version 2 of Confluent's REST API."""

from __future__ import annotations

import msgspec

from duramen.gateway.confluent.rest_errors import V2_JSON
from duramen.gateway.confluent.v2_bodies import (
    BrokersV2,
    OffsetsV2,
    PartitionV2,
    ProducedV2,
    RecordsV2,
    TopicV2,
)
from duramen.gateway.routes.errors import ANY_CALL
from duramen.gateway.routes.route import KNOWN, LISTED, Parameter, RouteAnswer, RouteRow

_TOPIC = "/topics/{topic_name}"
_PARTITION = f"{_TOPIC}/partitions/{{partition_id}}"
_PATH = Parameter("topic_name", "path", "The name of the topic", True)
_NUMBER = Parameter("partition_id", "path", "The number of the partition", True)
_ACCEPT = Parameter("Accept", "header", f"{V2_JSON} (the default), application/vnd.kafka+json or application/json")


def _got(
    path: str,
    operation: str,
    resource: str,
    what: str,
    body: type[msgspec.Struct] | None,
    *errors: str,
    right: str = "read",
) -> RouteRow:
    """GET."""
    named = tuple(each for each in (_PATH, _NUMBER) if f"{{{each.name}}}" in path)
    failures = (*ANY_CALL, "not-acceptable", *errors)
    answers = (RouteAnswer(200, "It", (), V2_JSON, body),)
    return RouteRow("GET", path, operation, resource, what, answers, failures, (*named, _ACCEPT), right=right)


def _produced(path: str, operation: str, what: str, *named: Parameter) -> RouteRow:
    """POST of records."""
    return RouteRow(
        "POST",
        path,
        operation,
        "topic",
        what,
        (RouteAnswer(200, "Of each record, in order: where it is, or why it is not stored", (), V2_JSON, ProducedV2),),
        (
            *ANY_CALL,
            "not-acceptable",
            "bad-request",
            "unsupported-type",
            "no-such-topic",
            "no-such-partition",
            "body-too-large",
            "body-timeout",
            "overloaded",
            "foreign-origin",
        ),
        (
            *named,
            Parameter(
                "Content-Type",
                "header",
                "application/vnd.kafka.binary.v2+json: keys and values are base64;"
                " application/vnd.kafka.json.v2+json: they are JSON",
            ),
            _ACCEPT,
        ),
        "The records",
        RecordsV2,
        right="write",
    )


V2_ROUTES: tuple[RouteRow, ...] = (
    _got("/topics", "listTopicsV2", "topic", "List the names of the topics", None, right=LISTED),
    _got(_TOPIC, "getTopicV2", "topic", "Describe a topic, its settings and partitions", TopicV2, "no-such-topic"),
    _produced(_TOPIC, "produceToTopicV2", "Write records to a topic", _PATH),
    _got(f"{_TOPIC}/partitions", "listPartitionsV2", "topic", "List the partitions of a topic", None, "no-such-topic"),
    _got(_PARTITION, "getPartitionV2", "topic", "Describe a partition", PartitionV2,
         "no-such-topic", "no-such-partition"),
    _produced(_PARTITION, "produceToPartitionV2", "Write records to a partition", _PATH, _NUMBER),
    _got(f"{_PARTITION}/offsets", "getOffsetsV2", "topic", "Say where a partition begins and ends", OffsetsV2,
         "no-such-topic", "no-such-partition"),
    _got("/brokers", "listBrokersV2", "cluster", "List the ids of the nodes", BrokersV2, right=KNOWN),
)  # fmt: skip
