"""Routes of topics."""

from __future__ import annotations

from duramen.gateway.routes.errors import ANY_CALL
from duramen.gateway.routes.route import Parameter, RouteAnswer, RouteRow

_JSON = "application/json"

TOPIC_ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "POST",
        "/v1/topics/{topic}/records",
        "writeRecords",
        "topic",
        "Write records to a topic; they are spread over its partitions by key, as Kafka's clients do it",
        (
            RouteAnswer(200, "Each record is stored; a receipt for each, in the order of the body", (), _JSON),
            RouteAnswer(207, "Some are stored; a receipt or a problem for each, in the order of the body", (), _JSON),
        ),
        (*ANY_CALL, "bad-request", "no-such-topic", "unsupported-type", "closed", "txid-out-of-order",
         "writer-fenced", "body-too-large", "record-too-large", "overloaded", "too-few-replicas", "disk-full", "quota",
         "outcome-unknown", "foreign-origin", "body-timeout"),
        (
            Parameter("topic", "path", "The name of the topic", True),
            Parameter("Content-Type", "header", "application/json, or application/x-ndjson: lines with a record each, "
                      "answered line by line while they come"),
        ),
        'A record (`key`, `value`, `headers`, `partition`, `timestamp`, `key_encoding`, `value_encoding`), or '
        '`{"records": [...]}` with several, and the encodings of all',
        right="write",
    ),
)  # fmt: skip
