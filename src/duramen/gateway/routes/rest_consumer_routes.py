"""Routes of consumers of version 2 of Confluent's REST API."""

from __future__ import annotations

import msgspec

from duramen.gateway.confluent.rest_errors import V2_JSON
from duramen.gateway.consumers.consumer_bodies import (
    ConsumerMade,
    ConsumerOffsets,
    NamedPartitions,
    SubscribedTopics,
    WantedOffsets,
    WantedSubscription,
)
from duramen.gateway.routes.errors import ANY_CALL
from duramen.gateway.routes.route import Parameter, RouteAnswer, RouteRow

_GROUP = "/consumers/{group_name}"
_INSTANCE = f"{_GROUP}/instances/{{instance}}"
_GROUP_NAMED = Parameter("group_name", "path", "The name of the group", True)
_NAMED = (_GROUP_NAMED, Parameter("instance", "path", "The name of the consumer, its instance_id", True))
_TYPE = Parameter("Content-Type", "header", f"{V2_JSON} or application/json")
_ACCEPT = Parameter("Accept", "header", f"{V2_JSON} (the default), application/vnd.kafka+json or application/json")
_ANY = (*ANY_CALL, "no-such-instance")
_SENT = ("bad-request", "unsupported-type", "body-too-large", "body-timeout", "overloaded")


def _done(path: str, operation: str, what: str, sent: str, body: type[msgspec.Struct] | None, *errors: str) -> RouteRow:
    """POST that is answered 204."""
    answers = (RouteAnswer(204, "Done"),)
    failures = (*_ANY, *_SENT, "foreign-origin", *errors)
    return RouteRow(
        "POST", path, operation, "group", what, answers, failures, (*_NAMED, _TYPE), sent, body, right="write"
    )


def _asked(
    path: str, operation: str, what: str, answer: type[msgspec.Struct], sent: str = "",
    body: type[msgspec.Struct] | None = None, *errors: str,
) -> RouteRow:  # fmt: skip
    """GET."""
    answers = (RouteAnswer(200, "It", (), V2_JSON, answer),)
    failures = (*_ANY, "not-acceptable", *errors)
    return RouteRow(
        "GET", path, operation, "group", what, answers, failures, (*_NAMED, _ACCEPT), sent, body, right="read"
    )


CONSUMER_ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "POST",
        _GROUP,
        "createConsumer",
        "group",
        "Make a consumer in a group",
        (RouteAnswer(200, "The consumer", (), V2_JSON, ConsumerMade),),
        (*ANY_CALL, *_SENT, "foreign-origin", "not-acceptable", "consumer-exists", "wrong-setting"),
        (_GROUP_NAMED, _TYPE, _ACCEPT),
        "Settings: name, format (binary or json), auto.offset.reset, auto.commit.enable, fetch.min.bytes,"
        " consumer.request.timeout.ms",
        right="write",
    ),
    RouteRow(
        "DELETE",
        _INSTANCE,
        "deleteConsumer",
        "group",
        "End a consumer; with auto.commit.enable, what it was answered is committed",
        (RouteAnswer(204, "It is gone"),),
        (*_ANY, "foreign-origin"),
        _NAMED,
        right="write",
    ),
    _done(f"{_INSTANCE}/subscription", "subscribeConsumer", "Read what the group gives of these topics from now on",
          "Topics by name, or topic_pattern: a regular expression (RE2) that whole names match", WantedSubscription,
          "consumer-state"),
    _asked(f"{_INSTANCE}/subscription", "getConsumerSubscription", "Say what the consumer has subscribed to",
           SubscribedTopics),
    RouteRow(
        "DELETE",
        f"{_INSTANCE}/subscription",
        "unsubscribeConsumer",
        "group",
        "Leave the group and read nothing from now on",
        (RouteAnswer(204, "Done"),),
        (*_ANY, "foreign-origin"),
        _NAMED,
        right="write",
    ),
    _done(f"{_INSTANCE}/assignments", "assignConsumer", "Read these partitions from now on", "The partitions",
          NamedPartitions, "no-such-topic", "no-such-partition", "consumer-state"),
    _asked(f"{_INSTANCE}/assignments", "getConsumerAssignments", "Say what the consumer reads", NamedPartitions),
    _done(f"{_INSTANCE}/positions", "seekConsumer", "Go on at these offsets", "The offsets", WantedOffsets,
          "no-such-partition"),
    _done(f"{_INSTANCE}/positions/beginning", "seekConsumerToBeginning", "Go on at the first offset of partitions",
          "The partitions", NamedPartitions, "no-such-partition"),
    _done(f"{_INSTANCE}/positions/end", "seekConsumerToEnd", "Go on after the last record of partitions",
          "The partitions", NamedPartitions, "no-such-partition"),
    RouteRow(
        "GET",
        f"{_INSTANCE}/records",
        "readConsumerRecords",
        "group",
        "Read the next records",
        (RouteAnswer(200, "Records, none where none came in time", (), "application/vnd.kafka.binary.v2+json"),),
        (*_ANY, "bad-request", "not-acceptable", "another-format", "unfit-record", "consumer-state", "no-such-method",
         "no-such-topic", "no-such-partition"),
        (
            *_NAMED,
            Parameter("timeout", "query", "How many ms to wait for records; consumer.request.timeout.ms without it"),
            Parameter("max_bytes", "query", "Bytes of keys and values; at most gateway.reader.max.bytes"),
            Parameter("Accept", "header", "application/vnd.kafka.binary.v2+json or application/vnd.kafka.json.v2+json,"
                      " as the consumer was made; or a type without a format"),
        ),
        right="read",
    ),
    _done(f"{_INSTANCE}/offsets", "commitConsumerOffsets", "Commit all that was read, or these records",
          "The offset of the last record that was worked on, for each partition; empty for all that was read",
          WantedOffsets, "no-such-topic", "no-such-partition"),
    _asked(f"{_INSTANCE}/offsets", "getConsumerOffsets", "Say what the group has committed", ConsumerOffsets,
           "The partitions; those that are read, where it is empty", NamedPartitions, "bad-request",
           "unsupported-type", "body-too-large", "body-timeout", "overloaded", "no-such-topic", "no-such-partition"),
)  # fmt: skip
