"""Records of `__consumer_offsets` as bytes: Kafka's keys and values, each after a 16-bit schema version."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.group.classic.state import Group
from duramen.machines.group.commands import CommittedOffset, NewOffset
from duramen.model import NO_TOPIC_ID
from duramen.wire.records import offsets as schema
from duramen.wire.records.versioned import Unknown

OFFSET_VALUE_VERSION: Final = 3
OFFSET_VALUE_WITH_EXPIRY_VERSION: Final = 1
OFFSET_VALUE_WITH_TOPIC_ID_VERSION: Final = 4


class OffsetRecord(NamedTuple):
    """A commit, or its removal when `committed` is None."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


class StoredMember(NamedTuple):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


class StoredGroup(NamedTuple):
    """A generation as the log has it. state_timestamp: ms since 1970, -1 unknown."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp: int
    members: tuple[StoredMember, ...]


class GroupRecord(NamedTuple):
    """A generation, or the group's removal when `stored` is None."""

    group_id: str
    stored: StoredGroup | None


class ConsumerGroupRecord(NamedTuple):
    """A record of a consumer group, as the schema has it (`consumer/record_application.py`)."""

    key: Any
    value: Any


# ---------------------------------------------------------------------- writing


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    return schema.encode_key(schema.OffsetCommitKey.new(group=group_id, topic=topic, partition=partition))


def offset_commit(group_id: str, new: NewOffset, now: int, expire_timestamp: int) -> LogRecord:
    """A commit at `now`; expire_timestamp -1 unless the client asked for a retention of its own."""
    if expire_timestamp != -1:
        version = OFFSET_VALUE_WITH_EXPIRY_VERSION
        extra: dict[str, Any] = {"expire_timestamp": expire_timestamp}
    elif new.topic_id != NO_TOPIC_ID:
        version = OFFSET_VALUE_WITH_TOPIC_ID_VERSION
        extra = {"topic_id": new.topic_id, "leader_epoch": new.leader_epoch}
    else:
        version = OFFSET_VALUE_VERSION
        extra = {"leader_epoch": new.leader_epoch}
    value = schema.OffsetCommitValue.new(offset=new.offset, metadata=new.metadata, commit_timestamp=now, **extra)
    return LogRecord(_offset_key(group_id, new.topic, new.partition), schema.encode_value(value, version))


def offset_tombstone(group_id: str, topic: str, partition: int) -> LogRecord:
    return LogRecord(_offset_key(group_id, topic, partition), None)


def _group_key(group_id: str) -> bytes:
    return schema.encode_key(schema.GroupMetadataKey.new(group=group_id))


def group_metadata(group: Group) -> LogRecord:
    """The group's present generation with everybody's assignment."""
    members = tuple(
        StoredMember(
            member.id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.rebalance_timeout_ms,
            member.session_timeout_ms,
            member.metadata(group.protocol),
            member.assignment,
        )
        for member in group.members.values()
    )
    stored = StoredGroup(
        group.protocol_type or "", group.generation, group.protocol, group.leader, group.state_timestamp, members
    )
    return stored_group(group.id, stored)


def renamed_member(group_id: str, stored: StoredGroup, old_id: str, new_id: str) -> LogRecord:
    """The generation as it was written, but that a static member has another id."""
    members = tuple(
        member._replace(member_id=new_id) if member.member_id == old_id else member for member in stored.members
    )
    leader = new_id if stored.leader == old_id else stored.leader
    return stored_group(group_id, stored._replace(leader=leader, members=members))


def stored_group(group_id: str, stored: StoredGroup) -> LogRecord:
    """A generation as it shall be read back."""
    message = schema.GroupMetadataValue
    value = message.new(
        protocol_type=stored.protocol_type,
        generation=stored.generation,
        protocol=stored.protocol,
        leader=stored.leader,
        current_state_timestamp=stored.state_timestamp,
        members=[_member(member) for member in stored.members],
    )
    return LogRecord(_group_key(group_id), schema.encode_value(value))


def _member(member: StoredMember) -> Any:
    return schema.GroupMetadataValue.MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.subscription,
        assignment=member.assignment,
    )


def group_tombstone(group_id: str) -> LogRecord:
    return LogRecord(_group_key(group_id), None)


# ---------------------------------------------------------------------- reading


def decode(record: LogRecord) -> OffsetRecord | GroupRecord | ConsumerGroupRecord | None:
    """What a record says; None for record types of other protocols. KafkaError CORRUPT_MESSAGE for a bad one."""
    if record.key is None:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "a coordinator record has no key")
    kind, key, value = schema.decode_record(record.key, record.value)
    if kind == "unknown" or isinstance(value, Unknown):
        return None
    if kind == "consumer-group":
        return ConsumerGroupRecord(key, value)
    if kind == "group":
        return GroupRecord(key.group, None if value is None else _stored(value))
    return OffsetRecord(key.group, key.topic, key.partition, None if value is None else _committed(value))


def _committed(value: Any) -> CommittedOffset:
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        value.topic_id,
    )


def _stored(value: Any) -> StoredGroup:
    return StoredGroup(
        value.protocol_type,
        value.generation,
        value.protocol,
        value.leader,
        value.current_state_timestamp,
        tuple(
            StoredMember(
                member.member_id,
                member.group_instance_id,
                member.client_id,
                member.client_host,
                member.session_timeout if member.rebalance_timeout == -1 else member.rebalance_timeout,
                member.session_timeout,
                member.subscription,
                member.assignment,
            )
            for member in value.members
        ),
    )
