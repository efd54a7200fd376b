"""ConsumerGroupDescribe: epochs, members and assignments of consumer groups. Versions 0-1 (v1 the type of a member).

Also where the protocol is off (`consumer_group_heartbeat.py`): the groups are there all the same.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.consumer.commands import (
    ConsumerGroupDescription,
    ConsumerMemberDescription,
    DescribeConsumerGroups,
    TopicPartitions,
)
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.groups import group_error
from duramen.server.handlers.describe_groups import GROUP_OPERATIONS
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.consumer_group_describe import ConsumerGroupDescribeResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

_CLASSIC_MEMBER, _CONSUMER_MEMBER = 0, 1


def handle(request: Request) -> None:
    """Ask each machine about all its groups."""
    names = list(dict.fromkeys(request.body.group_ids))
    described: dict[str, Any] = {}

    def answered(asked: list[str], answer: Any) -> None:
        for number, name in enumerate(asked):
            described[name] = answer[number] if isinstance(answer, list) else answer
        if len(described) == len(names):
            request.reply_in_steps(_response(request, described, names))

    coordinators = request.services.groups
    denied = [name for name in names if name in request.denied] if request.denied else []
    empty = [""] if "" in names and "" not in request.denied else []
    if denied or not names:
        answered(denied, ErrorCode.GROUP_AUTHORIZATION_FAILED)
    if empty:
        answered(empty, ErrorCode.INVALID_GROUP_ID)

    def ask(some: list[str]) -> None:
        for asked in coordinators.sharing(some):
            coordinators.submit(asked[0], DescribeConsumerGroups(tuple(asked)), partial(answered, asked))

    allowed = [name for name in names if name and name not in request.denied] if denied or empty else names
    coordinators.in_turns(request, allowed, ask)


def _response(request: Request, described: dict[str, Any], names: list[str]) -> Steps:
    groups = []
    for number, name in enumerate(names, 1):
        if number % STEP == 0:
            yield
        groups.append((yield from _group(request, name, described[name])))
    return ConsumerGroupDescribeResponse.new(groups=groups)


def _group(request: Request, name: str, answer: Any) -> Steps:
    make = ConsumerGroupDescribeResponse.DescribedGroup
    if isinstance(answer, DuramenError):
        answer = group_error(answer)
    if isinstance(answer, ErrorCode):
        return make(group_id=name, error_code=int(answer))
    if answer is None:
        return make(
            group_id=name,
            error_code=int(ErrorCode.GROUP_ID_NOT_FOUND),
            error_message=f"Group {name} not found, or not a consumer group.",
        )
    group: ConsumerGroupDescription = answer
    members = []
    for number, member in enumerate(group.members, 1):
        if number % STEP == 0:
            yield
        members.append(_member(request, member))
    topics = {topic.topic_name for member in members for topic in member.assignment.topic_partitions}
    topics |= {topic.topic_name for member in members for topic in member.target_assignment.topic_partitions}
    if request.denies(Operation.DESCRIBE, Resource.TOPIC, sorted(topics)):
        message = "The group has described topic(s) that the client is not authorized to describe."
        return make(group_id=name, error_code=int(ErrorCode.TOPIC_AUTHORIZATION_FAILED), error_message=message)
    entry = make(
        group_id=name,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=members,
    )
    if request.body.include_authorized_operations:
        entry.authorized_operations = sum(
            1 << operation for operation in GROUP_OPERATIONS if not request.denies(operation, Resource.GROUP, [name])
        )
    return entry


def _member(request: Request, member: ConsumerMemberDescription) -> Any:
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topics),
        subscribed_topic_regex=member.expression,
        assignment=_assignment(request, member.assigned),
        target_assignment=_assignment(request, member.target),
        member_type=_CLASSIC_MEMBER if member.is_classic else _CONSUMER_MEMBER,
    )


def _assignment(request: Request, partitions: TopicPartitions) -> Any:
    message = ConsumerGroupDescribeResponse
    named = [(topic_id, request.services.image.topic_name(topic_id), indexes) for topic_id, indexes in partitions]
    return message.Assignment(
        topic_partitions=[
            message.TopicPartitions(topic_id=topic_id, topic_name=name, partitions=list(indexes))
            for topic_id, name, indexes in named
            if name is not None
        ]
    )
