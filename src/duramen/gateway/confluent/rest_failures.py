"""What the cluster refuses to do to topics, settings and groups, as problems. Pure."""

from __future__ import annotations

from typing import Final

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.gateway.edge.kafka_problems import problem_of
from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition

_WRONG: Final = frozenset(
    (
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_PARTITIONS,
        ErrorCode.INVALID_REPLICATION_FACTOR,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.SECURITY_DISABLED,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.INVALID_REGULAR_EXPRESSION,
    )
)
_GONE: Final = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))


def rest_problem(error: DuramenError) -> ProblemError:
    """The problem that stands for an error of the client."""
    if not isinstance(error, KafkaError):
        return problem_of(error)
    name = error.code.name
    if error.code == ErrorCode.TOPIC_ALREADY_EXISTS:
        return ProblemError(400, "topic-exists", str(error), kafka_error=name)
    if error.code in _GONE:
        return no_such_partition()
    if error.code == ErrorCode.GROUP_ID_NOT_FOUND:
        return ProblemError(404, "no-such-group", str(error), kafka_error=name)
    if error.code in _WRONG:
        return ProblemError(400, "bad-request", str(error), kafka_error=name)
    return problem_of(error)


def no_such_partition(tp: TopicPartition | None = None) -> ProblemError:
    """404, in Kafka's words; tp: which."""
    which = "" if tp is None else f": no partition {tp.partition} of topic {tp.topic}"
    return ProblemError(404, "no-such-partition", f"This server does not host this topic-partition{which}.")


def no_such_topic_here(topic: str) -> ProblemError:
    """The same for a topic, which is named."""
    return ProblemError(404, "no-such-topic", f"This server does not host this topic-partition: no topic {topic}.")
