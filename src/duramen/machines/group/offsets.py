"""Committed offsets of all groups of one machine: durable, changed by applied records only; and who may change them."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator
from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.ages import Ages
from duramen.machines.contract import LogRecord, ProducerEpoch
from duramen.machines.group import records
from duramen.machines.group.classic.state import Group, GroupState
from duramen.machines.group.classic.subscription import CONSUMER_PROTOCOL_TYPE
from duramen.machines.group.commands import (
    NO_EXPIRY,
    NO_MEMBER,
    CommitOffsets,
    CommittedOffset,
    CommitTransactionOffsets,
    DeleteOffsets,
    FetchOffsets,
)
from duramen.machines.group.pending_offsets import PendingOffset, PendingOffsets, Position
from duramen.machines.group.settings import GroupSettings

_utf_16: Final = codecs.getencoder("utf-16-le")  # here, for the import of a codec takes a descriptor
MAX_INT64: Final = 2**63 - 1


class OffsetTable:
    """Offsets by group and position, and those of transactions that are open. Its groups are those that have either."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[Position, CommittedOffset]] = {}
        self.pending = PendingOffsets()

    def __contains__(self, group_id: object) -> bool:
        return group_id in self._groups or group_id in self.pending

    def __iter__(self) -> Iterator[str]:
        yield from self._groups
        yield from (group_id for group_id in self.pending if group_id not in self._groups)

    def of(self, group_id: str) -> dict[Position, CommittedOffset]:
        """The group's committed offsets; not to be changed by the caller."""
        return self._groups.get(group_id, {})

    def positions(self, group_id: str) -> list[Position]:
        """Of the group's offsets, committed and pending."""
        offsets, pending = self.of(group_id), self.pending.positions(group_id)
        return [*offsets, *(position for position in pending if position not in offsets)]

    def is_pending(self, group_id: str, position: Position) -> bool:
        """Whether a transaction that is open has written an offset there."""
        return position in self.pending.positions(group_id)

    def apply(self, record: records.OffsetRecord, offset: int, producer: ProducerEpoch | None = None) -> None:
        """Take over one record of the log; producer: in whose transaction it was written."""
        group_id, position = record.group_id, (record.topic, record.partition)
        if record.committed is None:
            self.pending.drop(group_id, position)
            self._remove(group_id, position)
        elif producer is not None:
            self.pending.add(producer.id, group_id, position, PendingOffset(offset, record.committed))
        else:
            self._groups.setdefault(group_id, {})[position] = record.committed
            self.pending.supersede(group_id, position, offset)

    def _remove(self, group_id: str, position: Position) -> None:
        offsets = self._groups.get(group_id)
        if offsets is not None:
            offsets.pop(position, None)
            if not offsets:
                del self._groups[group_id]

    def end_transaction(self, producer: ProducerEpoch, *, commit: bool) -> set[str]:
        """The marker of a producer's transaction was applied; the groups that it had offsets of."""
        ended = self.pending.end(producer.id)
        for (group_id, position), pending in ended.items():
            if commit and pending.committed is not None:
                self._groups.setdefault(group_id, {})[position] = pending.committed
                self.pending.supersede(group_id, position, pending.record)
        return {group_id for group_id, _ in ended}

    def snapshot(self) -> dict[str, dict[Position, CommittedOffset]]:
        """A copy, to compare states by."""
        return {group_id: dict(offsets) for group_id, offsets in self._groups.items()}


# ---------------------------------------------------------------------- committing


def check_commit(group: Group | None, command: CommitOffsets | CommitTransactionOffsets) -> None:
    """KafkaError unless this member, or somebody outside of a group without members, may commit now.

    In transactions also somebody who names no member (clients before KIP-447), and while the group waits for its
    assignment.
    """
    managed = command.member_id != NO_MEMBER or command.instance_id is not None
    in_transaction = isinstance(command, CommitTransactionOffsets)
    if group is None:
        if command.generation >= 0:
            code = ErrorCode.ILLEGAL_GENERATION if in_transaction else ErrorCode.GROUP_ID_NOT_FOUND
            raise KafkaError(code, f"there is no group {command.group_id}")
        return
    if command.generation < 0 and group.state is GroupState.EMPTY:
        return
    if command.generation >= 0 or managed:
        group.validate(command.member_id, command.instance_id)
        if command.generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, f"{group.id} is at generation {group.generation}")
    elif group.state is not GroupState.EMPTY and not in_transaction:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"only members commit while {group.id} has members")
    if group.state is GroupState.COMPLETING_REBALANCE and not in_transaction:
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, f"{group.id} waits for its assignment")


def commit(
    command: CommitOffsets | CommitTransactionOffsets, settings: GroupSettings, now: int
) -> tuple[list[LogRecord], list[ErrorCode]]:
    """Records and one error code per offset."""
    expire = NO_EXPIRY
    if isinstance(command, CommitOffsets) and command.retention_ms != -1:
        expire = min(now + command.retention_ms, MAX_INT64)
    written: list[LogRecord] = []
    answers: list[ErrorCode] = []
    for new in command.offsets:
        if _utf16_length(new.metadata) > settings.offset_metadata_max_length:
            answers.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
            continue
        written.append(records.offset_commit(command.group_id, new, now, expire))
        answers.append(ErrorCode.NONE)
    return written, answers


def _utf16_length(text: str) -> int:
    """Kafka counts Java characters."""
    return len(text) if text.isascii() else len(_utf_16(text, "surrogatepass")[0]) // 2


# ---------------------------------------------------------------------- reading and deleting


def fetch(table: OffsetTable, command: FetchOffsets) -> dict[Position, CommittedOffset | ErrorCode]:
    """The offsets asked for that there are; an error for those that may be another one in a moment, if that matters."""
    offsets = table.of(command.group_id)
    wanted = offsets if command.partitions is None else command.partitions
    found: dict[Position, CommittedOffset | ErrorCode] = {
        position: offsets[position] for position in wanted if position in offsets
    }
    pending = table.pending.positions(command.group_id)
    if command.require_stable and pending:
        found.update((position, ErrorCode.UNSTABLE_OFFSET_COMMIT) for position in wanted if position in pending)
    return found


def check_delete(group: Group | None, command: DeleteOffsets) -> Group:
    """KafkaError unless offsets of this group may be deleted (KIP-496)."""
    if not command.group_id:
        raise KafkaError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no group {command.group_id}")
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
        raise KafkaError(ErrorCode.NON_EMPTY_GROUP, f"{group.id} has members")
    return group


def delete(
    table: OffsetTable, command: DeleteOffsets, is_subscribed: Callable[[str], bool]
) -> tuple[list[LogRecord], list[ErrorCode]]:
    """Tombstones and one error code per partition; offsets of topics that members still read are kept."""
    offsets = set(table.positions(command.group_id))
    written: dict[Position, LogRecord] = {}
    answers: list[ErrorCode] = []
    for position in command.partitions:
        if is_subscribed(position[0]):
            answers.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        if position in offsets:
            written[position] = records.offset_tombstone(command.group_id, *position)
        answers.append(ErrorCode.NONE)
    return list(written.values()), answers


# ---------------------------------------------------------------------- expiry


def expired(group: Group, table: OffsetTable, retention_ms: int, ages: Ages, now: int) -> Iterator[Position]:
    """Positions whose time is up (KIP-211): since the group is empty and the commit, or, unsubscribed or simple, since
    the commit. Not those of which a transaction has written an offset."""
    if group.protocol_type is None:
        since = None
    elif group.state is GroupState.EMPTY:
        since = group.state_timestamp
    elif (
        group.state is GroupState.STABLE and group.protocol_type == CONSUMER_PROTOCOL_TYPE and group.topics is not None
    ):
        since = None
    else:
        return
    yield from expired_unsubscribed(group.id, group.is_subscribed, since, table, retention_ms, ages, now)


def expired_unsubscribed(
    group_id: str,
    is_subscribed: Callable[[str], bool],
    since: int | None,
    table: OffsetTable,
    retention_ms: int,
    ages: Ages,
    now: int,
) -> Iterator[Position]:
    """The same where it is known since when no member reads them; None: since each commit."""
    for position, committed in table.of(group_id).items():
        if is_subscribed(position[0]) or table.is_pending(group_id, position):
            continue
        base = committed.commit_timestamp
        if committed.expire_timestamp != NO_EXPIRY:
            time_ms = committed.expire_timestamp - committed.commit_timestamp
        else:
            # Whoever commits for a group that is empty for long is as good as a member.
            base = base if since is None else max(since, base)
            time_ms = retention_ms
        if ages.since(base, now) >= time_ms:
            yield position
