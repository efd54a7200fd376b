"""Streams as topics of the cluster: which there are, how they are made, kept alive and deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from duramen.client.aio import AsyncCluster
from duramen.client.aio.async_namespaces import AsyncNamespaces
from duramen.client.protocol import described_settings
from duramen.client.protocol.described_settings import DESCRIBE_CONFIGS, TXID
from duramen.client.protocol.metadata import TopicMetadata
from duramen.client.protocol.routes import ANY, CONTROLLER
from duramen.client.protocol.stream_defaults import BATCH_OVERHEAD, STREAM_DEFAULTS
from duramen.errors import ErrorCode, KafkaError
from duramen.gateway.edge.media_type import DEFAULT
from duramen.gateway.edge.problem import SOON, ProblemError
from duramen.gateway.edge.single_answers import single_answer
from duramen.gateway.streams.stream_expiry import StreamExpiry
from duramen.model import TopicId, TopicPartition
from duramen.wire.messages import API

CREATE_TOPICS: Final = 19
DELETE_TOPICS: Final = 20
INCREMENTAL_ALTER_CONFIGS: Final = 44

CONTENT_TYPE: Final = "duramen.stream.content.type"
TTL: Final = "duramen.stream.ttl.ms"
EXPIRES_AT: Final = "duramen.stream.expires.at.ms"
EXCLUSIVE: Final = "duramen.writer.exclusive"
CLEANUP: Final = "cleanup.policy"
MAX_BATCH: Final = "max.message.bytes"

NO_TXIDS: Final = "none"

FRESH_S: Final = 1.0
"""How long what is known of a stream is used without asking again."""

_ASKED: Final = (CONTENT_TYPE, TTL, EXPIRES_AT, TXID, EXCLUSIVE, CLEANUP)
_A_TOPIC: Final = 2
_SET: Final = 0
_KNOWN_MAX: Final = 10_000
_DESCRIBED_AT_ONCE: Final = 500
_DELETED_AT_ONCE: Final = 50
_ATTEMPTS: Final = 100
_PAUSE_S: Final = 0.1
_GONE: Final = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID)


class StreamSettings(NamedTuple):
    """What a stream is made with. txid, exclusive: as of `StreamInfo`; None: whatever its namespace says.

    topic_settings: others, before those of its namespace.
    """

    content_type: str
    expiry: StreamExpiry
    txid: str | None = None
    exclusive: bool | None = None
    topic_settings: Mapping[str, str] = MappingProxyType({})


class StreamInfo(NamedTuple):
    """One stream: its topic and settings. leader_epoch: of the partition, when it was asked for.

    txid: whose transaction ids its timestamps are (`application`, `assigned`), or `none`; exclusive: whether it takes
    records of one writer at a time, who opens it; is_compacted: of old records only the last of each key are kept;
    number: of the partition, where it is one of several of a topic; replicas: how many it has.
    """

    topic: str
    topic_id: TopicId
    content_type: str
    expiry: StreamExpiry
    leader_epoch: int
    txid: str = NO_TXIDS
    exclusive: bool = False
    is_compacted: bool = False
    number: int = 0
    replicas: int = 1

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.number)


class StreamTopics:
    """The streams of a cluster, and what its namespaces say of new ones. now_ms: the time since 1970; monotonic_s: any
    clock that only goes forward."""

    def __init__(
        self,
        cluster: AsyncCluster,
        namespaces: AsyncNamespaces,
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float],
        body_max_bytes: int,
    ) -> None:
        self._cluster = cluster
        self._namespaces = namespaces
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._batch_max_bytes = body_max_bytes + BATCH_OVERHEAD
        self._known: dict[str, tuple[float, StreamInfo]] = {}
        self._asked: dict[str, asyncio.Task[StreamInfo | None]] = {}
        """Questions that are under way."""
        self._partitions: dict[str, tuple[float, list[StreamInfo]]] = {}

    async def find(self, topic: str, *, fresh: bool = False) -> StreamInfo | None:
        """The stream, if there is one that has not expired. fresh: ask the cluster, whatever is known."""
        found = None
        if not fresh:
            found = self._fresh(topic) or await self._asked_already(topic)
        if found is None or found.expiry.expired(self._now_ms()):  # it may have been made or renewed elsewhere since
            asked = self._asked[topic] = asyncio.ensure_future(self._ask(topic))
            asked.add_done_callback(lambda task: self._answered(topic, task))
            found = await asyncio.shield(asked)
        return None if found is None or found.expiry.expired(self._now_ms()) else found

    async def get(self, topic: str) -> StreamInfo:
        """The stream; Problem 404."""
        found = await self.find(topic)
        if found is None:
            raise no_such_stream(topic)
        return found

    async def create(self, topic: str, wanted: StreamSettings) -> tuple[StreamInfo, bool]:
        """The stream of this name, and whether it was made now. One that has expired is deleted first.

        Its namespaces give it the settings that are not asked for.
        """
        for _ in range(_ATTEMPTS):
            found = await self._ask(topic)
            if found is not None and not found.expiry.expired(self._now_ms()):
                return found, False
            if found is not None:
                await self.delete(found)
            expiry = wanted.expiry
            settings = {
                **self._basis(),
                **await self._namespaces.defaults_for(topic.replace(".", "/")),
                **wanted.topic_settings,
                CONTENT_TYPE: wanted.content_type,
                TTL: str(-1 if expiry.ttl_ms is None else expiry.ttl_ms),
                EXPIRES_AT: str(-1 if expiry.at_ms is None else expiry.at_ms),
            }
            if wanted.exclusive is not None:
                settings[EXCLUSIVE] = "true" if wanted.exclusive else "false"
            if wanted.txid is not None:
                settings[TXID] = wanted.txid
            try:
                made = await self._create(topic, settings)
            except KafkaError as error:
                if error.code != ErrorCode.INVALID_CONFIG or not wanted.topic_settings:
                    raise
                raise ProblemError(
                    400, "bad-request", f"Stream-Settings: {error.message or error}", kafka_error=error.code.name
                ) from None
            if made:
                info = await self._ask(topic)
                if info is not None:
                    return info, True
            await asyncio.sleep(_PAUSE_S)  # another gateway has just made or deleted it, or not all nodes know
        raise ProblemError(
            503, "node-away", "the cluster does not know yet what it was asked for", SOON, retriable=True
        )

    def _basis(self) -> dict[str, str]:
        """Settings of a stream unless a namespace says otherwise."""
        return {**STREAM_DEFAULTS, MAX_BATCH: str(max(self._batch_max_bytes, int(STREAM_DEFAULTS[MAX_BATCH])))}

    async def check_settings(self, namespace: str, settings: Mapping[str, str]) -> None:
        """KafkaError INVALID_CONFIG unless the cluster takes these settings for a new stream of a namespace."""
        await self._create(f"{namespace.replace('/', '.')}.-", {**self._basis(), **settings}, validate_only=True)

    async def delete(self, info: StreamInfo) -> bool:
        """Whether it was there to be deleted."""
        return await self._delete(info.topic, info.topic_id)

    async def _delete(self, topic: str, topic_id: TopicId) -> bool:
        self._known.pop(topic, None)
        message = API[DELETE_TOPICS].request
        state = message.DeleteTopicState(name=None, topic_id=topic_id)
        request = message.new(topics=[state], topic_names=[], timeout_ms=15_000)
        answer = await single_answer(self._cluster, CONTROLLER, DELETE_TOPICS, request, "responses", _GONE)
        return not answer.error_code

    async def delete_all(self, there: Sequence[TopicMetadata]) -> None:
        """Delete these streams, as far as they are there."""
        for start in range(0, len(there), _DELETED_AT_ONCE):
            some = there[start : start + _DELETED_AT_ONCE]
            await asyncio.gather(*(self._delete(each.name, each.topic_id) for each in some))

    async def touch(self, info: StreamInfo) -> None:
        """After a read or write: moves the end of a stream with a TTL on, where that is worth storing."""
        renewed = info.expiry.renewed(self._now_ms())
        if renewed is None:
            return
        moment, _ = self._known.get(info.topic, (self._monotonic_s(), info))
        self._known[info.topic] = (moment, info._replace(expiry=renewed))  # others need not store it, too
        message = API[INCREMENTAL_ALTER_CONFIGS].request
        config = message.AlterableConfig(name=EXPIRES_AT, config_operation=_SET, value=str(renewed.at_ms))
        resource = message.AlterConfigsResource(resource_type=_A_TOPIC, resource_name=info.topic, configs=[config])
        request = message.new(resources=[resource], validate_only=False)
        try:
            await single_answer(self._cluster, CONTROLLER, INCREMENTAL_ALTER_CONFIGS, request, "responses", _GONE)
        except BaseException:
            self._known.pop(info.topic, None)
            raise

    def forget(self, topic: str) -> None:
        """Ask again the next time."""
        self._known.pop(topic, None)

    def _fresh(self, topic: str) -> StreamInfo | None:
        moment, info = self._known.get(topic, (0.0, None))
        return info if self._monotonic_s() - moment < FRESH_S else None

    async def _asked_already(self, topic: str) -> StreamInfo | None:
        """What another request asks just now: hundreds come at once when what is known has become too old."""
        asked = self._asked.get(topic)
        return None if asked is None else await asyncio.shield(asked)

    def _answered(self, topic: str, task: asyncio.Task[StreamInfo | None]) -> None:
        if self._asked.get(topic) is task:
            del self._asked[topic]
        if not task.cancelled():
            task.exception()  # whoever still waits for it gets it, too

    async def _ask(self, topic: str) -> StreamInfo | None:
        metadata, settings = await asyncio.gather(self._cluster.metadata([topic]), self._settings([topic]))
        found = metadata.topics.get(topic)
        self._known.pop(topic, None)
        if found is None or found.error in _GONE or found.is_internal or topic not in settings:
            return None
        if found.error:
            raise KafkaError(found.error, f"{topic}: {found.error.name}")
        if not _is_stream(found):
            raise ProblemError(
                400, "bad-request", f"path: topic {topic} has {len(found.partitions)} partitions; a stream has one"
            )
        info = _info(found, settings[topic])
        if len(self._known) >= _KNOWN_MAX:
            self._known.clear()
        self._known[topic] = (self._monotonic_s(), info)
        return info

    async def partitions(self, topic: str) -> list[StreamInfo]:
        """The partitions of any topic, each as a stream, as they were a moment ago at the earliest; none where there is
        no such topic, or it has expired. KafkaError."""
        moment, known = self._partitions.get(topic, (0.0, []))
        if not known or self._monotonic_s() - moment >= FRESH_S:
            known = await self._ask_partitions(topic)
            if len(self._partitions) >= _KNOWN_MAX:
                self._partitions.clear()
            self._partitions[topic] = (self._monotonic_s(), known)
        if len(known) == 1 and not known[0].expiry.expired(self._now_ms()):
            await self.touch(known[0])
        return [info for info in known if not info.expiry.expired(self._now_ms())]

    async def _ask_partitions(self, topic: str) -> list[StreamInfo]:
        metadata, settings = await asyncio.gather(self._cluster.metadata([topic]), self._settings([topic]))
        found = metadata.topics.get(topic)
        gone = (*_GONE, ErrorCode.INVALID_TOPIC_EXCEPTION)
        if found is None or found.error in gone or found.is_internal or topic not in settings:
            return []
        if found.error:
            raise KafkaError(found.error, f"{topic}: {found.error.name}")
        first = _info(found, settings[topic])
        return [
            first._replace(number=number, leader_epoch=partition.leader_epoch)
            for number, partition in sorted(found.partitions.items())
        ]

    async def all(self) -> list[StreamInfo]:
        """All topics that can be streams, asked now, with those that have expired."""
        return await self.described(await self.there())

    async def there(self) -> list[TopicMetadata]:
        """All topics that can be streams, asked now, by name."""
        topics = (await self._cluster.metadata()).topics
        return [topics[name] for name in sorted(topics) if _is_stream(topics[name])]

    async def described(self, there: Sequence[TopicMetadata]) -> list[StreamInfo]:
        """These topics as streams, asked now, without those that are gone; what has expired is there until it goes."""
        found: list[StreamInfo] = []
        for start in range(0, len(there), _DESCRIBED_AT_ONCE):
            some = there[start : start + _DESCRIBED_AT_ONCE]
            settings = await self._settings([each.name for each in some])
            found += [_info(each, settings[each.name]) for each in some if each.name in settings]
        return found

    async def _settings(self, topics: Sequence[str]) -> dict[str, dict[str, str]]:
        """The settings of streams that these topics have; without those that are not there."""
        request = described_settings.request(topics, _ASKED)
        return described_settings.parsed(await self._cluster.call(ANY, DESCRIBE_CONFIGS, request))

    async def _create(self, topic: str, settings: Mapping[str, str], *, validate_only: bool = False) -> bool:
        """Whether it was not there."""
        message = API[CREATE_TOPICS].request
        configs = [message.CreatableTopicConfig(name=name, value=value) for name, value in settings.items()]
        wanted = message.CreatableTopic(name=topic, num_partitions=1, replication_factor=-1, configs=configs)
        request = message.new(topics=[wanted], timeout_ms=15_000, validate_only=validate_only)
        allowed = (ErrorCode.TOPIC_ALREADY_EXISTS,)
        return not (
            await single_answer(self._cluster, CONTROLLER, CREATE_TOPICS, request, "topics", allowed)
        ).error_code


def _is_stream(topic: TopicMetadata) -> bool:
    return not topic.error and not topic.is_internal and len(topic.partitions) == 1


def _info(topic: TopicMetadata, settings: Mapping[str, str]) -> StreamInfo:
    ttl, at = int(settings.get(TTL, "-1")), int(settings.get(EXPIRES_AT, "-1"))
    return StreamInfo(
        topic.name,
        topic.topic_id,
        settings.get(CONTENT_TYPE) or DEFAULT,
        StreamExpiry(None if ttl < 0 else ttl, None if at < 0 else at),
        next(iter(topic.partitions.values())).leader_epoch,
        settings.get(TXID, NO_TXIDS),
        settings.get(EXCLUSIVE) == "true",
        "compact" in settings.get(CLEANUP, ""),
        replicas=len(next(iter(topic.partitions.values())).replicas),
    )


def no_such_stream(topic: str) -> ProblemError:
    return ProblemError(404, "no-such-stream", f"there is no stream {topic.replace('.', '/')}; PUT makes it")
