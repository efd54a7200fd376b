"""What the cluster's refusals are over HTTP."""

from __future__ import annotations

from duramen.client.protocol.positions import BelowStartError
from duramen.errors import DeadlineError, DuramenError, ErrorCode, OutcomeUnknownError, TopicReplacedError
from duramen.gateway.edge.problem import SOON, ProblemError

_BY_CODE: dict[ErrorCode, tuple[int, str, str]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: (404, "no-such-stream", "it was deleted"),
    ErrorCode.UNKNOWN_TOPIC_ID: (404, "no-such-stream", "it was deleted"),
    ErrorCode.INVALID_TOPIC_EXCEPTION: (400, "bad-request", "path: the cluster takes no topic of this name"),
    ErrorCode.INVALID_CONFIG: (400, "bad-request", "defaults: the cluster does not take these settings of a stream"),
    ErrorCode.INVALID_RECORD: (400, "bad-request", "the topic does not take the record"),
    ErrorCode.MESSAGE_TOO_LARGE: (413, "record-too-large", "the topic's max.message.bytes says how large it may be"),
    ErrorCode.RECORD_LIST_TOO_LARGE: (413, "record-too-large", "the topic's max.message.bytes says how large"),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (403, "not-allowed", "the cluster does not allow it"),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (403, "not-allowed", "the cluster does not allow it"),
    ErrorCode.POLICY_VIOLATION: (403, "not-allowed", "the cluster does not allow it"),
    ErrorCode.PRODUCER_FENCED: (403, "writer-fenced", "the stream takes records of the writer that opened it last"),
    ErrorCode.TXID_OUT_OF_ORDER: (409, "txid-out-of-order", "the stream's transaction ids never step back"),
    ErrorCode.INVALID_TIMESTAMP: (409, "txid-out-of-order", "the stream's transaction ids never step back"),
    ErrorCode.OFFSET_OUT_OF_RANGE: (409, "position-diverged", "it is no position of this stream, or no longer one"),
    ErrorCode.UNKNOWN_LEADER_EPOCH: (409, "position-diverged", "it is of a leader that this stream never had"),
    ErrorCode.NOT_ENOUGH_REPLICAS: (503, "too-few-replicas", "too few copies are in sync; try again"),
    ErrorCode.KAFKA_STORAGE_ERROR: (503, "disk-full", "the leader's disk takes nothing; try again when it does"),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: (429, "quota", "too much of it at a time; try again"),
}


def problem_of(error: DuramenError) -> ProblemError:
    """The problem that stands for an error of the client."""
    if isinstance(error, OutcomeUnknownError):
        return ProblemError(
            504,
            "outcome-unknown",
            f"no answer came from the cluster, and it may be stored: {error}. Read the end of the stream before you "
            "send it again; with Producer-Id, -Epoch and -Seq it may be sent again as it is",
        )
    if isinstance(error, BelowStartError):
        return ProblemError(410, "truncated", str(error), {"stream-next-offset": str(error.first.dlsn)})
    if isinstance(error, TopicReplacedError):
        return ProblemError(404, "no-such-stream", "it was deleted and another one has its name")
    last = error.last if isinstance(error, DeadlineError) and error.last is not None else error
    known = _BY_CODE.get(last.code)
    if known is not None:
        status, code, detail = known
        return ProblemError(
            status,
            code,
            f"{detail}: {last}",
            SOON if status in (429, 503) else None,
            kafka_error=last.code.name,
            retriable=status in (429, 503),
        )
    if last.retriable or isinstance(error, DeadlineError):
        return ProblemError(503, "node-away", str(error), SOON, kafka_error=last.code.name, retriable=True)
    return ProblemError(502, "refused", f"the cluster refused it: {last}", kafka_error=last.code.name)
