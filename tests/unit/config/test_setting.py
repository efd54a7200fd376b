"""Types, bounds and legal values: what Kafka's ConfigDef takes and refuses."""

import pytest

from duramen.config import SETTINGS, TOPIC, Setting
from duramen.errors import ConfigError

# Outcomes observed with LogConfig.validate of Apache Kafka 4.3.1.
ACCEPTED = [
    ("cleanup.policy", "", []),
    ("cleanup.policy", "compact, delete", ["compact", "delete"]),
    ("cleanup.policy", "delete,delete", ["delete"]),
    ("retention.ms", " 100 ", 100),
    ("retention.ms", "+5", 5),
    ("retention.bytes", "-5", -5),
    ("preallocate", "TRUE", True),
    ("min.cleanable.dirty.ratio", "1e-1", 0.1),
    ("compression.gzip.level", "-1", -1),
    ("internal.segment.bytes", "1000", 1000),
    ("segment.bytes", "2147483647", 2147483647),
]
REFUSED = [
    ("cleanup.policy", "delete,"),
    ("cleanup.policy", "Delete"),
    ("retention.ms", "1_0"),
    ("retention.ms", "5.0"),
    ("retention.ms", ""),
    ("retention.ms", "-2"),
    ("retention.ms", "9223372036854775808"),
    ("retention.ms", "٣"),
    ("preallocate", "yes"),
    ("preallocate", "1"),
    ("segment.bytes", "2147483648"),
    ("segment.bytes", "1000"),
    ("compression.type", "none"),
    ("compression.gzip.level", "0"),
    ("compression.gzip.level", "10"),
    ("min.cleanable.dirty.ratio", "1.1"),
    ("min.cleanable.dirty.ratio", "NaN"),
    ("min.cleanable.dirty.ratio", "Infinity"),
    ("min.cleanable.dirty.ratio", "1e999"),
    ("duramen.ack.durability", "maybe"),
]


@pytest.mark.parametrize(("name", "text", "value"), ACCEPTED)
def test_accepted(name: str, text: str, value: object) -> None:
    parsed = TOPIC[name].parse(text)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(("name", "text"), REFUSED)
def test_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=name):
        TOPIC[name].parse(text)


@pytest.mark.parametrize("setting", [*SETTINGS.values(), *TOPIC.values()], ids=lambda setting: setting.name)
def test_every_declaration_is_sound(setting: Setting) -> None:
    value = setting.default_value  # raises when the default is outside its own bounds
    text = setting.text(value)
    if text is not None:
        assert setting.parse(text) == value
    assert setting.doc.endswith(".")
    assert len(setting.doc) > 15
    assert setting.type.name.lower() == setting.kind
    assert setting.update in ("restart", "cluster-wide")
    for broker_name, factor in setting.fallbacks:
        assert SETTINGS[broker_name].kind in ("int", "long") or SETTINGS[broker_name].kind == setting.kind
        assert factor >= 1


def test_every_key_of_kafka_is_known() -> None:
    ours = {name for name in SETTINGS if name.startswith("duramen.")} | {"metrics.listener"}
    assert len(SETTINGS.keys() - ours) == 360 + 3  # KafkaConfig.configDef() of 4.3.1, and QuotaConfig's throttles
    assert sum(not name.startswith("duramen.") for name in TOPIC) == 34  # LogConfig.configDefCopy()
    assert list(TOPIC) == sorted(TOPIC)


def test_any_case_only_where_kafka_takes_it() -> None:
    assert SETTINGS["group.consumer.migration.policy"].parse("UPGRADE") == "UPGRADE"
    with pytest.raises(ConfigError, match="not one of"):
        SETTINGS["log.message.timestamp.type"].parse("createtime")


def test_password_is_neither_trimmed_nor_shown() -> None:
    setting = SETTINGS["ssl.key.password"]
    assert setting.parse(" secret ") == " secret "
    assert setting.sensitive
