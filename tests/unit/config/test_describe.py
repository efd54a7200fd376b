"""DescribeConfigs: every setting with value, source, synonyms, type and read-only flag."""

import pytest

from duramen.config import (
    SETTINGS,
    TOPIC,
    ConfigEntry,
    describe_broker,
    describe_broker_default,
    describe_topic,
    load_broker_config,
)

DEFAULTS = load_broker_config(None, {})


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(found for found in entries if found.name == name)


def test_every_setting_is_told() -> None:
    assert [e.name for e in describe_topic(DEFAULTS, {})] == [n for n, s in TOPIC.items() if not s.internal]
    assert [e.name for e in describe_broker(DEFAULTS)] == [n for n, s in SETTINGS.items() if not s.internal]


def test_topic_setting_of_its_own() -> None:
    found = entry(describe_topic(DEFAULTS, {"segment.bytes": "2000000"}), "segment.bytes")
    assert (found.value, found.source, found.read_only) == ("2000000", 1, False)
    assert found.type.name == "INT"
    assert found.synonyms == (("segment.bytes", "2000000", 1), ("log.segment.bytes", "1073741824", 5))


def test_topic_setting_from_the_broker() -> None:
    config = load_broker_config("log.segment.bytes=3000000", {}).with_dynamic({"log.segment.bytes": "4000000"})
    config = config.with_dynamic({"log.segment.bytes": "5000000"}, cluster_default=True)
    found = entry(describe_topic(config, {}), "segment.bytes")
    assert (found.value, found.source) == ("4000000", 2)
    assert [(s.value, s.source) for s in found.synonyms] == [
        ("4000000", 2),
        ("5000000", 3),
        ("3000000", 4),
        ("1073741824", 5),
    ]


def test_hours_become_milliseconds_and_name_their_source() -> None:
    found = entry(describe_topic(load_broker_config("log.retention.hours=2", {}), {}), "retention.ms")
    assert (found.value, found.source) == ("7200000", 4)
    assert found.synonyms == (("log.retention.hours", "2", 4),)
    assert entry(describe_topic(DEFAULTS, {}), "retention.ms").synonyms == ()
    assert entry(describe_topic(DEFAULTS, {}), "local.retention.ms").synonyms == (("log.local.retention.ms", "-2", 5),)
    assert entry(describe_topic(DEFAULTS, {}), "retention.ms").source == 5


def test_defaults_of_older_names_stand_behind_the_one_that_is_set() -> None:
    config = load_broker_config("log.retention.ms=5", {})
    expected = (("log.retention.ms", "5", 4), ("log.retention.hours", "168", 5))
    assert entry(describe_topic(config, {}), "retention.ms").synonyms == expected
    assert entry(describe_broker(config), "log.retention.ms").synonyms == expected


@pytest.mark.parametrize("given", ["node.id=7", "broker.id=7"])
def test_who_sets_one_of_the_ids_has_set_both(given: str) -> None:
    broker = describe_broker(load_broker_config(given, {}))
    for name in ("node.id", "broker.id"):
        assert (entry(broker, name).value, entry(broker, name).source) == ("7", 4)
    assert entry(describe_broker(DEFAULTS), "broker.id").value == "1"


def test_inert_settings_are_read_only() -> None:
    assert entry(describe_topic(DEFAULTS, {}), "remote.storage.enable").read_only
    broker = describe_broker(load_broker_config("num.io.threads=9", {}))
    found = entry(broker, "num.io.threads")
    assert (found.value, found.source, found.read_only) == ("9", 4, True)
    assert "without effect" in found.documentation
    assert entry(broker, "num.partitions").read_only
    assert not entry(broker, "message.max.bytes").read_only
    assert entry(broker, "leader.replication.throttled.rate").read_only, "though tools may set it and clear it"


def test_passwords_are_never_told() -> None:
    found = entry(describe_broker(load_broker_config("ssl.key.password=hush", {})), "ssl.key.password")
    assert found.is_sensitive
    assert found.value is None
    assert found.synonyms == (("ssl.key.password", None, 4),)
    assert "hush" not in repr(found)


def test_values_are_texts_as_kafka_writes_them() -> None:
    broker = describe_broker(DEFAULTS)
    assert entry(broker, "auto.create.topics.enable").value == "true"
    assert entry(broker, "log.cleaner.io.max.bytes.per.second").value == "1.7976931348623157E308"
    assert entry(broker, "ssl.enabled.protocols").value == "TLSv1.2,TLSv1.3"
    assert entry(broker, "log.retention.ms").value is None
    assert {e.type.name for e in broker} >= {"BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS"}


def test_cluster_wide_defaults() -> None:
    assert describe_broker_default(DEFAULTS) == []
    config = DEFAULTS.with_dynamic({"message.max.bytes": "9"}, cluster_default=True)
    (found,) = describe_broker_default(config)
    assert (found.name, found.value, found.source, found.read_only) == ("message.max.bytes", "9", 3, False)
