"""Topics made, changed and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.metadata import TopicMetadata
from duramen.client.protocol.routes import CONTROLLER
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.access.principal import Principal
from duramen.gateway.confluent.rest_failures import no_such_topic_here
from duramen.gateway.edge.single_answers import single_answer
from duramen.gateway.streams.stream_topics import CREATE_TOPICS, DELETE_TOPICS
from duramen.wire.messages import API

CREATE_PARTITIONS: Final = 37

_TIMEOUT_MS: Final = 15_000
_DEFAULT: Final = -1
_KNOWN_S: Final = 5.0
_PAUSE_S: Final = 0.05
_INT32: Final = msgspec.Meta(ge=1, lt=1 << 31)
_INT16: Final = msgspec.Meta(ge=1, lt=1 << 15)

_NONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.INVALID_TOPIC_EXCEPTION)


class WantedSetting(msgspec.Struct, forbid_unknown_fields=True):
    """A setting of a new topic."""

    name: str
    value: str | None = None


class WantedReplicas(msgspec.Struct, forbid_unknown_fields=True):
    """The nodes of a partition, the preferred leader first."""

    partition_id: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    broker_ids: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]]


class WantedTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to be made. What is left out is the cluster's default; replicas_assignments instead of both counts."""

    topic_name: str
    partitions_count: Annotated[int, _INT32] | None = None
    replication_factor: Annotated[int, _INT16] | None = None
    replicas_assignments: list[WantedReplicas] | None = None
    configs: list[WantedSetting] | None = None
    validate_only: bool = False


class WantedPartitions(msgspec.Struct, forbid_unknown_fields=True):
    """How many partitions a topic is to have."""

    partitions_count: Annotated[int, _INT32]


class TopicAdmin:
    """Changes the topics of a cluster. All raise KafkaError for what is refused."""

    def __init__(self, cluster: AsyncCluster) -> None:
        self._cluster = cluster

    async def create(self, wanted: WantedTopic) -> tuple[int, int]:
        """Make the topic; its partitions and replication factor."""
        message = API[CREATE_TOPICS].request
        topic = message.CreatableTopic(
            name=wanted.topic_name,
            num_partitions=wanted.partitions_count or _DEFAULT,
            replication_factor=wanted.replication_factor or _DEFAULT,
            assignments=[
                message.CreatableReplicaAssignment(partition_index=each.partition_id, broker_ids=each.broker_ids)
                for each in wanted.replicas_assignments or ()
            ],
            configs=[message.CreatableTopicConfig(name=each.name, value=each.value) for each in wanted.configs or ()],
        )
        request = message.new(topics=[topic], timeout_ms=_TIMEOUT_MS, validate_only=wanted.validate_only)
        answer = await single_answer(self._cluster, CONTROLLER, CREATE_TOPICS, request, "topics")
        if not wanted.validate_only:
            await self._known(wanted.topic_name)
        return answer.num_partitions, answer.replication_factor

    async def delete(self, topic: str) -> None:
        """Delete the topic with all that is in it."""
        message = API[DELETE_TOPICS].request
        state = message.DeleteTopicState(name=topic)
        request = message.new(topics=[state], topic_names=[topic], timeout_ms=_TIMEOUT_MS)
        await single_answer(self._cluster, CONTROLLER, DELETE_TOPICS, request, "responses")

    async def set_partitions(self, topic: str, count: int) -> None:
        """Give the topic more partitions."""
        message = API[CREATE_PARTITIONS].request
        wanted = message.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = message.new(topics=[wanted], timeout_ms=_TIMEOUT_MS)
        await single_answer(self._cluster, CONTROLLER, CREATE_PARTITIONS, request, "results")
        await self._known(topic, count)

    async def topics(self) -> Mapping[str, TopicMetadata]:
        """All topics, by name."""
        found = (await self._cluster.metadata()).topics
        return dict(sorted((name, topic) for name, topic in found.items() if not topic.error))

    async def readable_topics(self, principal: Principal) -> Mapping[str, TopicMetadata]:
        """Those that somebody may read, by name."""
        return {name: topic for name, topic in (await self.topics()).items() if principal.may_read(name)}

    async def topic(self, topic: str) -> TopicMetadata:
        """One topic. Problem 404."""
        found = (await self._cluster.metadata([topic])).topics.get(topic)
        if found is None or found.error in _NONE:
            raise no_such_topic_here(topic)
        if found.error:
            raise KafkaError(found.error, f"{topic}: {found.error.name}")
        return found

    async def _known(self, topic: str, partitions: int = 1) -> None:
        """Wait until a node that is asked next knows what the controller has just done, for a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + _KNOWN_S
        while loop.time() < until:
            found = (await self._cluster.metadata([topic])).topics.get(topic)
            if found is not None and not found.error and len(found.partitions) >= partitions:
                return
            await asyncio.sleep(_PAUSE_S)
