"""Every code of a problem, with its status and its meaning."""

from __future__ import annotations

ERRORS: dict[str, tuple[int, str]] = {
    "bad-request": (400, "A header, a parameter or the body is wrong; `detail` names it first."),
    "topic-exists": (400, "There is a topic of this name."),
    "login-needed": (401, "A bearer token is needed that the gateway knows (gateway.tokens.file)."),
    "not-allowed": (403, "The token gives no right to it, or the cluster does not allow it."),
    "foreign-origin": (
        403,
        "A page of an origin that is not listed wants to change something, or to open a WebSocket.",
    ),
    "no-such-stream": (404, "There is no such stream, or it has expired."),
    "no-such-topic": (404, "There is no such topic."),
    "no-such-namespace": (404, "There is no such namespace: no record of it, and no stream below it."),
    "no-such-partition": (404, "The topic has no such partition, or there is no such topic."),
    "no-such-cluster": (404, "The gateway is for another cluster."),
    "no-such-broker": (404, "The cluster has no such node, or the partition no copy there."),
    "no-such-group": (404, "There is no such consumer group, or it has committed nothing."),
    "no-such-consumer": (404, "The group has no such member."),
    "no-such-instance": (404, "There is no such consumer: it was never made, was deleted, or nobody used it for long."),
    "no-such-setting": (404, "There is no setting of this name."),
    "no-such-move": (404, "The partition gets no other replicas."),
    "not-found": (404, "There is nothing at this path."),
    "no-such-method": (405, "The path does not know the method."),
    "not-acceptable": (406, "The answer has none of the types that Accept takes."),
    "another-format": (406, "The consumer was made for another format than Accept asks for."),
    "body-timeout": (408, "The body did not arrive in time."),
    "writer-fenced": (
        403,
        "Another writer has the stream, as `detail` says; or the name a newer epoch: Producer-Epoch.",
    ),
    "txid-out-of-order": (409, "A transaction id is below the last one, Stream-Last-Txid (duramen.txid)."),
    "exists": (409, "The stream is there with another type, expiry or closing."),
    "consumer-exists": (409, "The group has a consumer of this name."),
    "consumer-state": (409, "The consumer is not in a state for it, as `message` says."),
    "not-empty": (409, "Streams or other namespaces lie in the namespace; recursive=true deletes them, too."),
    "closed": (409, "The stream is closed: nothing is appended after it; Stream-Closed, Stream-Next-Offset."),
    "sequence": (
        409,
        "Producer-Seq or Stream-Writer-Seq leaves a gap (…-Expected-Seq, …-Next-Seq), or Stream-Seq is no higher one.",
    ),
    "end-is-elsewhere": (409, "The stream does not end at Stream-Expected-Offset; Stream-Next-Offset is where."),
    "position-diverged": (409, "The position is not of this stream's history."),
    "truncated": (410, "The records there are gone; Stream-Next-Offset is the first position that there is."),
    "body-too-large": (413, "The body is longer than gateway.body.max.bytes, which Stream-Body-Max-Bytes says."),
    "record-too-large": (413, "The records are larger than the topic takes."),
    "unsupported-type": (415, "The body is of a type that is not taken here."),
    "key-schema-needed": (422, "The key is of a type that needs a schema, and there is no registry."),
    "value-schema-needed": (422, "The value is of a type that needs a schema, and there is no registry."),
    "host-not-listed": (421, "The gateway is not addressed by a name of its own (gateway.hosts)."),
    "wrong-setting": (422, "A setting of the consumer is unknown, or has a value that may not be."),
    "upgrade-needed": (426, "The path is for a WebSocket."),
    "quota": (429, "Too much at a time."),
    "bug": (500, "A fault of the gateway; its log has the place."),
    "unfit-record": (500, "The next record is not JSON, and the consumer reads JSON; `message` says how to pass it."),
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
ANY_ACCESS = ("login-needed", "not-allowed")
ANY_CALL = ("node-away", "refused", "not-allowed")
