"""One member's way to its target: give up first, then move on with what is free, then take what others give up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group.assignors import Owned
from duramen.machines.group.consumer.state import NO_EPOCHS, NO_PARTITIONS, ConsumerMember, Epochs, MemberState
from duramen.model import TopicId

Reported = Iterable[tuple[TopicId, tuple[int, ...]]]
"""What a member says that it has, by topic."""


class Target(NamedTuple):
    """Where a member shall come to."""

    epoch: int
    partitions: Owned


class AssignmentStep(Enum):
    """What a heartbeat does to a member's assignment."""

    STAY = "stay"
    DROP = "drop"
    """Give up at once what is not subscribed any more; the rest has to wait."""
    ADVANCE = "advance"
    """On towards the target."""


_STEPS: Final = {
    # (state, nothing is in the way, the subscription has changed)
    (MemberState.STABLE, False, False): AssignmentStep.STAY,
    (MemberState.STABLE, False, True): AssignmentStep.DROP,
    (MemberState.STABLE, True, False): AssignmentStep.ADVANCE,
    (MemberState.STABLE, True, True): AssignmentStep.ADVANCE,
    (MemberState.UNREVOKED, False, False): AssignmentStep.STAY,
    (MemberState.UNREVOKED, False, True): AssignmentStep.DROP,
    (MemberState.UNREVOKED, True, False): AssignmentStep.ADVANCE,
    (MemberState.UNREVOKED, True, True): AssignmentStep.ADVANCE,
    (MemberState.UNRELEASED, True, False): AssignmentStep.ADVANCE,
    (MemberState.UNRELEASED, True, True): AssignmentStep.ADVANCE,
    (MemberState.UNKNOWN, True, False): AssignmentStep.ADVANCE,
    (MemberState.UNKNOWN, True, True): AssignmentStep.ADVANCE,
}
"""In the way of a stable member is that it has arrived; of an unrevoked one, what it has not given up yet."""


def check_known(member: ConsumerMember, reported: Reported | None) -> None:
    """FENCED_MEMBER_EPOCH where a newer release left it in a state that is not known, and it still has partitions."""
    if member.state is MemberState.UNKNOWN and (reported is None or any(indexes for _, indexes in reported)):
        message = f"{member.id} is in a state that a newer release wrote; it gives up all partitions and joins again"
        raise KafkaError(ErrorCode.FENCED_MEMBER_EPOCH, message)


def reconcile(
    member: ConsumerMember,
    target: Target,
    topic_ids: frozenset[TopicId],
    owner: Callable[[TopicId, int], str | None],
    reported: Reported | None,
    *,
    has_changed: bool,
) -> ConsumerMember:
    """The member as it is after this heartbeat, the same value where nothing moves.

    topic_ids: of the topics it subscribes to now. owner: who has a partition or still gives it up. reported: None
    where the heartbeat does not say what it has.
    """
    step = _STEPS[(member.state, _is_clear(member, target, reported), has_changed)]
    if step is AssignmentStep.STAY:
        return member
    if step is AssignmentStep.DROP:
        return _drop(member, topic_ids, reported)
    epoch = target.epoch if member.state is MemberState.UNKNOWN else member.epoch
    return _advance(member, epoch, target, topic_ids, owner, reported)


def _is_clear(member: ConsumerMember, target: Target, reported: Reported | None) -> bool:
    if member.state is MemberState.STABLE:
        return member.epoch != target.epoch
    if member.state is MemberState.UNREVOKED:
        return not _still_has(member.revoking, reported)
    return True


def _still_has(partitions: Epochs, reported: Reported | None) -> bool:
    """Whether it says so; who says nothing is taken to have what it had."""
    if reported is None:
        return True
    return any(
        partition in partitions.get(topic_id, NO_PARTITIONS) for topic_id, indexes in reported for partition in indexes
    )


def _drop(member: ConsumerMember, topic_ids: frozenset[TopicId], reported: Reported | None) -> ConsumerMember:
    kept = {topic_id: epochs for topic_id, epochs in member.assigned.items() if topic_id in topic_ids}
    if len(kept) == len(member.assigned):
        return member
    revoking = {topic_id: dict(epochs) for topic_id, epochs in member.revoking.items()}
    for topic_id, epochs in member.assigned.items():
        if topic_id not in kept:
            revoking.setdefault(topic_id, {}).update(epochs)
    if _still_has(revoking, reported):
        return _at(member, member.epoch, MemberState.UNREVOKED, kept, revoking)
    # It had given them up before it was asked.
    return member._replace(previous_epoch=member.epoch, assigned=kept)


def _advance(
    member: ConsumerMember,
    epoch: int,
    target: Target,
    topic_ids: frozenset[TopicId],
    owner: Callable[[TopicId, int], str | None],
    reported: Reported | None,
) -> ConsumerMember:
    kept: dict[TopicId, dict[int, int]] = {}
    revoking: dict[TopicId, dict[int, int]] = {}
    free: dict[TopicId, dict[int, int]] = {}
    waits = False
    for topic_id in {**target.partitions, **member.assigned}:
        wanted = frozenset(target.partitions.get(topic_id, ())) if topic_id in topic_ids else frozenset()
        has = member.assigned.get(topic_id, NO_PARTITIONS)
        for partition, since in has.items():
            (kept if partition in wanted else revoking).setdefault(topic_id, {})[partition] = since
        for partition in sorted(wanted.difference(has)):
            # What it gives up itself is its own to take again: no other member can have it.
            if owner(topic_id, partition) in (None, member.id):
                free.setdefault(topic_id, {})[partition] = target.epoch
            else:
                waits = True
    if revoking and _still_has(revoking, reported):
        return _at(member, epoch, MemberState.UNREVOKED, kept, revoking)
    for topic_id, epochs in free.items():
        kept.setdefault(topic_id, {}).update(epochs)
    state = MemberState.UNRELEASED if waits else MemberState.STABLE
    return _at(member, target.epoch, state, kept, NO_EPOCHS)


def _at(member: ConsumerMember, epoch: int, state: MemberState, assigned: Epochs, revoking: Epochs) -> ConsumerMember:
    return member._replace(
        epoch=epoch, previous_epoch=member.epoch, state=state, assigned=assigned or NO_EPOCHS, revoking=revoking
    )


def is_part(reported: Reported | None, assigned: Epochs) -> bool:
    """Whether it says that it has some of these partitions and no others."""
    if reported is None:
        return False
    return all(
        partition in assigned.get(topic_id, NO_PARTITIONS) for topic_id, indexes in reported for partition in indexes
    )
