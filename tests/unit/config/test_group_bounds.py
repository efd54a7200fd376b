"""Settings of groups: over the broker's, within its bounds."""

from __future__ import annotations

import pytest

from duramen.config import GROUP, SETTINGS, describe_group, group_config, load_broker_config, validate_group_configs
from duramen.config.group import bounds
from duramen.errors import ConfigError

SESSION, HEARTBEAT, ASSIGNMENT = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "consumer.assignment.interval.ms",
)
BROKER = load_broker_config(None)


def test_each_has_a_setting_of_the_broker_with_its_default_and_bounds() -> None:
    for name, setting in GROUP.items():
        ((fallback, factor),) = setting.fallbacks
        assert (SETTINGS[fallback].default, factor) == (setting.default, 1)
        assert SETTINGS[fallback].low == setting.low
        assert all(each in SETTINGS for each in bounds(name))


def test_what_holds() -> None:
    assert group_config(BROKER, {}) == (45_000, 5_000, 1_000)
    assert group_config(BROKER, {SESSION: "50000", ASSIGNMENT: "0"}) == (50_000, 5_000, 0)
    other = load_broker_config(None, {"group.consumer.session.timeout.ms": "46000"})
    assert group_config(other, {HEARTBEAT: "6000"}) == (46_000, 6_000, 1_000)


def test_bounds_that_the_broker_got_later_limit_what_is_stored() -> None:
    narrow = load_broker_config(
        None,
        {
            "group.consumer.max.session.timeout.ms": "50000",
            "group.consumer.min.heartbeat.interval.ms": "5500",
            "group.consumer.heartbeat.interval.ms": "6000",
        },
    )
    assert group_config(narrow, {SESSION: "60000", HEARTBEAT: "5000"}) == (50_000, 5_500, 1_000)


def test_a_stored_value_that_is_none_is_passed_over() -> None:
    assert group_config(BROKER, {SESSION: "soon"}) == (45_000, 5_000, 1_000)


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ({"no.such": "1"}, "Unknown group config name: no.such"),
        ({"share.session.timeout.ms": "50000"}, "Unknown group config name: share.session.timeout.ms"),
        ({SESSION: "x"}, "consumer.session.timeout.ms=x is not a whole number"),
        ({SESSION: "0"}, "out of bounds"),
        ({SESSION: "44999"}, f"{SESSION} must be greater than or equal to group.consumer.min.session.timeout.ms"),
        ({SESSION: "60001"}, f"{SESSION} must be less than or equal to group.consumer.max.session.timeout.ms"),
        ({HEARTBEAT: "4999"}, f"{HEARTBEAT} must be greater than or equal to group.consumer.min.heartbeat.interval.ms"),
        ({HEARTBEAT: "15001"}, f"{HEARTBEAT} must be less than or equal to group.consumer.max.heartbeat.interval.ms"),
        ({ASSIGNMENT: "-1"}, "out of bounds"),
        (
            {ASSIGNMENT: "15001"},
            f"{ASSIGNMENT} must be less than or equal to group.consumer.max.assignment.interval.ms",
        ),
    ],
)
def test_refusals(own: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        validate_group_configs(BROKER, own, own)


def test_a_session_is_longer_than_the_time_between_heartbeats() -> None:
    wide = load_broker_config(
        None,
        {
            "group.consumer.min.session.timeout.ms": "10000",
            "group.consumer.max.heartbeat.interval.ms": "20000",
            "group.consumer.min.heartbeat.interval.ms": "1000",
        },
    )
    with pytest.raises(ConfigError, match=f"{SESSION} must be greater than {HEARTBEAT}"):
        validate_group_configs(wide, {SESSION: "10000", HEARTBEAT: "10000"}, [HEARTBEAT])
    validate_group_configs(wide, {SESSION: "10001", HEARTBEAT: "10000"}, [HEARTBEAT])


def test_what_a_kafka_left_of_share_groups_holds_up_nothing() -> None:
    validate_group_configs(BROKER, {"share.session.timeout.ms": "50000", SESSION: "50000"}, [SESSION])


def test_described_with_sources() -> None:
    own = load_broker_config("group.consumer.heartbeat.interval.ms=6000")
    told = {entry.name: entry for entry in describe_group(own, {SESSION: "50000"})}
    assert list(told) == sorted(GROUP)
    assert (told[SESSION].value, told[SESSION].source, told[SESSION].read_only) == ("50000", 8, False)
    assert told[SESSION].synonyms == ((SESSION, "50000", 8), (f"group.{SESSION}", "45000", 5))
    assert (told[HEARTBEAT].value, told[HEARTBEAT].source) == ("6000", 4)
    assert told[HEARTBEAT].synonyms == ((f"group.{HEARTBEAT}", "6000", 4), (f"group.{HEARTBEAT}", "5000", 5))
    assert (told[ASSIGNMENT].value, told[ASSIGNMENT].source) == ("1000", 5)
