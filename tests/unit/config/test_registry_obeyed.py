"""No option is ignored in silence: a setting that is not marked inert is read somewhere in the engine."""

import re
from pathlib import Path

import pytest

import duramen
from duramen.config import SETTINGS, TOPIC, Setting

PACKAGE = Path(duramen.__file__).parent
ENGINE = "\n".join(
    path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
    if path.relative_to(PACKAGE).parts[0] not in ("config", "cli")
)
# `BrokerConfig` itself turns these into what the engine reads: listeners, advertised_listeners, metrics_listener,
# node.id and log.dirs; or refuses the values that this node could not honour.
RESOLVED = {
    "advertised.listeners": "test_stock_kafka_file_starts",
    "authorizer.class.name": "test_mistakes_are_refused_with_a_remedy",
    "broker.id": "test_older_names_count_where_the_newer_is_missing",
    "controller.listener.names": "test_stock_kafka_file_starts",
    "controller.quorum.auto.join.enable": "test_mistakes_are_refused_with_a_remedy",
    "controller.quorum.voters": "test_mistakes_are_refused_with_a_remedy",
    "inter.broker.listener.name": "test_brokers_reach_each_other_on_one_listener",
    "listener.security.protocol.map": "test_mistakes_are_refused_with_a_remedy",
    "metadata.log.dir": "test_the_metadata_log_has_a_directory_of_its_own_where_one_is_named",
    "listeners": "test_stock_kafka_file_starts",
    "log.dir": "test_older_names_count_where_the_newer_is_missing",
    "metrics.listener": "test_mistakes_are_refused_with_a_remedy",
    "process.roles": "test_mistakes_are_refused_with_a_remedy",
}


def read_by_the_engine(setting: Setting) -> bool:
    """Whether its name, or the attribute of `TopicConfig` that holds its value, appears in the engine's source."""
    name = setting.name.removeprefix("duramen.")
    attribute = "durability" if name == "ack.durability" else name.replace(".", "_")
    return f'"{setting.name}"' in ENGINE or re.search(rf"\b{attribute}\b", ENGINE) is not None


def served(settings: dict[str, Setting]) -> list[Setting]:
    return [setting for setting in settings.values() if not setting.inert]


@pytest.mark.parametrize("setting", served(dict(TOPIC)), ids=lambda setting: setting.name)
def test_topic_setting_is_obeyed(setting: Setting) -> None:
    assert setting.internal or read_by_the_engine(setting)


@pytest.mark.parametrize("setting", served(dict(SETTINGS)), ids=lambda setting: setting.name)
def test_broker_setting_is_obeyed(setting: Setting) -> None:
    topics = [topic for topic in TOPIC.values() if any(name == setting.name for name, _ in topic.fallbacks)]
    assert setting.name in RESOLVED or read_by_the_engine(setting) or any(map(read_by_the_engine, topics))


@pytest.mark.parametrize("name", sorted(RESOLVED))
def test_resolved_settings_have_a_test(name: str) -> None:
    tests = (Path(__file__).parent / "test_broker.py").read_text()
    assert f"def {RESOLVED[name]}(" in tests
    assert name in tests
