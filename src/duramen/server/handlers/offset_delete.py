"""OffsetDelete: forget a group's positions of partitions it does not consume any more (KIP-496). Version 0.

Of a large one a crash, or whatever refuses a piece of it, may leave some.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.group.commands import DeleteOffsets
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.groups import group_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.offset_delete import OffsetDeleteResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

MAX_AT_ONCE = 1_000
"""Positions that are deleted together, as for OffsetCommit: of more each thousand is a batch of its own."""


def handle(request: Request) -> None:
    """Delete offsets; GROUP_SUBSCRIBED_TO_TOPIC for topics a member still reads."""
    body = request.body
    response = OffsetDeleteResponse.new(topics=[])
    if body.group_id in request.denied:
        response.error_code = int(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        request.reply(response)
        return
    request.in_steps(_checked(request, response), partial(_delete, request, response))


Pending = list[tuple[Any, tuple[str, int]]]
"""(entry of the response, position) of what is to be deleted."""


def _checked(request: Request, response: Any) -> Steps:
    pending: Pending = []
    done = 0
    for topic in request.body.topics:
        done += 1
        if done % STEP == 0:
            yield
        entries: list[Any] = []
        response.topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=entries))
        known = request.services.image.topic(topic.name)
        denied = request.denies(Operation.READ, Resource.TOPIC, [topic.name])
        for wanted in topic.partitions:
            done += 1
            if done % STEP == 0:
                yield
            entry = OffsetDeleteResponse.OffsetDeleteResponsePartition(partition_index=wanted.partition_index)
            entries.append(entry)
            if denied:
                entry.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            elif known is None or not 0 <= wanted.partition_index < len(known.partitions):
                entry.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            else:
                pending.append((entry, (topic.name, wanted.partition_index)))

    return pending


def _delete(request: Request, response: Any, pending: Pending) -> None:
    deletion = _Deletion(request, response)
    request.in_steps(deletion.pieces(pending), lambda _: deletion.settled())


class _Deletion:
    """What is pending of one OffsetDelete, until it is answered."""

    def __init__(self, request: Request, response: Any) -> None:
        self._request = request
        self._response = response
        self._open = 1
        self._refused = ErrorCode.NONE
        self._some_deleted = False

    def pieces(self, pending: Pending) -> Steps:
        """Have the group's machine delete them; that of none, too, tells whether there is the group."""
        for start in range(0, max(len(pending), 1), MAX_AT_ONCE):
            if start:
                yield
            self._submit(pending[start : start + MAX_AT_ONCE])

    def _submit(self, piece: Pending) -> None:
        group_id = self._request.body.group_id

        def answered(answer: Any) -> None:
            if isinstance(answer, DuramenError):
                self._refused = self._refused or group_error(answer)
            else:
                self._some_deleted = True
                for number, (entry, _) in enumerate(piece):
                    entry.error_code = int(answer[number])
            self.settled()

        self._open += 1
        command = DeleteOffsets(group_id, tuple(position for _, position in piece))
        self._request.services.groups.submit(group_id, command, answered)

    def settled(self) -> None:
        """The reply, if nothing is waited for any more."""
        self._open -= 1
        if self._open:
            return
        # A group without members goes with its last position: those of later pieces are as deleted as they can be.
        is_done = self._some_deleted and self._refused is ErrorCode.GROUP_ID_NOT_FOUND
        if self._refused and not is_done:
            self._response.error_code = int(self._refused)
            self._response.topics = []
        self._request.reply(self._response)
