"""Version 3: partitions whose replicas are on the move, and access lists, of which there are none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Literal

import msgspec
from starlette.requests import Request

from duramen.client.protocol.metadata import error_code
from duramen.client.protocol.routes import ANY, CONTROLLER
from duramen.errors import KafkaError
from duramen.gateway.confluent.rest_links import ListMetadata, Related, ResourceMetadata, RestLinks
from duramen.gateway.confluent.topic_admin import TopicAdmin
from duramen.gateway.confluent.v3_answers import V3Answers, path_number
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.routes.route import Handler
from duramen.wire.messages import API

DESCRIBE_ACLS: Final = 29
LIST_REASSIGNMENTS: Final = 46

_TIMEOUT_MS: Final = 15_000
_ANY: Final = 1
"""Of DescribeAcls: each kind, pattern, operation and permission."""


class ReassignmentResource(msgspec.Struct):
    """A partition that gets other replicas."""

    kind: Literal["KafkaReassignment"]
    metadata: ResourceMetadata
    cluster_id: str
    topic_name: str
    partition_id: int
    adding_replicas: list[int]
    removing_replicas: list[int]
    replicas: Related


class ReassignmentList(msgspec.Struct):
    """All of them."""

    kind: Literal["KafkaReassignmentList"]
    metadata: ListMetadata
    data: list[ReassignmentResource]


class V3Moves:
    """Answers what is asked of reassignments and access lists."""

    def __init__(self, answers: V3Answers, topics: TopicAdmin) -> None:
        self._answers = answers
        self._topics = topics

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        handler = self._answers.handler
        return {
            "listReassignmentsV3": handler(self._all),
            "listTopicReassignmentsV3": handler(self._of_topic),
            "getReassignmentV3": handler(self._of_partition),
            "listAccessV3": handler(self._access),
            "allowAccessV3": handler(self._access),
            "removeAccessV3": handler(self._access),
        }

    async def _all(self, _request: Request, links: RestLinks) -> ReassignmentList:
        found = [each for topic in await self._moving() for each in _resources(links, topic)]
        path = ("topics", "-", "partitions", "-", "reassignment")
        return ReassignmentList("KafkaReassignmentList", links.listed(*path), found)

    async def _of_topic(self, request: Request, links: RestLinks) -> ReassignmentList:
        name = (await self._topics.topic(request.path_params["topic_name"])).name
        path = ("topics", name, "partitions", "-", "reassignment")
        return ReassignmentList("KafkaReassignmentList", links.listed(*path), await self._of(name, links))

    async def _of_partition(self, request: Request, links: RestLinks) -> ReassignmentResource:
        name = (await self._topics.topic(request.path_params["topic_name"])).name
        for each in await self._of(name, links):
            if each.partition_id == path_number(request, "partition_id"):
                return each
        raise ProblemError(404, "no-such-move", "The replicas of the partition are not being changed.")

    async def _of(self, name: str, links: RestLinks) -> list[ReassignmentResource]:
        return [each for topic in await self._moving() if topic.name == name for each in _resources(links, topic)]

    async def _moving(self) -> Iterable[Any]:
        request = API[LIST_REASSIGNMENTS].request.new(timeout_ms=_TIMEOUT_MS, topics=None)
        response = await self._answers.cluster.call(
            CONTROLLER, LIST_REASSIGNMENTS, request, code_of=lambda found: int(found.error_code)
        )
        _check(response)
        return sorted(response.topics, key=lambda topic: str(topic.name))

    async def _access(self, _request: Request, _links: RestLinks) -> None:
        """What the cluster says to those who ask for its access lists; where it has some, they are not served here."""
        request = API[DESCRIBE_ACLS].request.new(
            resource_type_filter=_ANY,
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
        )
        _check(await self._answers.cluster.call(ANY, DESCRIBE_ACLS, request))
        raise ProblemError(501, "not-served", "access lists are not served by this gateway")


def _check(response: Any) -> None:
    if code := error_code(response.error_code):
        raise KafkaError(code, response.error_message or code.name)


def _resources(links: RestLinks, topic: Any) -> list[ReassignmentResource]:
    found = []
    for each in sorted(topic.partitions, key=lambda moving: int(moving.partition_index)):
        path = ("topics", topic.name, "partitions", each.partition_index)
        name = links.metadata((), ("topic", topic.name), ("partition", each.partition_index)).resource_name
        found.append(
            ReassignmentResource(
                "KafkaReassignment",
                ResourceMetadata(links.url(*path, "reassignment"), f"{name}/reassignment"),
                links.cluster_id,
                topic.name,
                each.partition_index,
                list(each.adding_replicas),
                list(each.removing_replicas),
                links.related(*path, "replicas"),
            )
        )
    return found
