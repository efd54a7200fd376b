"""Routes of streams."""

from __future__ import annotations

from duramen.gateway.routes.errors import ANY_CALL
from duramen.gateway.routes.route import DURABLE_STREAM, Parameter, RouteAnswer, RouteRow

_PATH = Parameter("path", "path", "Segments of letters, digits, _ and -, joined by /; a/b is the topic a.b", True)
_STREAM = DURABLE_STREAM
_TYPE = Parameter(
    "Content-Type",
    "header",
    "Media type of the stream, compared without parameters; a body needs it, PUT "
    "without it makes application/octet-stream",
)
_JSON = "application/json"
_END = ("Stream-Next-Offset",)
_MADE = (*_END, "Stream-Id")
_WRITTEN = (
    "Stream-Next-Offset", "Stream-Receipt", "Stream-Closed", "Producer-Epoch", "Producer-Seq", "Stream-Writer-Next-Seq",
)  # fmt: skip
_READ = (
    "Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Cursor", "Stream-Advanced-To", "Stream-Id",
    "ETag", "Cache-Control",
)  # fmt: skip

STREAM_ROUTES: tuple[RouteRow, ...] = (
    RouteRow(
        "PUT",
        _STREAM,
        "createStream",
        "stream",
        "Make a stream, or find the same one",
        (
            RouteAnswer(201, "The stream was made", ("Location", "Content-Type", *_MADE, "Stream-Receipt")),
            RouteAnswer(200, "It was there, with the same settings; a body counts if it is empty", _MADE),
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
            Parameter("Stream-Exclusive", "header", "true: it takes records of one writer at a time (PUT of .writer)"),
            Parameter("Stream-Txid", "header", "Who gives transaction ids: application, assigned, none (duramen.txid)"),
            Parameter("Stream-Settings", "header", 'Other topic settings as JSON, `{"retention.ms": "86400000"}`'),
        ),
        "First records, as POST takes them",
        right="write",
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
         "position-diverged", "txid-out-of-order", "writer-fenced", "body-too-large", "record-too-large", "overloaded",
         "too-few-replicas", "disk-full", "quota", "outcome-unknown", "foreign-origin", "body-timeout"),
        (
            _PATH,
            _TYPE,
            Parameter("format", "query", "ndjson: the body is lines with a record each, with all that it has"),
            Parameter("encoding", "query", "With format=ndjson: json (of values, the default), string or base64"),
            Parameter("stream_id", "query", "The Stream-Id of an answer before; 409 for another stream of the name"),
            Parameter("Stream-Closed", "header", "true: the stream is closed after the body, which may be empty then"),
            Parameter("Stream-Expected-Offset", "header", "Append only if the stream ends at this position"),
            Parameter("Stream-Seq", "header", "Append only if it is above the last one of the stream, as bytes"),
            Parameter("Producer-Id", "header", "The name of the writer; with it a request may be sent again"),
            Parameter("Producer-Epoch", "header", "From 0 to 32767; a higher one fences who writes in a lower"),
            Parameter("Producer-Seq", "header", "The number of the request in its epoch, from 0"),
            Parameter("Stream-Txid", "header", "The transaction id of the body's records, from 1, where their writers "
                      "give them"),
            Parameter("Stream-Writer", "header", "The exclusive writer: what PUT of .writer answered"),
            Parameter("Stream-Writer-Seq", "header", "The number of its first record here, from 0 since the opening; "
                      "with it a request may be sent again"),
        ),
        "The record; of the stream's type, or with format=ndjson lines as POST to a topic's records takes them",
        right="write",
    ),
    RouteRow(
        "GET",
        _STREAM,
        "readStream",
        "stream",
        "Read what there is from a position, or follow (long-poll, server-sent events)",
        (
            RouteAnswer(200, "Records: of the stream's type (JSON: an array), NDJSON, events", _READ, "*/*"),
            RouteAnswer(204, "live=long-poll: nothing came in time", _READ[:6]),
            RouteAnswer(304, "If-None-Match has the ETag: nothing is new", _READ),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream", "truncated", "position-diverged", "overloaded"),
        (
            _PATH,
            Parameter("offset", "query", "A position, or id of an event, that an answer gave; -1 (the beginning, the "
                      "default) or now"),
            Parameter("live", "query", "long-poll or sse; then offset has to be given"),
            Parameter("on_truncated", "query", "fail (the default) or advance: from the first record that there is"),
            Parameter("format", "query", "ndjson: records with all that they have, a JSON object each"),
            Parameter("encoding", "query", "With format=ndjson: json (of values, the default), string or base64"),
            Parameter("key", "query", "Only records with this key"),
            Parameter("header.NAME", "query", "Only records with this header; several have to hold together"),
            Parameter("stream_id", "query", "The Stream-Id of an answer before; 409 for another stream of the name"),
            Parameter("cursor", "query", "The Stream-Cursor of the answer before"),
            Parameter("Last-Event-ID", "header", "With live=sse: the id of the last event, before offset; 409 for "
                      "one of another stream of the name"),
            Parameter("If-None-Match", "header", "ETags of answers that the client holds"),
        ),
        right="read",
    ),
    RouteRow(
        "GET",
        f"{_STREAM}/.socket",
        "followStream",
        "stream",
        "Follow a stream by WebSocket; by credits the reader says how much may be sent",
        (
            RouteAnswer(
                101,
                "A WebSocket: the client sends `from`, `encoding`, `credits`, `on_truncated`, `key`, `headers`, and "
                "then `credits`; it gets `records` and the `position` after them, or a `problem` and the close code "
                "4000 + status",
            ),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream", "truncated", "position-diverged", "overloaded", "foreign-origin",
         "upgrade-needed", "quota", "body-timeout"),
        (_PATH,),
        right="read",
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
                ("Content-Type", *_END, "Stream-TTL", "Stream-Expires-At", "Stream-Txid", "Stream-Last-Txid",
                 "Stream-Exclusive", "Stream-Closed", "Stream-Id", "Cache-Control"),
            ),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream"),
        (_PATH,),
        right="read",
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
        right="admin",
    ),
    RouteRow(
        "PUT",
        f"{_STREAM}/.writer",
        "openWriter",
        "stream",
        "Open an exclusive stream for one writer: whoever wrote before is fenced; it is answered on stable storage",
        (
            RouteAnswer(200, "writer (for Stream-Writer), name, next_seq, dlsn, epoch, last_txid",
                        ("Stream-Writer", "Stream-Writer-Next-Seq", *_END), _JSON),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream", "closed", "body-too-large", "overloaded", "too-few-replicas",
         "disk-full", "foreign-origin", "body-timeout"),
        (_PATH,),
        'Nothing, or `{"name": …}`: what those who are fenced are told',
        right="write",
    ),
    RouteRow(
        "DELETE",
        f"{_STREAM}/.writer",
        "releaseWriter",
        "stream",
        "Give an exclusive stream up: nobody writes until it is opened again",
        (RouteAnswer(204, "Nobody writes now"),),
        (*ANY_CALL, "bad-request", "no-such-stream", "closed", "writer-fenced", "too-few-replicas", "disk-full",
         "foreign-origin"),
        (_PATH, Parameter("Stream-Writer", "header", "The writer that is given up", True)),
        right="write",
    ),
    RouteRow(
        "GET",
        f"{_STREAM}/.writer",
        "describeWriter",
        "stream",
        "How far a named writer is: a program that starts anew begins the next epoch",
        (RouteAnswer(200, "producer, epoch (-1: it is not known), next_seq in that epoch; without a producer "
                     "`exclusive`: null, or name and since (the offset of its opening)", (), _JSON),),
        (*ANY_CALL, "bad-request", "no-such-stream"),
        (_PATH, Parameter("producer", "query", "The writer's name, as Producer-Id has it; without: who has it")),
        right="write",
    ),
    RouteRow(
        "GET",
        f"{_STREAM}/.position",
        "findPosition",
        "stream",
        "Find the first record at or above a position; one parameter says which",
        (
            RouteAnswer(
                200,
                "offset, dlsn, epoch; time or txid of the record, or at_end: none is there yet",
                ("Stream-Id",),
                _JSON,
            ),
        ),
        (*ANY_CALL, "bad-request", "no-such-stream", "truncated", "position-diverged"),
        (
            _PATH,
            Parameter("dlsn", "query", "A DLSN, as a receipt or Stream-Next-Offset has it, or its base64; -1, now"),
            Parameter("txid", "query", "The first record with this transaction id or a higher one (duramen.txid)"),
            Parameter("offset", "query", "An offset of the topic, -1 (the beginning) or now (the end)"),
            Parameter("time", "query", "The first record of this time or a later one: ms since 1970, or RFC 3339"),
        ),
        right="read",
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
        right="admin",
    ),
)  # fmt: skip
