"""Requests to consumers, POST /consumers/{group} and all below it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from duramen.client.aio import AsyncCluster
from duramen.client.protocol.group_offsets import GroupOffset
from duramen.client.protocol.outcomes import may_help
from duramen.errors import DuramenError, KafkaError
from duramen.gateway.access.principal import sender_of
from duramen.gateway.access.request_right import RequestRight
from duramen.gateway.confluent.rest_failures import no_such_partition, rest_problem
from duramen.gateway.confluent.topic_admin import TopicAdmin
from duramen.gateway.confluent.v2_media_types import answer_type, consumed_type, embedded_format
from duramen.gateway.consumers.abandoned_work import unless_left
from duramen.gateway.consumers.confirmed_response import ConfirmedResponse
from duramen.gateway.consumers.consumer_bodies import (
    ConsumerMade,
    ConsumerOffset,
    ConsumerOffsets,
    SubscribedTopics,
    named,
    offsets_of,
    partitions_of,
    subscription_of,
)
from duramen.gateway.consumers.consumer_instance import ConsumerInstance, ConsumerSubscription
from duramen.gateway.consumers.consumer_place import (
    ConsumerKey,
    ConsumerPlace,
    GatewayIdentity,
    consumer_path,
    consumers_of_ended,
    neighbours,
    those_of,
)
from duramen.gateway.consumers.consumer_places import ConsumerPlaces
from duramen.gateway.consumers.consumer_settings import consumer_settings
from duramen.gateway.consumers.held_consumers import HeldConsumers, consumer_exists, no_such_consumer
from duramen.gateway.consumers.request_relay import ABSENT, RELAYED, RequestRelay
from duramen.gateway.edge.clock import GatewayClock
from duramen.gateway.edge.metrics import GatewayMetrics
from duramen.gateway.edge.problem import ProblemError, bad_request
from duramen.gateway.edge.request_body import RequestBodies
from duramen.gateway.routes.route import Handler
from duramen.model import MOST_ID_CHARACTERS, TopicPartition

_LARGEST: Final = (1 << 63) - 1

CLOSE_S: Final = 1.0
"""How long a gateway that ends takes to say so; what it could not say is found out by others."""

ConsumerCall = Callable[[Request, ConsumerInstance], Awaitable[Any]]
"""What answers a request to a consumer: a body, or None where there is nothing to say."""


class ConsumerRequests:
    """Answers them. wait_max_s: of a read; answer_max_bytes: keys and values of one answer."""

    def __init__(
        self,
        cluster: AsyncCluster,
        held: HeldConsumers,
        places: ConsumerPlaces,
        relay: RequestRelay,
        here: GatewayIdentity,
        bodies: RequestBodies,
        wait_max_s: float,
        answer_max_bytes: int,
        clock: GatewayClock,
        metrics: GatewayMetrics,
        stopping: asyncio.Event,
    ) -> None:
        self._cluster = cluster
        self._admin = TopicAdmin(cluster)
        self._held = held
        self._places = places
        self._relay = relay
        self._here = here
        self._bodies = bodies
        self._wait_max_s = wait_max_s
        self._answer_max_bytes = answer_max_bytes
        self._clock = clock
        self._metrics = metrics
        metrics.consumers.set_function(lambda: len(held))
        self._stopping = stopping

    def handlers(self) -> dict[str, Handler]:
        """By operation, as the table of routes names them."""
        return {
            "createConsumer": _answered(self._create),
            "deleteConsumer": self._handler(self._delete),
            "commitConsumerOffsets": self._handler(self._commit),
            "getConsumerOffsets": self._handler(self._committed),
            "subscribeConsumer": self._handler(self._subscribe),
            "getConsumerSubscription": self._handler(self._subscription),
            "unsubscribeConsumer": self._handler(self._unsubscribe),
            "assignConsumer": self._handler(self._assign),
            "getConsumerAssignments": self._handler(self._assignments),
            "seekConsumer": self._handler(self._seek),
            "seekConsumerToBeginning": self._handler(self._seek_to_beginning),
            "seekConsumerToEnd": self._handler(self._seek_to_end),
            "readConsumerRecords": _answered(self._records),
        }

    # ---- which there are -----------------------------------------------------------------------------------------

    @property
    def are_held(self) -> bool:
        """Whether there are any."""
        return len(self._held) > 0

    async def tend(self, *, looks_around: bool) -> None:
        """End those that nobody used for too long, and those that are said to be gone; say of those that have ended
        that they are. What they answered last is not committed: nobody said that it was worked on.

        looks_around: whether other gateways are still there, too.
        """
        with suppress(DuramenError):  # the cluster is away; the next time
            unused = self._held.unused
            places = await self._places.all()
            idle = self._held.idle(self._clock.monotonic_s())
            # Of a node that does not know the topic yet nothing is taken to be there.
            lost = {key: each for key, each in unused.items() if places and not _is_at(places.get(str(key)), each)}
            await self._end(idle | lost)
            held = {str(key): each.id for key, each in self._held.all.items()}
            gone = {key: id for key, id in those_of(places, self._here.id).items() if held.get(key) != id}
            await self._places.remove(gone | consumers_of_ended(places, self._here))
            if looks_around:
                await self._relay.forget_unreachable(neighbours(places, self._here))

    async def close(self) -> None:
        """End all of them, in the same way."""
        ended = self._held.all
        with suppress(DuramenError, TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._end(ended)
                await self._places.remove({str(key): each.id for key, each in ended.items()})

    async def _end(self, consumers: Mapping[ConsumerKey, ConsumerInstance]) -> None:
        for key, consumer in consumers.items():
            self._held.remove(key, consumer)
        await asyncio.gather(*(consumer.end() for consumer in consumers.values()))

    # ---- one consumer --------------------------------------------------------------------------------------------

    def _handler(self, call: ConsumerCall) -> Handler:
        async def answer(request: Request) -> Any:
            found = await self._located(request)
            if isinstance(found, ConsumerPlace):
                return await self._relay.relayed(request, _key(request), found)
            try:
                return await call(request, found)
            finally:
                self._release(found)

        return _answered(answer)

    async def _located(self, request: Request) -> ConsumerInstance | ConsumerPlace:
        """The consumer, with its turn taken for this request; or where it is. Problem 403 where another one made it,
        404."""
        key = _key(request)
        meant = request.headers.get(RELAYED)
        consumer = self._held.find(key)
        if consumer is not None and meant in (None, self._here.id):
            _check_owner(request, consumer)
            consumer.ends_wanted += request.method == "DELETE"
            try:
                await consumer.turn.acquire()
            finally:
                consumer.ends_wanted -= request.method == "DELETE"
            try:
                if await self._is_here(key, consumer):
                    return consumer
            except BaseException:
                self._release(consumer)
                raise
            self._release(consumer)
        place = await self._places.find(key) if meant is None else None
        if place is None:
            raise no_such_consumer(None if meant is None else ABSENT)
        if place.gateway == self._here.id:
            await self._places.remove({str(key): place.consumer})  # it has ended, and that could not be said
            raise no_such_consumer()
        return place

    async def _is_here(self, key: ConsumerKey, consumer: ConsumerInstance) -> bool:
        """Whether the cluster has it that the consumer is here; said again where another gateway, which could not reach
        this one, said that it is gone. It ends where there is another one of its name by now."""
        if consumer.is_ended:
            return False
        if _is_at(await self._places.find(key), consumer):
            return True
        if await self._places.claim(key, ConsumerPlace(consumer.id, *self._here), None):
            return True
        await self._end({key: consumer})
        return False

    def _release(self, consumer: ConsumerInstance) -> None:
        consumer.last_used_s = self._clock.monotonic_s()
        consumer.turn.release()

    async def _create(self, request: Request) -> ConsumerMade:
        group = request.path_params["group_name"]
        answer_type(request.headers.get("accept"))  # in front of what it makes
        async with self._body(request) as body:
            settings = consumer_settings(body)
        if len(group) > MOST_ID_CHARACTERS:
            raise bad_request("group_name", f"it has more than {MOST_ID_CHARACTERS} characters")
        name = settings.name or f"rest-consumer-{uuid.uuid4()}"
        key = ConsumerKey(group, name)
        self._held.check_room()
        there = await self._places.find(key)
        if there is not None and await self._is_there(request, key, there):
            raise consumer_exists()
        self._held.check_room()
        consumer = ConsumerInstance(
            self._cluster, group, str(uuid.uuid4()), sender_of(request.scope).name, settings, self._clock.monotonic_s()
        )
        async with consumer.turn:  # who asks for it by now waits until it is known to be here
            self._held.add(key, consumer)
            try:
                if not await self._places.claim(key, ConsumerPlace(consumer.id, *self._here), there):
                    raise consumer_exists()
            except BaseException:
                self._held.remove(key, consumer)
                consumer.is_ended = True
                raise
        return ConsumerMade(name, f"{request.url.scheme}://{request.headers['host']}{consumer_path(key)}")

    async def _is_there(self, request: Request, key: ConsumerKey, place: ConsumerPlace) -> bool:
        if place.gateway == self._here.id:
            return _is_at(place, self._held.find(key))
        return await self._relay.is_there(request, key, place)

    async def _delete(self, request: Request, consumer: ConsumerInstance) -> None:
        try:
            await consumer.commit_answered()
        except KafkaError as error:
            if may_help(error):
                raise
            # A commit that is refused for good keeps no consumer alive: what was answered last is answered again.
        key = _key(request)
        await self._end({key: consumer})
        await self._places.remove({str(key): consumer.id})

    # ---- what it reads -------------------------------------------------------------------------------------------

    async def _subscribe(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            wanted = subscription_of(body)
        _check_readable(request, set(wanted.topics or ()))
        await consumer.subscribe(ConsumerSubscription(tuple(wanted.topics or ()), wanted.topic_pattern))

    async def _subscription(self, request: Request, consumer: ConsumerInstance) -> SubscribedTopics:
        wanted = consumer.subscription
        if wanted is None:
            return SubscribedTopics([])
        topics = set(wanted.topics) or {tp.topic for tp in consumer.positions.partitions}
        return SubscribedTopics(sorted(filter(sender_of(request.scope).may_read, topics)))

    async def _unsubscribe(self, _request: Request, consumer: ConsumerInstance) -> None:
        await consumer.unsubscribe()

    async def _assign(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            wanted = partitions_of(body)
        _check_readable(request, {tp.topic for tp in wanted})
        await self._check_there(wanted)
        await consumer.assign(wanted)

    async def _assignments(self, request: Request, consumer: ConsumerInstance) -> Any:
        sender = sender_of(request.scope)
        return named(tp for tp in consumer.positions.partitions if sender.may_read(tp.topic))

    async def _seek(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            wanted = offsets_of(body)
        for tp, each in wanted.items():
            if each.offset < 0:
                raise bad_request("offsets", f"the offset in {tp} is negative")
        consumer.positions.seek({tp: each.offset for tp, each in wanted.items()})

    async def _seek_to_beginning(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            await consumer.seek_to_end(partitions_of(body), beginning=True)

    async def _seek_to_end(self, request: Request, consumer: ConsumerInstance) -> None:
        async with self._body(request) as body:
            await consumer.seek_to_end(partitions_of(body), beginning=False)

    async def _check_there(self, wanted: list[TopicPartition]) -> None:
        for topic in {tp.topic: None for tp in wanted}:
            found = (await self._admin.topic(topic)).partitions
            for tp in wanted:
                if tp.topic == topic and tp.partition not in found:
                    raise no_such_partition(tp)

    # ---- offsets -------------------------------------------------------------------------------------------------

    async def _commit(self, request: Request, consumer: ConsumerInstance) -> None:
        """Commit what was read, or the records whose offsets are given: the group goes on after each of them."""
        async with self._body(request) as body:
            if not body.strip():
                await consumer.commit_all()
                return
            wanted = offsets_of(body)
            await self._check_there(list(wanted))
            await consumer.commit(
                {tp: GroupOffset(each.offset + 1, metadata=each.metadata or "") for tp, each in wanted.items()}
            )

    async def _committed(self, request: Request, consumer: ConsumerInstance) -> ConsumerOffsets:
        """Of the partitions in the body, or of those that are read, where there is none."""
        async with self._body(request) as body:
            wanted = partitions_of(body) if body.strip() else sorted(consumer.positions.partitions)
        await self._check_there(wanted)
        found = await consumer.committed(wanted) if wanted else {}
        return ConsumerOffsets(
            [
                ConsumerOffset(tp.topic, tp.partition, found[tp].offset, found[tp].metadata)
                for tp in wanted
                if tp in found
            ]
        )

    # ---- records -------------------------------------------------------------------------------------------------

    async def _records(self, request: Request) -> Response:
        if request.method != "GET":
            raise ProblemError(405, "no-such-method", "records are read by GET", {"allow": "GET"})
        consumer = await self._located(request)
        if isinstance(consumer, ConsumerPlace):
            return await self._relay.relayed(request, _key(request), consumer)
        try:
            return await self._records_of(request, consumer)
        except BaseException:
            self._release(consumer)
            raise

    async def _records_of(self, request: Request, consumer: ConsumerInstance) -> Response:
        media_type = consumed_type(request.headers.get("accept"), consumer.settings.embedded)
        wait_s = min(_milliseconds(request, consumer.settings.wait_ms) / 1000, self._wait_max_s)
        max_bytes = min(_most_bytes(request), self._answer_max_bytes)
        _check_all_readable(request, consumer, {tp.topic for tp in consumer.positions.partitions})
        found = await unless_left(request, consumer.read(wait_s, max_bytes, self._stopping))
        _check_all_readable(request, consumer, {each.topic for each in found.records})

        def ended(is_sent: bool) -> None:
            if is_sent:
                consumer.sent(found)
                self._metrics.records_read.inc(len(found.records))
            self._release(consumer)

        return ConfirmedResponse(request, msgspec.json.encode(found.records), media_type, ended)

    @asynccontextmanager
    async def _body(self, request: Request) -> AsyncIterator[bytes]:
        """The body. Problem 415 where it is of another type than those of the API."""
        async with self._bodies.whole(request) as body:
            if body:
                embedded_format(request.headers.get("content-type"))
            yield body


def _key(request: Request) -> ConsumerKey:
    return ConsumerKey(request.path_params["group_name"], request.path_params["instance"])


def _is_at(place: ConsumerPlace | None, consumer: ConsumerInstance | None) -> bool:
    return place is not None and consumer is not None and place.consumer == consumer.id


def _check_readable(request: Request, topics: set[str]) -> None:
    """Problem 403."""
    for topic in sorted(topics):
        RequestRight("read", topic).check(sender_of(request.scope))


def _check_all_readable(request: Request, consumer: ConsumerInstance, topics: set[str]) -> None:
    """The same of what is read; topics that a pattern has found are not named."""
    sender = sender_of(request.scope)
    if consumer.subscription is None or consumer.subscription.pattern is None:
        _check_readable(request, topics)
    elif not all(map(sender.may_read, topics)):
        raise ProblemError(403, "not-allowed", f"the topic_pattern matches topics that {sender.name} may not read")


def _check_owner(request: Request, consumer: ConsumerInstance) -> None:
    """Problem 403."""
    principal = sender_of(request.scope)
    if consumer.owner != principal.name:
        raise ProblemError(403, "not-allowed", f"{principal.name} did not make this consumer.")


def _answered(call: Callable[[Request], Awaitable[Any]]) -> Handler:
    """What answers requests by a call: its response, its body in the type that they accept, or 204."""

    async def answer(request: Request) -> Response:
        try:
            found = await call(request)
        except DuramenError as error:
            raise rest_problem(error) from None
        if found is None:
            return Response(status_code=204)
        if isinstance(found, Response):
            return found
        return Response(msgspec.json.encode(found), media_type=answer_type(request.headers.get("accept")))

    return answer


def _milliseconds(request: Request, default: int) -> int:
    return _number(request, "timeout", default)


def _most_bytes(request: Request) -> int:
    given = _number(request, "max_bytes", -1)
    return _LARGEST if given < 0 else given


def _number(request: Request, name: str, default: int) -> int:
    """A number of the query; -1 is for the default."""
    given = request.query_params.getlist(name)
    if not given or given == ["-1"]:
        return default
    text = given[0]
    if len(given) > 1 or not text.isascii() or not text.isdecimal() or len(text) > 18:
        raise bad_request(name, "it is a whole number, given once")
    return int(text)
