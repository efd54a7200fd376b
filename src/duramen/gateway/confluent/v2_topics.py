"""Version 2: topics and their partitions, brokers, and records written to topics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.list_offsets import EARLIEST, LATEST
from duramen.client.protocol.metadata import PartitionMetadata
from duramen.errors import DuramenError
from duramen.gateway.access.principal import sender_of
from duramen.gateway.confluent.rest_failures import no_such_partition, rest_problem
from duramen.gateway.confluent.setting_admin import TOPIC, SettingAdmin, SettingOwner
from duramen.gateway.confluent.topic_admin import TopicAdmin
from duramen.gateway.confluent.v2_bodies import (
    FINAL,
    RETRIABLE,
    BrokersV2,
    OffsetsV2,
    PartitionV2,
    ProducedV2,
    RecordOffsetV2,
    TopicV2,
    partition_v2,
    records_v2,
)
from duramen.gateway.confluent.v2_media_types import answer_type, embedded_format
from duramen.gateway.confluent.v3_answers import path_number
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.problem import ProblemError
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.gateway.writes.topic_writes import PartitionReceipt, TopicWrites
from duramen.model import TopicPartition


class V2Topics:
    """Answers requests of version 2."""

    def __init__(
        self,
        cluster: AsyncCluster,
        admin: TopicAdmin,
        writes: TopicWrites,
        bodies: RequestBodies,
        clock: GatewayClock,
    ) -> None:
        self._cluster = cluster
        self._admin = admin
        self._settings = SettingAdmin(cluster)
        self._writes = writes
        self._bodies = bodies
        self._clock = clock

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {
            "listTopicsV2": _handler(self._topics),
            "getTopicV2": _handler(self._topic),
            "listPartitionsV2": _handler(self._partitions),
            "getPartitionV2": _handler(self._partition),
            "getOffsetsV2": _handler(self._offsets),
            "listBrokersV2": _handler(self._brokers),
            "produceToTopicV2": _handler(self._produce),
            "produceToPartitionV2": _handler(self._produce),
        }

    async def _topics(self, request: Request) -> list[str]:
        found = await self._admin.readable_topics(sender_of(request.scope))
        return [name for name, topic in found.items() if not topic.is_internal]

    async def _topic(self, request: Request) -> TopicV2:
        topic = await self._admin.topic(request.path_params["topic_name"])
        ((_, settings),) = await self._settings.described([SettingOwner(TOPIC, topic.name)])
        configs = {each.name: each.value for each in settings if each.value is not None}
        return TopicV2(topic.name, configs, [partition_v2(each) for _, each in sorted(topic.partitions.items())])

    async def _partitions(self, request: Request) -> list[PartitionV2]:
        topic = await self._admin.topic(request.path_params["topic_name"])
        return [partition_v2(each) for _, each in sorted(topic.partitions.items())]

    async def _partition(self, request: Request) -> PartitionV2:
        return partition_v2(await self._found(request))

    async def _offsets(self, request: Request) -> OffsetsV2:
        tp = TopicPartition(request.path_params["topic_name"], (await self._found(request)).partition)
        first, last = [(await self._cluster.list_offsets({tp: which}))[tp].offset for which in (EARLIEST, LATEST)]
        return OffsetsV2(first, last)

    async def _brokers(self, _request: Request) -> BrokersV2:
        return BrokersV2(sorted((await self._cluster.metadata([])).nodes))

    async def _found(self, request: Request) -> PartitionMetadata:
        topic = await self._admin.topic(request.path_params["topic_name"])
        partition = topic.partitions.get(path_number(request, "partition_id"))
        if partition is None:
            raise no_such_partition()
        return partition

    async def _produce(self, request: Request) -> ProducedV2:
        """Write the records of a body; the status is 200 whatever became of each."""
        embedded = embedded_format(request.headers.get("content-type"))
        named = path_number(request, "partition_id") if "partition_id" in request.path_params else None
        async with self._bodies.whole(request) as body:
            topic = await self._writes.topic(request.path_params["topic_name"])
            if named is not None and named not in topic.metadata.partitions:
                raise no_such_partition()
            wanted = records_v2(body, embedded, named, topic.now_ms(self._clock))
            written = await self._writes.write(topic, wanted)
        return ProducedV2([_offset(each) for each in written])


def _handler(call: Callable[[Request], Awaitable[Any]]) -> Handler:
    """What answers requests by a call, in the type that they accept."""

    async def answer(request: Request) -> Response:
        wanted = answer_type(request.headers.get("accept"))
        try:
            found = await call(request)
        except DuramenError as error:
            raise rest_problem(error) from None
        return Response(msgspec.json.encode(found), media_type=wanted)

    return answer


def _offset(outcome: PartitionReceipt | ProblemError) -> RecordOffsetV2:
    if isinstance(outcome, PartitionReceipt):
        return RecordOffsetV2(outcome.partition, outcome.receipt.offset)
    return RecordOffsetV2(error_code=RETRIABLE if outcome.retriable else FINAL, error=outcome.detail)
