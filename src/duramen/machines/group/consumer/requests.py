"""What is refused of a heartbeat before its group is looked at."""

from __future__ import annotations

from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.group.assignors import ASSIGNORS
from duramen.machines.group.consumer.commands import ConsumerHeartbeat
from duramen.machines.group.consumer.state import JOIN_EPOCH, LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from duramen.model import MOST_ID_CHARACTERS

MOST_NAMES: Final = 20_000
"""Topics that one member names."""
MOST_CHARACTERS: Final = 1 << 20
"""Of these names together; a topic's has 249 at most."""


def check(command: ConsumerHeartbeat, assignors: tuple[str, ...]) -> None:
    """INVALID_REQUEST, or UNSUPPORTED_ASSIGNOR for one that the settings do not list."""
    if not command.member_id and (command.brings_id or command.epoch > JOIN_EPOCH or command.epoch == LEAVE_EPOCH):
        raise _invalid("MemberId can't be empty.")
    for name, value in (
        ("GroupId", command.group_id),
        ("InstanceId", command.instance_id),
        ("RackId", command.rack),
    ):
        if value is not None and not value.strip():
            raise _invalid(f"{name} can't be empty.")
    if command.epoch == JOIN_EPOCH:
        _check_join(command)
    elif command.epoch == LEAVE_STATIC_EPOCH:
        if command.instance_id is None:
            raise _invalid("InstanceId can't be null.")
    elif command.epoch < LEAVE_STATIC_EPOCH:
        raise _invalid("MemberEpoch is invalid.")
    _check_size(command)
    if command.assignor is not None and (command.assignor not in assignors or command.assignor not in ASSIGNORS):
        known = ", ".join(name for name in assignors if name in ASSIGNORS)
        raise KafkaError(
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {command.assignor[:200]} is not supported. Supported assignors: {known}.",
        )


def _check_join(command: ConsumerHeartbeat) -> None:
    if command.rebalance_timeout_ms == -1:
        raise _invalid("RebalanceTimeoutMs must be provided in first request.")
    if command.owned is None or command.owned:
        raise _invalid("TopicPartitions must be empty when (re-)joining.")
    if command.topics is None and command.expression is None:
        raise _invalid("Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.")


def _check_size(command: ConsumerHeartbeat) -> None:
    """Kafka's request handler leaves these to the log, which takes no batch above a megabyte."""
    ids = (command.group_id, command.member_id, command.instance_id, command.rack, command.client_id)
    if any(value is not None and len(value) > MOST_ID_CHARACTERS for value in ids):
        raise _invalid(f"An id is longer than {MOST_ID_CHARACTERS} characters.")
    if command.topics is not None:
        if len(command.topics) > MOST_NAMES:
            raise _invalid(f"There are more than {MOST_NAMES} SubscribedTopicNames.")
        if sum(map(len, command.topics)) > MOST_CHARACTERS:
            raise _invalid(f"SubscribedTopicNames have more than {MOST_CHARACTERS} characters.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
