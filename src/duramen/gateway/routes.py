"""The one table of what the gateway serves: routes, how each is asked and answered, and with what it refuses.

The application, `/openapi.json` and docs/http.md are made from it.
"""

from __future__ import annotations

from typing import NamedTuple

ERRORS: dict[str, tuple[int, str]] = {
    "bad-request": (400, "A header, a parameter or the body is wrong; `detail` names it first."),
    "not-allowed": (403, "The cluster does not allow it."),
    "foreign-origin": (403, "A page of an origin that is not listed wants to change something."),
    "no-such-stream": (404, "There is no such stream, or it has expired."),
    "no-such-topic": (404, "There is no such topic."),
    "not-found": (404, "There is nothing at this path."),
    "no-such-method": (405, "The path does not know the method."),
    "body-timeout": (408, "The body did not arrive in time."),
    "writer-fenced": (403, "Another writer has the stream, or the name a newer epoch: Producer-Epoch is that."),
    "txid-out-of-order": (409, "The stream has transaction ids, and one was below the last (duramen.txid)."),
    "exists": (409, "The stream is there with another type, expiry or closing."),
    "closed": (409, "The stream is closed: nothing is appended behind it; Stream-Closed, Stream-Next-Offset."),
    "sequence": (409, "Producer-Seq leaves a gap (Producer-Expected-Seq), or Stream-Seq is not above the last one."),
    "end-is-elsewhere": (409, "The stream does not end at Stream-Expected-Offset; Stream-Next-Offset is where."),
    "position-diverged": (409, "The position is not of this stream's history."),
    "truncated": (410, "The records there are gone; Stream-Next-Offset is the first position that there is."),
    "body-too-large": (413, "The body is longer than gateway.body.max.bytes."),
    "record-too-large": (413, "The records are larger than the topic takes."),
    "unsupported-type": (415, "The body is of a type that is not taken here."),
    "host-not-listed": (421, "The gateway is not addressed by a name of its own (gateway.hosts)."),
    "quota": (429, "Too much at a time."),
    "bug": (500, "A fault of the gateway; its log has the place."),
    "not-served": (501, "The protocol has it, this release does not."),
    "refused": (502, "The cluster refused it for another reason; `kafka_error` is its code."),
    "overloaded": (503, "As many writes or readers as the gateway takes; Retry-After."),
    "too-few-replicas": (503, "Too few copies are in sync; Retry-After."),
    "disk-full": (503, "The leader's disk takes nothing; Retry-After."),
    "node-away": (503, "The cluster does not answer; Retry-After."),
    "outcome-unknown": (504, "A write got no answer; it may be stored. `detail` says what is safe to do."),
}
"""Every code of a problem: its status and what it means."""

ANY_REQUEST = ("host-not-listed", "bug")
ANY_CALL = ("node-away", "refused", "not-allowed")


class Parameter(NamedTuple):
    """A parameter of a route. place: path, query or header."""

    name: str
    place: str
    meaning: str
    required: bool = False


class RouteAnswer(NamedTuple):
    """A success. headers: names of those it has; content: the media type of its body, "" for none."""

    status: int
    meaning: str
    headers: tuple[str, ...] = ()
    content: str = ""


class RouteRow(NamedTuple):
    """One method of one path. operation and resource: what a permission would name; body: what is sent, "" nothing."""

    method: str
    path: str
    operation: str
    resource: str
    summary: str
    answers: tuple[RouteAnswer, ...]
    errors: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    body: str = ""


_PATH = Parameter("path", "path", "Segments of letters, digits, _ and -, joined by /; a/b is the topic a.b", True)
_STREAM = "/v1/stream/{path}"
_TYPE = Parameter("Content-Type", "header", "Media type of the stream; what it is compared by has no parameters")
_JSON = "application/json"
_END = ("Stream-Next-Offset",)
_WRITTEN = ("Stream-Next-Offset", "Stream-Receipt", "Stream-Closed", "Producer-Epoch", "Producer-Seq")
_READ = (
    "Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Cursor", "Stream-Advanced-To", "ETag",
    "Cache-Control",
)  # fmt: skip

ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "PUT",
        _STREAM,
        "createStream",
        "stream",
        "Make a stream, or find the same one",
        (
            RouteAnswer(201, "The stream was made", ("Location", "Content-Type", *_END, "Stream-Receipt")),
            RouteAnswer(200, "It was there, with the same type, expiry, closing; a body counts if it is empty", _END),
        ),
        (*ANY_CALL, "bad-request", "exists", "closed", "end-is-elsewhere", "body-too-large", "record-too-large",
         "overloaded", "too-few-replicas",
         "disk-full", "quota", "outcome-unknown", "foreign-origin", "body-timeout", "not-served"),
        (
            _PATH,
            _TYPE,
            Parameter("Stream-TTL", "header", "Seconds that it lives after it was last read or written"),
            Parameter("Stream-Expires-At", "header", "When it ends (RFC 3339); not with Stream-TTL"),
            Parameter("Stream-Closed", "header", "true: it is closed, and has what the body has"),
        ),
        "First records, as POST takes them",
    ),
    RouteRow(
        "POST",
        _STREAM,
        "appendToStream",
        "stream",
        "Append a body: one record, or in a JSON stream one for each element of an array",
        (
            RouteAnswer(204, "All of it is stored, as one batch; of a named writer: it was there already", _WRITTEN),
            RouteAnswer(200, "Of a named writer: all of it is stored now", _WRITTEN),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream", "exists", "closed", "sequence", "end-is-elsewhere",
         "txid-out-of-order", "writer-fenced", "body-too-large", "record-too-large", "overloaded", "too-few-replicas",
         "disk-full", "quota", "outcome-unknown", "foreign-origin", "body-timeout"),
        (
            _PATH,
            _TYPE,
            Parameter("Stream-Closed", "header", "true: the stream is closed behind the body, which may be empty then"),
            Parameter("Stream-Expected-Offset", "header", "Append only if the stream ends at this position"),
            Parameter("Stream-Seq", "header", "Append only if it is above the last one of the stream, as bytes"),
            Parameter("Producer-Id", "header", "The name of the writer; with it a request may be sent again"),
            Parameter("Producer-Epoch", "header", "From 0 to 32767; a higher one fences who writes in a lower"),
            Parameter("Producer-Seq", "header", "The number of the request in its epoch, from 0"),
        ),
        "The record; of the stream's type",
    ),
    RouteRow(
        "GET",
        _STREAM,
        "readStream",
        "stream",
        "Read what there is from a position, or follow (long-poll, server-sent events)",
        (
            RouteAnswer(200, "Records of the stream's type (JSON: an array), or text/event-stream", _READ, "*/*"),
            RouteAnswer(204, "live=long-poll: nothing came in time", _READ[:5]),
            RouteAnswer(304, "If-None-Match has the ETag: nothing is new", _READ),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream", "truncated", "position-diverged", "overloaded"),
        (
            _PATH,
            Parameter("offset", "query", "A position that an answer gave, -1 (the beginning, the default) or now"),
            Parameter("live", "query", "long-poll or sse; then offset has to be given"),
            Parameter("on_truncated", "query", "fail (the default) or advance: from the first record that there is"),
            Parameter("cursor", "query", "The Stream-Cursor of the answer before"),
            Parameter("Last-Event-ID", "header", "With live=sse: the position to go on from, before offset"),
            Parameter("If-None-Match", "header", "ETags of answers that the client holds"),
        ),
    ),
    RouteRow(
        "HEAD",
        _STREAM,
        "describeStream",
        "stream",
        "Type, end and expiry of a stream",
        (
            RouteAnswer(
                200,
                "The stream is there",
                ("Content-Type", *_END, "Stream-TTL", "Stream-Expires-At", "Stream-Closed", "Cache-Control"),
            ),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream"),
        (_PATH,),
    ),
    RouteRow(
        "DELETE",
        _STREAM,
        "deleteStream",
        "stream",
        "Delete a stream with all that is in it",
        (RouteAnswer(204, "It is gone"),),
        (*ANY_CALL, "bad-request", "no-such-stream", "foreign-origin"),
        (_PATH,),
    ),
    RouteRow(
        "GET",
        f"{_STREAM}/.position",
        "findPosition",
        "stream",
        "Find the first record at or above a position; one parameter says which",
        (RouteAnswer(200, "offset, dlsn, epoch; time or txid of the record, or at_end: none is there yet", (), _JSON),),
        (*ANY_CALL, "bad-request", "no-such-stream", "truncated", "position-diverged"),
        (
            _PATH,
            Parameter("dlsn", "query", "A DLSN, as a receipt or Stream-Next-Offset has it, or DistributedLog's base64"),
            Parameter("txid", "query", "The first record with this transaction id or a higher one (duramen.txid)"),
            Parameter("offset", "query", "An offset of the topic, -1 (the beginning) or now (the end)"),
            Parameter("time", "query", "The first record of this time or a later one: ms since 1970, or RFC 3339"),
        ),
    ),
    RouteRow(
        "POST",
        f"{_STREAM}/.truncate",
        "truncateStream",
        "stream",
        "Delete all records in front of a position; it is answered when that is on stable storage",
        (RouteAnswer(200, "The first position that there is: offset, dlsn, epoch, time or txid, at_end", (), _JSON),),
        (*ANY_CALL, "bad-request", "no-such-stream", "position-diverged", "body-too-large", "overloaded",
         "too-few-replicas", "disk-full", "foreign-origin", "body-timeout"),
        (_PATH,),
        'An object, `{"before": {"dlsn": …}}`, or txid, offset or time instead of dlsn',
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
            Parameter("topic", "path", "The name of the topic", True),
            Parameter("Content-Type", "header", "application/json, or application/x-ndjson: lines with a record each, "
                      "answered line by line while they come"),
        ),
        'A record (`key`, `value`, `headers`, `partition`, `timestamp`, `key_encoding`, `value_encoding`), or '
        '`{"records": [...]}` with several, and the encodings of all',
    ),
    RouteRow(
        "GET", "/healthz", "health", "gateway", "Whether the process answers",
        (RouteAnswer(200, "It does", (), "text/plain"),),
    ),
    RouteRow(
        "GET", "/readyz", "readiness", "gateway", "Whether the cluster answers the gateway",
        (RouteAnswer(200, "It does", (), "text/plain"),), ("node-away",),
    ),
    RouteRow(
        "GET", "/metrics", "metrics", "gateway", "Counters for Prometheus",
        (RouteAnswer(200, "The counters", (), "text/plain"),),
    ),
    RouteRow(
        "GET", "/openapi.json", "openapi", "gateway", "This table, as OpenAPI 3.1",
        (RouteAnswer(200, "The description", (), "application/json"),),
    ),
)  # fmt: skip
"""Every route, in the order of the documents."""
