"""Settings of single groups (resource type 32): declared here, over the broker's, within its bounds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from duramen.config.broker import BrokerConfig
from duramen.config.setting import Setting
from duramen.errors import ConfigError

SESSION_MS: Final = "consumer.session.timeout.ms"
HEARTBEAT_MS: Final = "consumer.heartbeat.interval.ms"
ASSIGNMENT_MS: Final = "consumer.assignment.interval.ms"


def _setting(name: str, default: str, low: int, doc: str) -> Setting:
    return Setting(name, "int", default, doc, unit="ms", low=low, fallbacks=((f"group.{name}", 1),))


GROUP: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        _setting(ASSIGNMENT_MS, "1000", 0, "Shortest time between two assignments of a consumer group."),
        _setting(HEARTBEAT_MS, "5000", 1, "How often members of a consumer group are told to send heartbeats."),
        _setting(SESSION_MS, "45000", 1, "After how long without a heartbeat a member of a consumer group is removed."),
    )
}
"""Group settings, sorted by name. Those of share groups and Streams groups come with these."""


class GroupConfig(NamedTuple):
    """What holds for a group now. Bounds that the broker got after a value was stored limit it."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
    assignment_interval_ms: int


def group_config(broker: BrokerConfig, own: Mapping[str, str]) -> GroupConfig:
    """What holds for a group that has these settings of its own."""
    return GroupConfig(*(_in_force(broker, own, name) for name in (SESSION_MS, HEARTBEAT_MS, ASSIGNMENT_MS)))


def group_setting(name: str) -> Setting:
    """The group setting of this name; ConfigError when there is none."""
    found = GROUP.get(name)
    if found is None:
        raise ConfigError(f"Unknown group config name: {name}")
    return found


def validate_group_configs(broker: BrokerConfig, own: Mapping[str, str], altered: Iterable[str]) -> None:
    """Whether all of a group's settings are acceptable together; ConfigError says which is not, as Kafka does.

    altered: those that are new. What a Kafka has left of share groups is not looked at.
    """
    for name in altered:
        group_setting(name)
    parsed = {name: _number(setting, own[name]) for name, setting in GROUP.items() if name in own}
    heartbeat = parsed.get(HEARTBEAT_MS, broker.integer(f"group.{HEARTBEAT_MS}"))
    session = parsed.get(SESSION_MS, broker.integer(f"group.{SESSION_MS}"))
    for name, value in ((HEARTBEAT_MS, heartbeat), (SESSION_MS, session), (ASSIGNMENT_MS, parsed.get(ASSIGNMENT_MS))):
        if value is None:
            continue
        lowest, highest = bounds(name)
        if value < broker.integer(lowest):
            raise ConfigError(f"{name} must be greater than or equal to {lowest}")
        if value > broker.integer(highest):
            raise ConfigError(f"{name} must be less than or equal to {highest}")
    if session <= heartbeat:
        raise ConfigError(f"{SESSION_MS} must be greater than {HEARTBEAT_MS}")


def bounds(name: str) -> tuple[str, str]:
    """The broker's settings between whose values a group's must lie."""
    kind, _, rest = name.partition(".")
    return f"group.{kind}.min.{rest}", f"group.{kind}.max.{rest}"


def _in_force(broker: BrokerConfig, own: Mapping[str, str], name: str) -> int:
    try:
        value = _number(GROUP[name], own[name])
    except (KeyError, ConfigError):  # the latter: stored by what took it, and no reason to stop the group
        return broker.integer(f"group.{name}")
    lowest, highest = bounds(name)
    return max(broker.integer(lowest), min(value, broker.integer(highest)))


def _number(setting: Setting, text: str) -> int:
    value = setting.parse(text)
    if not isinstance(value, int):
        raise TypeError(f"{setting.name} is declared as {setting.kind}")
    return value
