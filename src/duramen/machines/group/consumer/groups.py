"""The consumer groups of one machine: what is recorded of them, and the little that is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import Outcome
from duramen.machines.group.consumer import record_application
from duramen.machines.group.consumer.commands import ConsumerHeartbeat
from duramen.machines.group.consumer.state import ConsumerGroup, ConsumerMember
from duramen.machines.group.consumer.topic_view import KnownTopics
from duramen.machines.group.settings import GroupSettings

SESSION_TIMEOUT: Final = "consumer.session.timeout.ms"
HEARTBEAT_INTERVAL: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL: Final = "consumer.assignment.interval.ms"

NO_CONFIGS: Final[Mapping[str, str]] = {}


class Checked(NamedTuple):
    """A group has looked at its topics: after so many changes of them, and found them as in this epoch."""

    changes: int
    epoch: int


class Computing(NamedTuple):
    """A target assignment is computed beside the loop. static_ids: instance id → member id, as it was asked."""

    epoch: int
    static_ids: Mapping[str, str]


GiveBack = Callable[[ConsumerGroup, list[ConsumerMember], int, Outcome], bool]
"""(group, members that go, now, out)"""


def _never(group: ConsumerGroup, members: list[ConsumerMember], now: int, out: Outcome) -> bool:
    return False


class ConsumerGroups:
    """Recorded: `groups`. The rest is soft: whoever takes over begins without it."""

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        self.configs: Callable[[str], Mapping[str, str]] = lambda group_id: NO_CONFIGS
        """What is set for one group alone."""
        self.groups: dict[str, ConsumerGroup] = {}
        self.topics = KnownTopics()
        self.resolving: set[str] = set()
        """Groups whose expressions are being resolved."""
        self.asked_to_resolve: dict[str, int] = {}
        """When that was asked for last, ms since 1970."""
        self.computing: dict[str, Computing] = {}
        self.waiting: dict[str, list[tuple[int, ConsumerHeartbeat]]] = {}
        """(ticket, heartbeat) by group id: they are decided again once the target is there."""
        self.checked: dict[str, Checked] = {}
        self.rejoining: set[tuple[str, str]] = set()
        """(group, member) of the classic protocol that were asked to rejoin, and have a time to do so."""
        self.give_back: GiveBack = _never
        """Has a group whose last member of the consumer protocol goes go on as a classic one; whether it does."""
        self.rebalances = 0
        """How often a group's epoch has risen here."""

    def apply(self, key: Any, value: Any) -> None:
        """One record."""
        record_application.apply(self.groups, key, value)
        if value is None and key.group not in self.groups:
            self.forget(key.group)

    def forget(self, group_id: str) -> None:
        """Nothing more is known of a group."""
        self.groups.pop(group_id, None)
        self.checked.pop(group_id, None)
        self.resolving.discard(group_id)
        self.asked_to_resolve.pop(group_id, None)
        self.computing.pop(group_id, None)
        self.rejoining -= {each for each in self.rejoining if each[0] == group_id}

    def existing(self, group_id: str) -> ConsumerGroup:
        """GROUP_ID_NOT_FOUND unless it is a consumer group."""
        group = self.groups.get(group_id)
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id[:200]} not found.")
        return group

    # ------------------------------------------------------------------ settings of one group

    def session_timeout_ms(self, group_id: str) -> int:
        settings = self.settings
        return self._setting(
            group_id,
            SESSION_TIMEOUT,
            settings.consumer_session_timeout_ms,
            settings.consumer_min_session_timeout_ms,
            settings.consumer_max_session_timeout_ms,
        )

    def heartbeat_interval_ms(self, group_id: str) -> int:
        settings = self.settings
        return self._setting(
            group_id,
            HEARTBEAT_INTERVAL,
            settings.consumer_heartbeat_interval_ms,
            settings.consumer_min_heartbeat_interval_ms,
            settings.consumer_max_heartbeat_interval_ms,
        )

    def assignment_interval_ms(self, group_id: str) -> int:
        settings = self.settings
        return self._setting(
            group_id,
            ASSIGNMENT_INTERVAL,
            settings.consumer_assignment_interval_ms,
            settings.consumer_min_assignment_interval_ms,
            settings.consumer_max_assignment_interval_ms,
        )

    def _setting(self, group_id: str, name: str, default: int, least: int, most: int) -> int:
        text = self.configs(group_id).get(name)
        return default if text is None else min(max(int(text), least), most)
