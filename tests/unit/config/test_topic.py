"""A topic's configuration: its own settings over the broker's."""

import pytest

from duramen.config import (
    TOPIC,
    TopicConfig,
    alter_list,
    list_setting,
    load_broker_config,
    validate_topic_config,
    validate_topic_configs,
)
from duramen.errors import ConfigError

DEFAULTS = load_broker_config(None, {})


def test_defaults_are_kafkas() -> None:
    topic = TopicConfig(DEFAULTS, {})
    assert topic.retention_ms == 604_800_000
    assert topic.retention_bytes == -1
    assert topic.segment_bytes == 1 << 30
    assert topic.segment_ms == 604_800_000
    assert topic.segment_jitter_ms == 0
    assert topic.flush_ms == topic.flush_messages == 2**63 - 1
    assert topic.max_message_bytes == 1048588
    assert topic.cleanup_policy == frozenset({"delete"})
    assert topic.compression_type == "producer"
    assert topic.durability == "stable"
    assert topic.min_cleanable_dirty_ratio == 0.5
    for name, setting in TOPIC.items():
        if not setting.internal:
            assert topic.get(name) == setting.default_value, name


@pytest.mark.parametrize(
    ("broker", "name", "value"),
    [
        ({"log.retention.hours": "2"}, "retention.ms", 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, "retention.ms", 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, "retention.ms", 4),
        ({"log.retention.hours": "-1"}, "retention.ms", -1),
        ({"log.roll.hours": "1"}, "segment.ms", 3_600_000),
        ({"log.roll.jitter.hours": "1", "log.roll.jitter.ms": "5"}, "segment.jitter.ms", 5),
        ({"log.flush.scheduler.interval.ms": "9"}, "flush.ms", 9),
        ({"message.max.bytes": "99"}, "max.message.bytes", 99),
        ({"duramen.ack.durability": "page-cache"}, "duramen.ack.durability", "page-cache"),
        ({"log.cleanup.policy": "compact"}, "cleanup.policy", ["compact"]),
    ],
)
def test_broker_settings_are_the_defaults(broker: dict[str, str], name: str, value: object) -> None:
    assert TopicConfig(load_broker_config(None, broker), {}).get(name) == value


def test_own_settings_win() -> None:
    topic = TopicConfig(
        load_broker_config(None, {"log.retention.ms": "4"}),
        {"retention.ms": "5", "cleanup.policy": "compact,delete", "duramen.ack.durability": "page-cache"},
    )
    assert topic.retention_ms == topic.get("retention.ms") == 5
    assert topic.cleanup_policy == frozenset({"compact", "delete"})
    assert topic.durability == "page-cache"


def test_what_another_server_stored_is_left_out() -> None:
    topic = TopicConfig(DEFAULTS, {"message.format.version": "2.8", "retention.ms": "5"})
    assert topic.retention_ms == 5
    with pytest.raises(ConfigError):
        topic.get("message.format.version")


def test_tiny_segments_for_tests() -> None:
    assert TopicConfig(DEFAULTS, {"internal.segment.bytes": "512"}).segment_bytes == 512


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("retention", "1", "nearest is retention"),
        ("log.retention.ms", "1", "use retention.ms"),
        ("log.dirs", "x", "it is a setting of a broker"),
        ("retention.ms", "soon", "whole number"),
        ("remote.storage.enable", "true", "no remote tier"),
        ("leader.replication.throttled.replicas", "x", "neither"),
    ],
)
def test_bad_settings(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        validate_topic_config(name, value)


def test_good_settings() -> None:
    validate_topic_config("retention.ms", "1")
    validate_topic_config("retention.ms", None)
    validate_topic_config("leader.replication.throttled.replicas", "0:1,1:2")
    validate_topic_config("leader.replication.throttled.replicas", "*")
    with pytest.raises(ConfigError, match="unknown topic setting"):
        validate_topic_config("nonsense", None)


def test_settings_are_checked_together() -> None:
    validate_topic_configs(DEFAULTS, {"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(ConfigError, match="is above"):
        validate_topic_configs(DEFAULTS, {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"})


def test_lists_grow_and_shrink() -> None:
    policy = TOPIC["cleanup.policy"]
    assert alter_list(policy, "delete", "append", "compact") == "delete,compact"
    assert alter_list(policy, "delete,compact", "append", "compact, delete") == "delete,compact"
    assert alter_list(policy, "delete,compact", "subtract", "delete") == "compact"
    assert alter_list(policy, None, "append", "compact") == "compact"
    assert alter_list(policy, "delete", "subtract", "compact") == "delete"
    with pytest.raises(ConfigError, match="not a list"):
        alter_list(TOPIC["retention.ms"], "1", "append", "2")
    assert list_setting("cleanup.policy")
    assert not list_setting("retention.ms")
