"""OffsetDelete: forget a group's positions of partitions it does not consume any more (KIP-496). Version 0."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import DeleteOffsets
from duramen.server.authorizer import Operation, Resource
from duramen.server.coordinators import group_error
from duramen.server.request import STEP, Steps
from duramen.wire.messages.offset_delete import OffsetDeleteResponse

if TYPE_CHECKING:
    from duramen.server.request import Request


def handle(request: Request) -> None:
    """Delete offsets; GROUP_SUBSCRIBED_TO_TOPIC for topics a member still reads."""
    body = request.body
    response = OffsetDeleteResponse.new(topics=[])
    if body.group_id in request.denied:
        response.error_code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        request.reply(response)
        return
    request.in_steps(_checked(request, response), partial(_delete, request, response))


Pending = list[tuple[Any, tuple[str, int]]]
"""(entry of the response, position) of what is to be deleted."""


def _checked(request: Request, response: Any) -> Steps:
    pending: Pending = []
    done = 0
    for topic in request.body.topics:
        done += 1
        if done % STEP == 0:
            yield
        entries: list[Any] = []
        response.topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=entries))
        known = request.broker.image.topic(topic.name)
        denied = request.broker.denies(request, Operation.READ, Resource.TOPIC, [topic.name])
        for wanted in topic.partitions:
            done += 1
            if done % STEP == 0:
                yield
            entry = OffsetDeleteResponse.OffsetDeleteResponsePartition(partition_index=wanted.partition_index)
            entries.append(entry)
            if denied:
                entry.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif known is None or not 0 <= wanted.partition_index < len(known.partitions):
                entry.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                pending.append((entry, (topic.name, wanted.partition_index)))

    return pending


def _delete(request: Request, response: Any, pending: Pending) -> None:
    group_id = request.body.group_id

    def answered(answer: Any) -> None:
        if isinstance(answer, DuramenError):
            response.error_code = int(group_error(answer))
            response.topics = []
        else:
            for number, (entry, _) in enumerate(pending):
                entry.error_code = int(answer[number])
        request.reply(response)

    command = DeleteOffsets(group_id, tuple(position for _, position in pending))
    request.broker.coordinators.submit(group_id, command, answered)
