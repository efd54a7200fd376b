"""The answer to a change of topics or settings with more elements than are decided at once: all of it is refused.

Kafka's answer to more than 10,000 changes in one request: POLICY_VIOLATION for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duramen.errors import ErrorCode
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.alter_configs import AlterConfigsResponse
from duramen.wire.messages.create_partitions import CreatePartitionsResponse
from duramen.wire.messages.create_topics import CreateTopicsResponse
from duramen.wire.messages.delete_topics import DeleteTopicsResponse
from duramen.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

_ERROR = {
    "error_code": int(ErrorCode.POLICY_VIOLATION),
    "error_message": "too much for one request: send fewer changes at a time",
}


def _topics(request: Request) -> list[Any]:
    return list(request.body.topics)


def _resources(request: Request) -> list[Any]:
    return list(request.body.resources)


def _deleted(request: Request) -> list[Any]:
    return list(request.body.topics if request.version >= 6 else request.body.topic_names)


def _created(topic: Any) -> Any:
    return CreateTopicsResponse.CreatableTopicResult(name=topic.name, configs=[], **_ERROR)


def _deletion(topic: Any) -> Any:
    by_name = isinstance(topic, str)
    result = DeleteTopicsResponse.DeletableTopicResult(name=topic if by_name else topic.name, **_ERROR)
    if not by_name:
        result.topic_id = topic.topic_id
    return result


def _extended(topic: Any) -> Any:
    return CreatePartitionsResponse.CreatePartitionsTopicResult(name=topic.name, **_ERROR)


def _altered(resource: Any) -> Any:
    return AlterConfigsResponse.AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name, **_ERROR
    )


def _altered_bit_by_bit(resource: Any) -> Any:
    return IncrementalAlterConfigsResponse.AlterConfigsResourceResponse(
        resource_type=resource.resource_type, resource_name=resource.resource_name, **_ERROR
    )


_ANSWERS: dict[int, tuple[Callable[[Request], list[Any]], Callable[[Any], Any], Callable[[list[Any]], Any]]] = {
    19: (_topics, _created, lambda entries: CreateTopicsResponse.new(topics=entries)),
    20: (_deleted, _deletion, lambda entries: DeleteTopicsResponse.new(responses=entries)),
    33: (_resources, _altered, lambda entries: AlterConfigsResponse.new(responses=entries)),
    37: (_topics, _extended, lambda entries: CreatePartitionsResponse.new(results=entries)),
    44: (_resources, _altered_bit_by_bit, lambda entries: IncrementalAlterConfigsResponse.new(responses=entries)),
}
"""By API: what a request names, the answer for each, and the response of those."""

ANSWERED = frozenset(_ANSWERS)
"""APIs whose excessive requests are answered; others can only end the connection."""


def refuse(request: Request) -> None:
    """Answer a decoded request of one of these APIs."""
    request.reply_in_steps(_refusal(request))


def _refusal(request: Request) -> Steps:
    named, answer, respond = _ANSWERS[request.row.api.key]
    entries = []
    for number, each in enumerate(named(request), 1):
        if number % STEP == 0:
            yield
        entries.append(answer(each))
    return respond(entries)
