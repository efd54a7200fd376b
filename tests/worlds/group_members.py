"""Members of our own client before a group machine: their requests are encoded, decided, and answered, or are lost."""

from __future__ import annotations

from typing import Any

from tests.worlds.consumer_harness import ConsumerWorld

from duramen.client.protocol.group_member import (
    CONSUMER_GROUP_HEARTBEAT,
    GroupMembership,
    MembershipChange,
    MembershipEvent,
)
from duramen.errors import ErrorCode, KafkaError, OutcomeUnknownError
from duramen.machines.group.consumer.commands import ConsumerAnswer, ConsumerHeartbeat
from duramen.model import TopicPartition
from duramen.wire.frame import encode_request, parse_request_header
from duramen.wire.messages import API

HEARTBEAT = API[CONSUMER_GROUP_HEARTBEAT]


def sent(request: Any, version: int = 1) -> Any:
    """What arrives of a request."""
    frame = b"".join(bytes(part) for part in encode_request(HEARTBEAT, version, 1, "test", request))  # type: ignore[arg-type]
    body = memoryview(frame)[4:]
    return HEARTBEAT.request.decode(body, version, parse_request_header(body).body_position)


def response(answer: ConsumerAnswer) -> Any:
    message = HEARTBEAT.response
    assignment = None
    if answer.assignment is not None:
        topics = [message.TopicPartitions(topic_id=key, partitions=list(each)) for key, each in answer.assignment]
        assignment = message.Assignment(topic_partitions=topics)
    return message.new(
        member_id=answer.member_id,
        member_epoch=answer.epoch,
        heartbeat_interval_ms=answer.heartbeat_interval_ms,
        assignment=assignment,
    )


def refusal(code: ErrorCode, message: str | None = None) -> Any:
    return HEARTBEAT.response.new(error_code=int(code), error_message=message)


def decided(world: ConsumerWorld, request: Any, version: int = 1) -> ConsumerAnswer | KafkaError:
    """What the coordinator answers to a request that has arrived."""
    names, owned = request.subscribed_topic_names, request.topic_partitions
    answer: ConsumerAnswer | KafkaError = world.coordinator.ask(
        ConsumerHeartbeat(
            request.group_id,
            request.member_id,
            request.member_epoch,
            request.instance_id,
            None,
            request.rebalance_timeout_ms,
            None if names is None else tuple(names),
            request.subscribed_topic_regex,
            request.server_assignor,
            None if owned is None else tuple((bytes(each.topic_id), tuple(each.partitions)) for each in owned),
            new_id="" if request.member_id else "given",
            brings_id=version > 0,
        )
    )
    return answer


class OwnMember:
    """A member and its owner, who acknowledges at once unless `holds`."""

    def __init__(
        self, world: ConsumerWorld, name: str, *topics: str, pattern: str | None = None, **options: Any
    ) -> None:
        self.world = world
        self.membership = GroupMembership("g", name, **options)
        self.topics = topics
        self.pattern = pattern
        self.holds = False
        self.held: list[MembershipEvent] = []
        self.told: list[tuple[str, list[int]]] = []
        """What its owner was told: what happened, and the partitions' numbers."""
        self.requests: list[Any] = []
        self.version = 1

    @property
    def now(self) -> float:
        return self.world.clock.wall_ms() / 1000

    def subscribe(self) -> OwnMember:
        self.membership.subscribe(self.topics or None, self.pattern, self.now)
        return self

    @property
    def numbers(self) -> list[int]:
        return sorted(tp.partition for tp in self.membership.assignment)

    @property
    def reads(self) -> frozenset[TopicPartition]:
        """What its owner may be reading: also what was lost and is not acknowledged."""
        lost = [event.partitions for event in self.held if event.change is MembershipChange.LOST]
        return self.membership.assignment.union(*lost)

    def turn(self, *, loses: str = "") -> bool:
        """Send the heartbeat that is due, if one is. loses: "request", or "answer"."""
        request = self.membership.heartbeat(self.now)
        if request is None:
            self.settle()
            return False
        self.requests.append(request)
        arrived = sent(request, self.version)
        if loses == "request":
            self.membership.failed(OutcomeUnknownError("lost"), self.now)
        else:
            answer = decided(self.world, arrived, self.version)
            if loses == "answer":
                self.membership.failed(OutcomeUnknownError("lost"), self.now)
            elif isinstance(answer, KafkaError):
                self.membership.answered(refusal(answer.code, answer.message), self.now)
            else:
                self.membership.answered(response(answer), self.now)
        self.settle()
        return True

    def settle(self) -> None:
        """Find names, and tell the owner."""
        self.membership.name(
            {topic_id: self.world.topics.name_of(topic_id) or "" for topic_id in self.membership.unnamed}
        )
        while events := self.membership.events():
            for event in events:
                self.told.append((event.change.value, sorted(tp.partition for tp in event.partitions)))
                if event.change is not MembershipChange.ASSIGNED:
                    self.held.append(event)
            if not self.holds:
                self.release()

    def release(self) -> None:
        """Acknowledge what was held back."""
        held, self.held = self.held, []
        for event in held:
            self.membership.acknowledge(event, self.now)


def settle(*members: OwnMember, most: int = 30) -> None:
    """Time passes, and members beat, until nothing moves any more."""
    quiet = 0
    for _ in range(most):
        before = [(each.membership.epoch, each.numbers) for each in members]
        members[0].world.clock.advance(5_000)
        for each in members:
            each.turn()
        quiet = quiet + 1 if before == [(each.membership.epoch, each.numbers) for each in members] else 0
        if quiet == 3:
            return
    raise AssertionError("the group does not settle")
