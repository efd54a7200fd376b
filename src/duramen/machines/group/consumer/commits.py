"""Who may commit and fetch the offsets of a consumer group: its members, by the epochs of what they have (KIP-1251)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group.commands import NO_GENERATION, NO_MEMBER, NewOffset
from duramen.machines.group.consumer.state import ConsumerGroup, ConsumerMember

FIRST_VERSION: Final = 9
"""Of OffsetCommit, for members of the consumer protocol."""


def check_commit(
    group: ConsumerGroup,
    member_id: str,
    instance_id: str | None,
    epoch: int,
    offsets: Iterable[NewOffset],
    *,
    knows_epochs: bool = True,
    is_transactional: bool = False,
) -> None:
    """KafkaError where any of it may not be committed: as in Kafka one partition refuses them all.

    knows_epochs: the request is of FIRST_VERSION or newer. is_transactional: it is a TxnOffsetCommit.
    """
    if epoch < 0 and not group.members:
        return
    if is_transactional and (member_id, instance_id, epoch) == (NO_MEMBER, None, NO_GENERATION):
        return
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {group.id}")
    if not is_transactional and not knows_epochs and member.classic is None:
        message = f"members of the consumer protocol commit with OffsetCommit {FIRST_VERSION} or newer"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, message)
    if epoch == member.epoch:
        return
    code = ErrorCode.ILLEGAL_GENERATION if is_transactional else _stale(member)
    if epoch > member.epoch:
        raise KafkaError(code, f"{member.id} is at epoch {member.epoch}, not {epoch}")
    for offset in offsets:
        since = member.held_since(offset.topic_id, offset.partition)
        if since is None:
            raise KafkaError(code, f"{member.id} does not have {offset.topic}-{offset.partition}")
        if epoch < since:
            message = f"{member.id} has {offset.topic}-{offset.partition} since epoch {since}, not {epoch}"
            raise KafkaError(code, message)


def check_fetch(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    """KafkaError unless a member at its epoch, or somebody who names none, asks."""
    if member_id is None and epoch < 0:
        return
    member = group.members.get(member_id or NO_MEMBER)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is no member of {group.id}")
    if epoch != member.epoch:
        raise KafkaError(_stale(member), f"{member.id} is at epoch {member.epoch}, not {epoch}")


def _stale(member: ConsumerMember) -> ErrorCode:
    return ErrorCode.STALE_MEMBER_EPOCH if member.classic is None else ErrorCode.ILLEGAL_GENERATION
