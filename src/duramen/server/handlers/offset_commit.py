"""OffsetCommit: a group's positions, answered when they are on stable storage. Versions 2-10.

Each partition of a large commit has its own answer, and a crash or a rebalance may leave some of it.

v2-4 retention time · v6 leader epoch (KIP-320) · v7 static members · v9 member epoch, and GROUP_ID_NOT_FOUND instead of
ILLEGAL_GENERATION for members of a group that is gone · v10 topic ids (KIP-848)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import CommitOffsets, NewOffset
from duramen.model import NO_TOPIC_ID, TopicId
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.groups import group_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.offset_commit import OffsetCommitResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

FIRST_VERSION_WITH_GROUP_NOT_FOUND = 9
FIRST_VERSION_WITH_MEMBER_EPOCHS = 9
FIRST_VERSION_WITH_TOPIC_IDS = 10

MAX_AT_ONCE = 1_000
"""Positions that are committed together: ten milliseconds. Of more each thousand is a batch of its own; Kafka, whose
largest batch is of 1 MB, refuses ten times as many."""


Pending = list[tuple[Any, NewOffset]]
"""(entry of the response, what is to be committed for it)."""


def handle(request: Request) -> None:
    """Commit what can be committed; every partition has its own error."""
    call = _OffsetCommitCall(request)
    request.in_steps(call.check(), lambda _: call.commit())


class _OffsetCommitCall:
    """One OffsetCommit until it is answered."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._response = OffsetCommitResponse.new(topics=[])
        self._pending: Pending = []
        self._open = 1

    def check(self) -> Steps:
        """Make an entry of the response for every partition; what can be committed is pending then."""
        request = self._request
        by_id = request.version >= FIRST_VERSION_WITH_TOPIC_IDS
        done = 0
        for topic in request.body.topics:
            done += 1
            if done % STEP == 0:
                yield
            entries: list[Any] = []
            self._response.topics.append(
                OffsetCommitResponse.OffsetCommitResponseTopic(
                    name=topic.name, topic_id=topic.topic_id, partitions=entries
                )
            )
            name, topic_id, count, code = _resolve(request, topic, by_id)
            for wanted in topic.partitions:
                done += 1
                if done % STEP == 0:
                    yield
                index = wanted.partition_index
                entry = OffsetCommitResponse.OffsetCommitResponsePartition(partition_index=index)
                entries.append(entry)
                if code is ErrorCode.NONE and 0 <= index < count:
                    self._pending.append((entry, _offset(name, topic_id, wanted)))
                else:
                    entry.error_code = int(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def commit(self) -> None:
        """Have the group's machine commit what is pending, in pieces if that is much."""
        self._request.in_steps(self._pieces(), lambda _: self._settled())

    def _pieces(self) -> Steps:
        pending = self._pending
        for start in range(0, len(pending), MAX_AT_ONCE):
            if start:
                yield
            piece = self._of_topics_there(pending[start : start + MAX_AT_ONCE])
            if piece:
                self._submit(piece)

    def _of_topics_there(self, piece: Pending) -> Pending:
        """Without the positions of topics deleted since the check, which nobody would remove from the group again.

        One that was created again has another id: what it is told is not meant for it.
        """
        by_id = self._request.version >= FIRST_VERSION_WITH_TOPIC_IDS
        topic_id = self._request.services.image.topic_id
        there: Pending = []
        for each in piece:
            entry, offset = each
            if topic_id(offset.topic) == offset.topic_id:
                there.append(each)
            else:
                entry.error_code = int(ErrorCode.UNKNOWN_TOPIC_ID if by_id else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return there

    def _submit(self, piece: Pending) -> None:
        request, body = self._request, self._request.body

        def answered(answer: Any) -> None:
            failed = group_error(answer) if isinstance(answer, DuramenError) else None
            if failed is ErrorCode.GROUP_ID_NOT_FOUND and request.version < FIRST_VERSION_WITH_GROUP_NOT_FOUND:
                failed = ErrorCode.ILLEGAL_GENERATION
            for number, (entry, _) in enumerate(piece):
                entry.error_code = int(answer[number] if failed is None else failed)
            self._settled()

        command = CommitOffsets(
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.generation_id_or_member_epoch,
            tuple(offset for _, offset in piece),
            body.retention_time_ms if request.version <= 4 else -1,
            request.version >= FIRST_VERSION_WITH_MEMBER_EPOCHS,
        )
        self._open += 1
        request.services.groups.submit(body.group_id, command, answered)

    def _settled(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._request.reply(self._response)


def _resolve(request: Request, topic: Any, by_id: bool) -> tuple[str, TopicId, int, ErrorCode]:
    """(name, id, number of partitions, error) of a topic in the request, as it is now; the steps take no other."""
    if request.body.group_id in request.denied:
        return "", NO_TOPIC_ID, 0, ErrorCode.GROUP_AUTHORIZATION_FAILED
    image = request.services.image
    found = image.topic_by_id(topic.topic_id) if by_id else image.topic(topic.name)
    if found is None and by_id:
        return "", NO_TOPIC_ID, 0, ErrorCode.UNKNOWN_TOPIC_ID
    name = topic.name if found is None else found.name
    if request.denies(Operation.READ, Resource.TOPIC, [name]):
        return name, NO_TOPIC_ID, 0, ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if found is None:
        return name, NO_TOPIC_ID, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return name, found.id, len(found.partitions), ErrorCode.NONE


def _offset(name: str, topic_id: TopicId, wanted: Any) -> NewOffset:
    return NewOffset(
        name,
        wanted.partition_index,
        wanted.committed_offset,
        wanted.committed_leader_epoch,
        wanted.committed_metadata or "",
        topic_id,
    )
