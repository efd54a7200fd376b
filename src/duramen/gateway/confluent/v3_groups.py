"""Version 3: consumer groups, their members, and how far they are behind."""

from __future__ import annotations

from starlette.requests import Request

from duramen.client.protocol.group_descriptions import DescribedMember
from duramen.gateway.access.principal import sender_of
from duramen.gateway.confluent.group_lags import GroupLags
from duramen.gateway.confluent.group_resources import (
    AssignmentList,
    AssignmentResource,
    ConsumerList,
    ConsumerResource,
    GroupList,
    GroupResource,
    LagList,
    LagResource,
    LagSummary,
    assignment_resource,
    consumer_resource,
    group_resource,
    lag_resource,
    lag_summary,
    readers_of,
)
from duramen.gateway.confluent.rest_failures import no_such_partition
from duramen.gateway.confluent.rest_links import RestLinks
from duramen.gateway.confluent.v3_answers import V3Answers, path_number
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.routes.route import Handler
from duramen.model import TopicPartition


class V3Groups:
    """Answers what is asked of groups."""

    def __init__(self, answers: V3Answers) -> None:
        self._answers = answers
        self._groups = GroupLags(answers.cluster)

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        handler = self._answers.handler
        return {
            "listGroupsV3": handler(self._all),
            "getGroupV3": handler(self._group),
            "listConsumersV3": handler(self._consumers),
            "getConsumerV3": handler(self._consumer),
            "listAssignmentsV3": handler(self._assignments),
            "getAssignmentV3": handler(self._assignment),
            "listLagsV3": handler(self._lags),
            "getLagV3": handler(self._lag),
            "summariseLagsV3": handler(self._summary),
        }

    async def _all(self, request: Request, links: RestLinks) -> GroupList:
        sender = sender_of(request.scope)
        groups = [each for each in await self._groups.all() if sender.may_read(each.group.group_id)]
        found = [group_resource(links, *each) for each in groups]
        return GroupList("KafkaConsumerGroupList", links.listed("consumer-groups"), found)

    async def _group(self, request: Request, links: RestLinks) -> GroupResource:
        return group_resource(links, *await self._groups.group(_name(request)))

    async def _consumers(self, request: Request, links: RestLinks) -> ConsumerList:
        group = _name(request)
        found = [consumer_resource(links, group, each) for each in await self._members(group)]
        return ConsumerList("KafkaConsumerList", links.listed("consumer-groups", group, "consumers"), found)

    async def _consumer(self, request: Request, links: RestLinks) -> ConsumerResource:
        return consumer_resource(links, _name(request), await self._member(request))

    async def _assignments(self, request: Request, links: RestLinks) -> AssignmentList:
        group, member = _name(request), await self._member(request)
        found = [assignment_resource(links, group, member.member_id, tp) for tp in sorted(member.partitions)]
        path = ("consumer-groups", group, "consumers", member.member_id, "assignments")
        return AssignmentList("KafkaConsumerAssignmentList", links.listed(*path), found)

    async def _assignment(self, request: Request, links: RestLinks) -> AssignmentResource:
        member, wanted = await self._member(request), _partition(request)
        if wanted not in member.partitions:
            raise no_such_partition()
        return assignment_resource(links, _name(request), member.member_id, wanted)

    async def _lags(self, request: Request, links: RestLinks) -> LagList:
        group = _name(request)
        found = await self._found_lags(group, links)
        return LagList("KafkaConsumerLagList", links.listed("consumer-groups", group, "lags"), found)

    async def _lag(self, request: Request, links: RestLinks) -> LagResource:
        wanted = _partition(request)
        for each in await self._found_lags(_name(request), links):
            if TopicPartition(each.topic_name, each.partition_id) == wanted:
                return each
        raise no_such_partition()

    async def _summary(self, request: Request, links: RestLinks) -> LagSummary:
        group = _name(request)
        lags = await self._found_lags(group, links)
        if not lags:
            raise ProblemError(404, "no-such-group", f"Consumer Group {group} has committed no offsets.")
        return lag_summary(links, group, lags)

    async def _found_lags(self, group: str, links: RestLinks) -> list[LagResource]:
        readers = readers_of(await self._members(group))
        return [lag_resource(links, group, each, readers) for each in await self._groups.lags(group)]

    async def _members(self, group: str) -> tuple[DescribedMember, ...]:
        return (await self._groups.group(group)).group.members

    async def _member(self, request: Request) -> DescribedMember:
        group, wanted = _name(request), request.path_params["consumer_id"]
        for member in await self._members(group):
            if member.member_id == wanted:
                return member
        raise ProblemError(404, "no-such-consumer", f"Consumer {wanted} cannot be found.")


def _name(request: Request) -> str:
    return str(request.path_params["consumer_group_id"])


def _partition(request: Request) -> TopicPartition:
    return TopicPartition(request.path_params["topic_name"], path_number(request, "partition_id"))
