"""The settings the group machine obeys, taken out of a broker's configuration."""

from __future__ import annotations

from typing import NamedTuple

from duramen.config import BrokerConfig

MINUTE_MS = 60_000


class GroupSettings(NamedTuple):
    """Times in milliseconds. new_member_timeout_ms bounds how long a JoinGroup of a new member stays parked."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 30 * MINUTE_MS
    max_size: int = 2**31 - 1
    initial_rebalance_delay_ms: int = 3_000
    new_member_timeout_ms: int = 5 * MINUTE_MS
    offset_metadata_max_length: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * MINUTE_MS
    retention_check_interval_ms: int = 10 * MINUTE_MS
    consumer_session_timeout_ms: int = 45_000
    consumer_min_session_timeout_ms: int = 45_000
    consumer_max_session_timeout_ms: int = 60_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_min_heartbeat_interval_ms: int = 5_000
    consumer_max_heartbeat_interval_ms: int = 15_000
    consumer_assignment_interval_ms: int = 1_000
    consumer_min_assignment_interval_ms: int = 0
    consumer_max_assignment_interval_ms: int = 15_000
    consumer_regex_refresh_interval_ms: int = 10 * MINUTE_MS
    consumer_max_size: int = 2**31 - 1
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    consumer_migration_policy: str = "bidirectional"

    @classmethod
    def from_config(cls, config: BrokerConfig) -> GroupSettings:
        return cls(
            min_session_timeout_ms=config.integer("group.min.session.timeout.ms"),
            max_session_timeout_ms=config.integer("group.max.session.timeout.ms"),
            max_size=config.integer("group.max.size"),
            initial_rebalance_delay_ms=config.integer("group.initial.rebalance.delay.ms"),
            offset_metadata_max_length=config.integer("offset.metadata.max.bytes"),
            offsets_retention_ms=config.integer("offsets.retention.minutes") * MINUTE_MS,
            retention_check_interval_ms=config.integer("offsets.retention.check.interval.ms"),
            consumer_session_timeout_ms=config.integer("group.consumer.session.timeout.ms"),
            consumer_min_session_timeout_ms=config.integer("group.consumer.min.session.timeout.ms"),
            consumer_max_session_timeout_ms=config.integer("group.consumer.max.session.timeout.ms"),
            consumer_heartbeat_interval_ms=config.integer("group.consumer.heartbeat.interval.ms"),
            consumer_min_heartbeat_interval_ms=config.integer("group.consumer.min.heartbeat.interval.ms"),
            consumer_max_heartbeat_interval_ms=config.integer("group.consumer.max.heartbeat.interval.ms"),
            consumer_assignment_interval_ms=config.integer("group.consumer.assignment.interval.ms"),
            consumer_min_assignment_interval_ms=config.integer("group.consumer.min.assignment.interval.ms"),
            consumer_max_assignment_interval_ms=config.integer("group.consumer.max.assignment.interval.ms"),
            consumer_regex_refresh_interval_ms=config.integer("group.consumer.regex.refresh.interval.ms"),
            consumer_max_size=config.integer("group.consumer.max.size"),
            consumer_assignors=tuple(config.strings("group.consumer.assignors")),
            consumer_migration_policy=config.string("group.consumer.migration.policy").lower(),
        )
