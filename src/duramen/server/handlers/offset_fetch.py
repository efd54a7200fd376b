"""OffsetFetch: where groups stand. Versions 1-10.

Null topics ask for everything. v7 require_stable (KIP-447) · v8 several groups (KIP-709) · v9 member epoch · v10 topic
ids. What was never committed has offset -1 and no error.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import CommittedOffset, FetchOffsets
from duramen.model import NO_TOPIC_ID
from duramen.server.authorizer import Operation, Resource
from duramen.server.coordinators import group_error
from duramen.wire.messages.offset_fetch import OffsetFetchResponse

if TYPE_CHECKING:
    from duramen.server.request import Request

FIRST_BATCHED_VERSION = 8
FIRST_VERSION_WITH_TOPIC_IDS = 10

Positions = dict[tuple[str, int], CommittedOffset]


def handle(request: Request) -> None:
    """Ask each group's machine; the reply leaves when all have answered."""
    body = request.body
    if request.version >= FIRST_BATCHED_VERSION:
        wanted = _distinct(body.groups)
    else:
        wanted = [(body.group_id, body.topics)]
    answers: list[Any] = [None] * len(wanted)
    left = len(wanted)

    def answered(number: int, answer: Any) -> None:
        nonlocal left
        answers[number] = answer
        left -= 1
        if left == 0:
            _reply(request, wanted, answers)

    if not wanted:
        request.reply(OffsetFetchResponse.new(groups=[]))
    numbered = iter(enumerate(wanted))

    def ask(some: list[str]) -> None:
        for number, (group_id, topics) in islice(numbered, len(some)):
            if group_id in request.denied:
                answered(number, ErrorCode.GROUP_AUTHORIZATION_FAILED)
                continue
            command = FetchOffsets(group_id, _positions(request, topics))
            request.broker.coordinators.submit(group_id, command, partial(answered, number))

    request.broker.coordinators.in_turns(request, [group_id for group_id, _ in wanted], ask)


def _positions(request: Request, topics: Any) -> tuple[tuple[str, int], ...] | None:
    """Those that are asked for; None: all."""
    if topics is None:
        return None
    named = (_named(request, topic) for topic in topics)
    return tuple((name, index) for name, _, indexes in named if name is not None for index in indexes)


def _distinct(groups: list[Any]) -> list[tuple[str, Any]]:
    """(group, topics) as asked for, but all of a group once: it is asked for with a few bytes, and may be much."""
    wanted: list[tuple[str, Any]] = []
    in_full: set[str] = set()
    for group in groups:
        if group.topics is not None:
            wanted.append((group.group_id, group.topics))
        elif group.group_id not in in_full:
            in_full.add(group.group_id)
            wanted.append((group.group_id, None))
    return wanted


def _named(request: Request, topic: Any) -> tuple[str | None, bytes, list[int]]:
    """(name, id, partitions) of a requested topic; the name is None when nothing has the id."""
    if request.version >= FIRST_VERSION_WITH_TOPIC_IDS:
        return request.broker.image.topic_name(topic.topic_id), topic.topic_id, topic.partition_indexes
    return topic.name, NO_TOPIC_ID, topic.partition_indexes


def _reply(request: Request, wanted: list[tuple[str, Any]], answers: list[Any]) -> None:
    if request.version < FIRST_BATCHED_VERSION:
        (_, topics), answer = wanted[0], answers[0]
        failed = _failure(answer)
        if failed is not None and request.version >= 2:
            request.reply(OffsetFetchResponse.new(topics=[], error_code=int(failed)))
            return
        kinds = (OffsetFetchResponse.OffsetFetchResponseTopic, OffsetFetchResponse.OffsetFetchResponsePartition)
        request.reply(OffsetFetchResponse.new(topics=_topics(request, topics, answer, failed, kinds)))
        return
    kinds = (OffsetFetchResponse.OffsetFetchResponseTopics, OffsetFetchResponse.OffsetFetchResponsePartitions)
    groups = []
    for (group_id, topics), answer in zip(wanted, answers, strict=True):
        failed = _failure(answer)
        groups.append(
            OffsetFetchResponse.OffsetFetchResponseGroup(
                group_id=group_id,
                topics=[] if failed is not None else _topics(request, topics, answer, None, kinds),
                error_code=int(failed or ErrorCode.NONE),
            )
        )
    request.reply(OffsetFetchResponse.new(groups=groups))


def _failure(answer: Any) -> ErrorCode | None:
    if isinstance(answer, DuramenError):
        code = group_error(answer)
        # As Kafka: consumers before 3.9 fail at COORDINATOR_NOT_AVAILABLE here, which a failed append means elsewhere.
        failed_append = code == ErrorCode.COORDINATOR_NOT_AVAILABLE != answer.code
        return ErrorCode.NOT_COORDINATOR if failed_append else code
    return answer if isinstance(answer, ErrorCode) else None


def _topics(request: Request, topics: Any, answer: Any, failed: ErrorCode | None, kinds: tuple[Any, Any]) -> list[Any]:
    positions: Positions = {} if failed is not None else _of_present_topics(request, answer)
    make_topic, make_partition = kinds
    by_id = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
    if topics is None:
        grouped: dict[str, list[int]] = {}
        for committed_topic, index in sorted(positions):
            grouped.setdefault(committed_topic, []).append(index)
        rows: list[tuple[str | None, bytes, list[int]]] = [
            (topic, request.broker.image.topic_id(topic), indexes) for topic, indexes in grouped.items()
        ]
        if by_id:
            rows = [row for row in rows if row[1] != NO_TOPIC_ID]
        hidden = request.broker.denies(request, Operation.DESCRIBE, Resource.TOPIC, grouped)
        rows = [row for row in rows if row[0] not in hidden]
    else:
        rows = [_named(request, topic) for topic in topics]
    out = []
    for name, topic_id, indexes in rows:
        code = failed
        if name is None:
            code = ErrorCode.UNKNOWN_TOPIC_ID
        elif topics is not None and request.broker.denies(request, Operation.DESCRIBE, Resource.TOPIC, [name]):
            code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        partitions = [
            _partition(make_partition, index, None if code else positions.get((name or "", index)), code)
            for index in indexes
        ]
        made = make_topic(name=name or "", partitions=partitions)
        if by_id:
            made.topic_id = topic_id
        out.append(made)
    return out


def _of_present_topics(request: Request, positions: Positions) -> Positions:
    """Without offsets that a deleted topic of the same name left: their tombstones may still be under way."""
    image = request.broker.image
    return {
        position: committed
        for position, committed in positions.items()
        if committed.topic_id in (NO_TOPIC_ID, image.topic_id(position[0]))
    }


def _partition(make: Any, index: int, committed: CommittedOffset | None, code: ErrorCode | None) -> Any:
    if committed is None:
        return make(partition_index=index, committed_offset=-1, metadata="", error_code=int(code or ErrorCode.NONE))
    return make(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
    )
