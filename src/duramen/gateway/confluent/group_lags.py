"""Groups of a cluster, what their members read, and how far they are behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.protocol import group_descriptions as groups
from duramen.client.protocol import list_offsets as listing
from duramen.client.protocol.group_descriptions import DescribedGroup
from duramen.client.protocol.list_offsets import LATEST, LIST_OFFSETS, ListedOffset
from duramen.client.protocol.metadata import NO_LEADER, error_code
from duramen.client.protocol.routes import CoordinatorKey, Route
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.problem import ProblemError
from duramen.model import TopicPartition
from duramen.wire.messages import API

_AT_ONCE: Final = 500
_TIMEOUT_MS: Final = 15_000
_CONSUMER: Final = "consumer"
_NO_GROUP: Final = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID, ErrorCode.UNSUPPORTED_VERSION)


class CoordinatedGroup(NamedTuple):
    """A group, and the node that coordinates it."""

    node: int
    group: DescribedGroup


class PartitionLag(NamedTuple):
    """Where a group is in a partition, and the partition's end."""

    partition: TopicPartition
    committed: int
    end: int

    @property
    def lag(self) -> int:
        """Offsets in between; 0 where what was committed lies after the end."""
        return max(0, self.end - self.committed)


class GroupLags:
    """Asks coordinators. All raise KafkaError for what is refused."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster

    async def all(self) -> list[CoordinatedGroup]:
        """Every group, by name, each from its coordinator."""
        nodes = sorted((await self._cluster.metadata([])).nodes)
        found = await asyncio.gather(*(self._of_node(node) for node in nodes))
        return sorted((each for some in found for each in some), key=lambda each: each.group.group_id)

    async def group(self, group: str) -> CoordinatedGroup:
        """One group. Problem 404."""
        route = CoordinatorKey(group)
        try:
            (found,) = await self._described(route, groups.CONSUMER_GROUP_DESCRIBE, [group])
        except KafkaError as error:
            if error.code not in _NO_GROUP:
                raise
            (found,) = await self._described(route, groups.DESCRIBE_GROUPS, [group])
        return CoordinatedGroup(await self._cluster.coordinator(route), found)

    async def lags(self, group: str) -> list[PartitionLag]:
        """Where the group is in each partition that it has committed an offset of and that is there, by name."""
        response = await self._cluster.call(
            CoordinatorKey(group),
            groups.OFFSET_FETCH,
            groups.commits_request(group),
            code_of=groups.commits_code,
            highest=groups.LAST_WITH_TOPIC_NAMES,
        )
        if code := error_code(groups.commits_code(response)):
            raise KafkaError(code, f"group {group}: {code.name}")
        committed = groups.committed(response)
        ends = await self._ends(committed)
        return [PartitionLag(tp, committed[tp], ends[tp]) for tp in sorted(ends)]

    async def _of_node(self, node: int) -> list[CoordinatedGroup]:
        answer = await self._cluster.call(
            node, groups.LIST_GROUPS, API[groups.LIST_GROUPS].request.new(), code_of=lambda found: int(found.error_code)
        )
        if code := error_code(answer.error_code):
            raise KafkaError(code, f"node {node} does not list its groups: {code.name}")
        by_key: dict[int, list[str]] = {}
        for each in answer.groups:
            is_consumer = (each.group_type or "").lower() == _CONSUMER
            key = groups.CONSUMER_GROUP_DESCRIBE if is_consumer else groups.DESCRIBE_GROUPS
            by_key.setdefault(key, []).append(each.group_id)
        found: list[CoordinatedGroup] = []
        for key, names in by_key.items():
            for start in range(0, len(names), _AT_ONCE):
                some = await self._described(node, key, names[start : start + _AT_ONCE], strict=False)
                found += [CoordinatedGroup(node, each) for each in some]
        return found

    async def _described(
        self, route: Route, key: int, names: Sequence[str], *, strict: bool = True
    ) -> list[DescribedGroup]:
        """Those that are there. strict: KafkaError for a group that is not described."""
        request, parsed = _ASKED[key]
        response = await self._cluster.call(
            route, key, request(names), code_of=lambda found: _first_code(found) if strict else 0
        )
        found = parsed(response)
        if strict:
            for each in found:
                if each.error:
                    raise KafkaError(each.error, f"group {each.group_id}: {each.message or each.error.name}")
                if each.state == groups.DEAD:
                    raise no_such_group(each.group_id)
        return [each for each in found if not each.error and each.state != groups.DEAD]

    async def _ends(self, wanted: Iterable[TopicPartition]) -> Mapping[TopicPartition, int]:
        """The ends of those partitions that are there and have a leader."""
        wanted = list(wanted)
        topics = (await self._cluster.metadata({tp.topic: None for tp in wanted})).topics if wanted else {}
        there = [
            tp
            for tp in wanted
            if (topic := topics.get(tp.topic)) is not None
            and (partition := topic.partitions.get(tp.partition)) is not None
            and partition.leader != NO_LEADER
        ]
        answers = await self._cluster.call_leaders(
            LIST_OFFSETS,
            there,
            lambda tps: listing.request(dict.fromkeys(tps, LATEST), 0, _TIMEOUT_MS),
            lambda response, _: listing.parsed(response),
        )
        return {tp: each.offset for tp, each in answers.items() if isinstance(each, ListedOffset)}


_ASKED: Final[Mapping[int, tuple[Callable[[Iterable[str]], Any], Callable[[Any], list[DescribedGroup]]]]] = {
    groups.CONSUMER_GROUP_DESCRIBE: (groups.consumer_request, groups.consumer_groups),
    groups.DESCRIBE_GROUPS: (groups.classic_request, groups.classic_groups),
}


def no_such_group(group: str) -> ProblemError:
    """404."""
    return ProblemError(404, "no-such-group", f"Consumer Group {group} cannot be found.")


def _first_code(response: Any) -> int:
    return int(response.groups[0].error_code) if response.groups else 0
