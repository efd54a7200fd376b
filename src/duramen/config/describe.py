"""What DescribeConfigs tells about settings: value, source, synonyms, type and documentation (KIP-133, -226, -569)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from duramen.config.broker import LAYERS, BrokerConfig
from duramen.config.group import GROUP
from duramen.config.registry import SETTINGS, TOPIC, broker_setting
from duramen.config.setting import ConfigType, Setting, Value

DYNAMIC_TOPIC_CONFIG = 1
DYNAMIC_BROKER_CONFIG = 2
DYNAMIC_DEFAULT_BROKER_CONFIG = 3
STATIC_BROKER_CONFIG = 4
DEFAULT_CONFIG = 5
GROUP_CONFIG = 8

_SOURCES = dict(
    zip(
        LAYERS,
        (DYNAMIC_BROKER_CONFIG, DYNAMIC_DEFAULT_BROKER_CONFIG, STATIC_BROKER_CONFIG, DEFAULT_CONFIG),
        strict=True,
    )
)


class ConfigSynonym(NamedTuple):
    """One place a value could come from; value is None when it must not be shown."""

    name: str
    value: str | None
    source: int


class ConfigEntry(NamedTuple):
    """One setting as DescribeConfigs reports it; synonyms are in order of precedence, the one in force first."""

    name: str
    value: str | None
    read_only: bool
    source: int
    is_sensitive: bool
    synonyms: tuple[ConfigSynonym, ...]
    type: ConfigType
    documentation: str


def describe_broker(config: BrokerConfig) -> list[ConfigEntry]:
    """Every broker setting of this node."""
    entries = []
    for setting in SETTINGS.values():
        if setting.internal and config.source(setting.name) == "default":
            continue
        synonyms = _synonyms(config, [setting.name, *_BROKER_FALLBACKS.get(setting.name, ())])
        source = synonyms[0].source if synonyms and synonyms[0].name == setting.name else DEFAULT_CONFIG
        read_only = bool(setting.inert) or setting.update == "restart"
        value = setting.text(config.get(setting.name))
        entries.append(_entry(setting, value, read_only, source, synonyms))
    return entries


def describe_broker_default(config: BrokerConfig) -> list[ConfigEntry]:
    """The cluster-wide dynamic defaults that are set: what the broker resource without a name holds."""
    entries = []
    for name, text in sorted(config.texts["dynamic-default"].items()):
        setting = broker_setting(name)
        shown = None if setting.sensitive else text
        synonyms = (ConfigSynonym(name, shown, DYNAMIC_DEFAULT_BROKER_CONFIG),)
        entries.append(_entry(setting, text, False, DYNAMIC_DEFAULT_BROKER_CONFIG, synonyms))
    return entries


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a topic that has these of its own."""
    entries = []
    for setting in TOPIC.values():
        own = overrides.get(setting.name)
        if setting.internal and own is None:
            continue
        entries.append(_overlaid(config, setting, own, DYNAMIC_TOPIC_CONFIG, config.topic_default(setting.name)))
    return entries


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> list[ConfigEntry]:
    """Every setting of a group that has these of its own."""
    return [
        _overlaid(config, setting, overrides.get(setting.name), GROUP_CONFIG, config.get(setting.fallbacks[0][0]))
        for setting in GROUP.values()
    ]


def _overlaid(config: BrokerConfig, setting: Setting, own: str | None, source: int, inherited: Value) -> ConfigEntry:
    """A setting of what may have its own, over the broker's. source: of its own."""
    synonyms = _synonyms(config, [name for name, _ in setting.fallbacks])
    value = setting.text(inherited if own is None else setting.parse(own))
    if own is not None:
        synonyms = (ConfigSynonym(setting.name, value, source), *synonyms)
    in_force = synonyms[0].source if synonyms else DEFAULT_CONFIG
    return _entry(setting, value, bool(setting.inert), in_force, synonyms)


def _entry(
    setting: Setting, value: str | None, read_only: bool, source: int, synonyms: tuple[ConfigSynonym, ...]
) -> ConfigEntry:
    shown = None if setting.sensitive else value
    return ConfigEntry(setting.name, shown, read_only, source, setting.sensitive, synonyms, setting.type, setting.doc)


def _synonyms(config: BrokerConfig, names: Iterable[str]) -> tuple[ConfigSynonym, ...]:
    """Where these broker settings are set, in the order in which they count: by name, then by layer.

    As in Kafka, defaults of the other names count as places only behind the first name.
    """
    names = list(names)
    found: list[ConfigSynonym] = []
    for name in names:
        setting = broker_setting(name)
        for layer in LAYERS:
            text = setting.default if layer == "default" else config.texts[layer].get(name)
            if text is not None and (layer != "default" or name == names[0] or (found and found[0].name == names[0])):
                found.append(ConfigSynonym(name, None if setting.sensitive else text, _SOURCES[layer]))
    return tuple(found)


_BROKER_FALLBACKS = {
    "log.retention.ms": ("log.retention.minutes", "log.retention.hours"),
    "log.roll.ms": ("log.roll.hours",),
    "log.roll.jitter.ms": ("log.roll.jitter.hours",),
    "log.flush.interval.ms": ("log.flush.scheduler.interval.ms",),
}
