"""OffsetFetch: where groups stand. Versions 1-10.

Null topics ask for everything. v7 require_stable (KIP-447) · v8 several groups (KIP-709) · v9 member epoch · v10 topic
ids. What was never committed has offset -1 and no error.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import NO_GENERATION, CommittedOffset, FetchOffsets
from duramen.model import NO_TOPIC_ID
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.groups import group_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.offset_fetch import OffsetFetchResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

FIRST_BATCHED_VERSION = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10

Positions = dict[tuple[str, int], CommittedOffset | ErrorCode]
"""An error where a transaction that is open may change it."""


def handle(request: Request) -> None:
    """Ask each group's machine; the reply leaves when all have answered."""
    request.in_steps(_questions(request), partial(_ask, request))


class _Question(NamedTuple):
    """What is asked of one group, and by which member (id, epoch). topics: as in the request; positions: the same, None
    for all."""

    group_id: str
    topics: Any
    positions: tuple[tuple[str, int], ...] | None
    member: tuple[str | None, int] = (None, NO_GENERATION)


def _ask(request: Request, wanted: list[_Question]) -> None:
    answers: list[Any] = [None] * len(wanted)
    left = len(wanted)

    def answered(number: int, answer: Any) -> None:
        nonlocal left
        answers[number] = answer
        left -= 1
        if left == 0:
            request.reply_in_steps(_response(request, wanted, answers))

    if not wanted:
        request.reply(OffsetFetchResponse.new(groups=[]))
    numbered = iter(enumerate(wanted))

    def ask(some: list[str]) -> None:
        for number, (group_id, _, positions, member) in islice(numbered, len(some)):
            if group_id in request.denied:
                answered(number, ErrorCode.GROUP_AUTHORIZATION_FAILED)
                continue
            command = FetchOffsets(group_id, positions, request.body.require_stable, *member)
            request.services.groups.submit(group_id, command, partial(answered, number))

    request.services.groups.in_turns(request, [each.group_id for each in wanted], ask)


def _questions(request: Request) -> Steps:
    """What was asked for, but all of a group once: it is asked for with a few bytes, and may be much."""
    body = request.body
    if request.version < FIRST_BATCHED_VERSION:
        positions = None if body.topics is None else (yield from _positions(request, body.topics))
        return [_Question(body.group_id, body.topics, positions)]
    wanted: list[_Question] = []
    in_full: set[str] = set()
    for number, group in enumerate(body.groups, 1):
        if number % STEP == 0:
            yield
        member = (group.member_id, group.member_epoch)
        if group.topics is not None:
            positions = yield from _positions(request, group.topics)
            wanted.append(_Question(group.group_id, group.topics, positions, member))
        elif group.group_id not in in_full:
            in_full.add(group.group_id)
            wanted.append(_Question(group.group_id, None, None, member))
    return wanted


def _positions(request: Request, topics: list[Any]) -> Steps:
    positions: list[tuple[str, int]] = []
    for number, topic in enumerate(topics, 1):
        if number % STEP == 0:
            yield
        name, _, indexes = _named(request, topic)
        if name is not None:
            positions += [(name, index) for index in indexes]
    return tuple(positions)


def _named(request: Request, topic: Any) -> tuple[str | None, bytes, list[int]]:
    """(name, id, partitions) of a requested topic; the name is None when nothing has the id."""
    if request.version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return request.services.image.topic_name(topic.topic_id), topic.topic_id, topic.partition_indexes
    return topic.name, NO_TOPIC_ID, topic.partition_indexes


def _response(request: Request, wanted: list[_Question], answers: list[Any]) -> Steps:
    if request.version < FIRST_BATCHED_VERSION:
        topics, answer = wanted[0].topics, answers[0]
        failed = _failure(answer)
        if failed is not None and request.version >= 2:
            return OffsetFetchResponse.new(topics=[], error_code=int(failed))
        kinds = (OffsetFetchResponse.OffsetFetchResponseTopic, OffsetFetchResponse.OffsetFetchResponsePartition)
        return OffsetFetchResponse.new(topics=(yield from _topics(request, topics, answer, failed, kinds)))
    kinds = (OffsetFetchResponse.OffsetFetchResponseTopics, OffsetFetchResponse.OffsetFetchResponsePartitions)
    groups = []
    for number, ((group_id, topics, _, _), answer) in enumerate(zip(wanted, answers, strict=True), 1):
        if number % STEP == 0:
            yield
        failed = _failure(answer)
        groups.append(
            OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group_id,
                topics=[] if failed is not None else (yield from _topics(request, topics, answer, None, kinds)),
                error_code=int(failed or ErrorCode.NONE),
            )
        )
    return OffsetFetchResponse.new(groups=groups)


def _failure(answer: Any) -> ErrorCode | None:
    if isinstance(answer, DuramenError):
        code = group_error(answer)
        # As Kafka: consumers before 3.9 fail at COORDINATOR_NOT_AVAILABLE here, which a failed append means elsewhere.
        failed_append = code == ErrorCode.COORDINATOR_NOT_AVAILABLE != answer.code
        return ErrorCode.NOT_COORDINATOR if failed_append else code
    return answer if isinstance(answer, ErrorCode) else None


def _topics(request: Request, topics: Any, answer: Any, failed: ErrorCode | None, kinds: tuple[Any, Any]) -> Steps:
    positions: Positions = {} if failed is not None else answer
    make_topic, make_partition = kinds
    by_id = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
    done = 0
    if topics is None:
        grouped: dict[str, list[int]] = {}
        for position in sorted(positions):
            done += 1
            if done % STEP == 0:
                yield
            if _of_present_topic(request, positions, position) is not None:
                grouped.setdefault(position[0], []).append(position[1])
        known = [(topic, request.services.image.topic_id(topic), indexes) for topic, indexes in grouped.items()]
        if by_id:
            known = [row for row in known if row[1] != NO_TOPIC_ID]
        hidden = request.denies(Operation.DESCRIBE, Resource.TOPIC, grouped)
        rows: Iterable[tuple[str | None, bytes, list[int]]] = (row for row in known if row[0] not in hidden)
    else:
        rows = map(partial(_named, request), topics)
    out = []
    for name, topic_id, indexes in rows:
        done += 1
        if done % STEP == 0:
            yield
        code = failed
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif topics is not None and request.denies(Operation.DESCRIBE, Resource.TOPIC, [name]):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partitions = []
        for index in indexes:
            done += 1
            if done % STEP == 0:
                yield
            found = code or _of_present_topic(request, positions, (name or "", index))
            partitions.append(_partition(make_partition, index, found))
        made = make_topic(name=name or "", partitions=partitions)
        if by_id:
            made.topic_id = topic_id
        out.append(made)
    return out


def _of_present_topic(
    request: Request, positions: Positions, position: tuple[str, int]
) -> CommittedOffset | ErrorCode | None:
    """Not an offset that a deleted topic of the same name left: its tombstone may still be under way."""
    committed = positions.get(position)
    if not isinstance(committed, CommittedOffset):
        return committed
    if committed.topic_id in (NO_TOPIC_ID, request.services.image.topic_id(position[0])):
        return committed
    return None


def _partition(make: Any, index: int, committed: CommittedOffset | ErrorCode | None) -> Any:
    if not isinstance(committed, CommittedOffset):
        code = ErrorCode.NONE if committed is None else committed
        return make(partition_index=index, committed_offset=-1, metadata="", error_code=int(code))
    return make(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
