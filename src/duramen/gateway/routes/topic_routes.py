"""Routes of topics."""

from __future__ import annotations

from duramen.gateway.routes.errors import ANY_CALL
from duramen.gateway.routes.route import Parameter, RouteAnswer, RouteRow

_JSON = "application/json"

_TOPIC = Parameter("topic", "path", "The name of the topic", True)
_READ = ("Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Advanced", "ETag", "Cache-Control")

TOPIC_ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "GET",
        "/v1/topics/{topic}/records",
        "readRecords",
        "topic",
        "Read records of all partitions of a topic, or follow them (long-poll, server-sent events)",
        (
            RouteAnswer(200, "Records, a JSON object each, of every partition in its order; or events", _READ, "*/*"),
            RouteAnswer(204, "live=long-poll: nothing came in time", _READ),
            RouteAnswer(304, "If-None-Match has the ETag: nothing is new", _READ),
        ),
        (*ANY_CALL, "bad-request", "no-such-topic", "truncated", "position-diverged", "overloaded"),
        (
            _TOPIC,
            Parameter("offset", "query", "A position that an answer gave, -1 (the beginning, the default) or now"),
            Parameter("live", "query", "long-poll or sse; then offset has to be given"),
            Parameter("partition", "query", "One partition alone"),
            Parameter("encoding", "query", "json (of values, the default), string or base64"),
            Parameter("key", "query", "Only records with this key"),
            Parameter("header.NAME", "query", "Only records with this header; several have to hold together"),
            Parameter("on_truncated", "query", "fail (the default) or advance: from the first record that there is"),
            Parameter("format", "query", "ndjson, which it is anyway"),
            Parameter("Last-Event-ID", "header", "With live=sse: the position to go on from, before offset"),
            Parameter("If-None-Match", "header", "ETags of answers that the client holds"),
        ),
        right="read",
    ),
    RouteRow(
        "GET",
        "/v1/topics/{topic}/.socket",
        "followRecords",
        "topic",
        "Follow all partitions of a topic by WebSocket; by credits the reader says how much may be sent",
        (
            RouteAnswer(
                101,
                "A WebSocket, as a stream's; the client may send `partition`, `key` and `headers` with `from`, too",
            ),
        ),
        (*ANY_CALL, "bad-request", "no-such-topic", "truncated", "position-diverged", "overloaded", "foreign-origin",
         "upgrade-needed", "quota", "body-timeout"),
        (_TOPIC,),
        right="read",
    ),
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
            _TOPIC,
            Parameter("Content-Type", "header", "application/json (the default), or application/x-ndjson: lines with a "
                      "record each, answered line by line while they come"),
        ),
        'A record (`key`, `value`, `headers`, `partition`, `timestamp`, `key_encoding`, `value_encoding`), or '
        '`{"records": [...]}` with several, and the encodings of all',
        right="write",
    ),
)  # fmt: skip
