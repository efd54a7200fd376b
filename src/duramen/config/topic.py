"""A topic's configuration: its own settings over the broker's defaults, and the rules for changing them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from duramen.config.broker import BrokerConfig
from duramen.config.registry import TOPIC, topic_setting
from duramen.config.setting import Setting, Value
from duramen.errors import ConfigError

NO_TXID = "none"
"""Of `duramen.txid`: timestamps are times."""


class TopicConfig:
    """What holds for one topic. Immutable; the attributes are those that storage and partitions ask all the time.

    overrides: the topic's own settings as texts, as the metadata log holds them. Unknown ones, which another server may
    have stored, are left out: `validate_topic_configs` refuses them in requests. ConfigError when one is ill-typed.
    Times are milliseconds, sizes bytes.
    """

    __slots__ = (
        "_broker",
        "_overrides",
        "cleanup_policy",
        "compression_gzip_level",
        "compression_lz4_level",
        "compression_type",
        "compression_zstd_level",
        "delete_retention_ms",
        "durability",
        "file_delete_delay_ms",
        "flush_messages",
        "flush_ms",
        "index_interval_bytes",
        "max_compaction_lag_ms",
        "max_message_bytes",
        "message_timestamp_after_max_ms",
        "message_timestamp_before_max_ms",
        "message_timestamp_type",
        "min_cleanable_dirty_ratio",
        "min_compaction_lag_ms",
        "min_insync_replicas",
        "preallocate",
        "retention_bytes",
        "retention_ms",
        "segment_bytes",
        "segment_index_bytes",
        "segment_jitter_ms",
        "segment_ms",
        "txid",
        "writer_exclusive",
        "writer_expiration_ms",
    )

    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    durability: str
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    preallocate: bool
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_jitter_ms: int
    segment_ms: int
    txid: str
    writer_exclusive: bool
    writer_expiration_ms: int

    def __init__(self, broker: BrokerConfig, overrides: Mapping[str, str] | None = None) -> None:
        self._broker = broker
        self._overrides: dict[str, Value] = {
            name: TOPIC[name].parse(text) for name, text in (overrides or {}).items() if name in TOPIC
        }
        for attribute, name in _ATTRIBUTES:
            value: Any = self.get(name)
            setattr(self, attribute, value)
        self.cleanup_policy = frozenset(self.cleanup_policy)
        small: Any = self.get("internal.segment.bytes")
        if small is not None:
            self.segment_bytes = small

    def get(self, name: str) -> Value:
        """The typed value of a topic setting; ConfigError for an unknown name."""
        if name in self._overrides:
            return self._overrides[name]
        topic_setting(name)
        return self._broker.topic_default(name)

    def fewest_in_sync(self, copies: int) -> int:
        """`min.insync.replicas` of a partition with so many copies.

        The topic's own counts as written. The cluster's is bounded by the copies, as in Kafka: else a topic of one copy
        could not be written where the default is 2.
        """
        if "min.insync.replicas" in self._overrides:
            return self.min_insync_replicas
        return min(self.min_insync_replicas, copies)


_OURS = {
    "durability": "duramen.ack.durability",
    "txid": "duramen.txid",
    "writer_exclusive": "duramen.writer.exclusive",
    "writer_expiration_ms": "duramen.writer.expiration.ms",
}
_ATTRIBUTES = tuple(
    (attribute, _OURS.get(attribute) or attribute.replace("_", "."))
    for attribute in TopicConfig.__slots__
    if not attribute.startswith("_")
)


def validate_topic_config(name: str, value: str | None) -> None:
    """Whether a topic setting may have this value; ConfigError says why not (None removes the setting)."""
    setting = topic_setting(name)
    if value is None:
        return
    parsed = setting.parse(value)
    if name == "remote.storage.enable" and parsed is True:
        raise ConfigError("remote.storage.enable=true: there is no remote tier to store the topic in")
    if setting.kind == "list" and name.endswith(".throttled.replicas"):
        _check_throttled(setting, parsed)


def validate_topic_configs(broker: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Whether all of a topic's settings are acceptable together; ConfigError says which is not."""
    for name, value in overrides.items():
        validate_topic_config(name, value)
    config = TopicConfig(broker, overrides)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise ConfigError(
            f"min.compaction.lag.ms={config.min_compaction_lag_ms} is above "
            f"max.compaction.lag.ms={config.max_compaction_lag_ms}"
        )
    if config.txid != NO_TXID:
        _check_txid(config, overrides)


def _check_txid(config: TopicConfig, overrides: Mapping[str, str]) -> None:
    """What cannot be together with transaction ids: a log that loses its last record, another rule for timestamps."""
    if "compact" in config.cleanup_policy:
        raise ConfigError(f"duramen.txid={config.txid} needs cleanup.policy=delete: compaction removes last records")
    wanted = "CreateTime" if config.txid == "application" else "LogAppendTime"
    given = overrides.get("message.timestamp.type", wanted)
    if given != wanted:
        raise ConfigError(f"duramen.txid={config.txid} sets the timestamps: leave out message.timestamp.type={given}")


def alter_list(setting: Setting, current: str | None, operation: str, value: str) -> str:
    """The text of a list setting after APPEND or SUBTRACT (KIP-339).

    current: the text in force, the default's where the entity has none. operation: "append" or "subtract".
    ConfigError when the setting is no list.
    """
    if setting.kind != "list":
        raise ConfigError(f"{setting.name} is not a list; it can be set or deleted, not appended to or subtracted from")
    present = [part.strip() for part in (current or "").split(",") if part.strip()]
    given = [part.strip() for part in value.split(",") if part.strip()]
    if operation == "append":
        known = set(present)
        return ",".join(present + [part for part in dict.fromkeys(given) if part not in known])
    taken = set(given)
    return ",".join(part for part in present if part not in taken)


def _check_throttled(setting: Setting, replicas: Value) -> None:
    """`*` or partition:broker pairs, as Kafka's ThrottledReplicaListValidator has it."""
    if not isinstance(replicas, list) or replicas in ([], ["*"]):
        return
    for replica in replicas:
        left, colon, right = replica.partition(":")
        if not (colon and left.isdecimal() and right.isdecimal()):
            raise ConfigError(f"{setting.name}: {replica!r} is neither * nor partition:broker")


def list_setting(name: str) -> bool:
    """Whether a topic setting is a list, which APPEND and SUBTRACT need; ConfigError for an unknown name."""
    return topic_setting(name).kind == "list"
