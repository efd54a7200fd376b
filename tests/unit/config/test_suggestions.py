"""What is said of a name that nobody knows, and what it costs: a request may bring thousands of them."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from duramen.config import alter_list, topic_setting
from duramen.config.registry import SETTINGS, TOPIC
from duramen.config.suggestions import LONGEST, Nearest
from duramen.errors import ConfigError


def steps(work: Callable[[], object]) -> int:
    """Calls, of Python and of C, that the work makes."""
    count = 0

    def step(*_: object) -> None:
        nonlocal count
        count += 1

    sys.setprofile(step)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("retention.mss", "retention.ms"),
        ("retention_ms", "retention.ms"),
        ("cleanup.polcy", "cleanup.policy"),
        ("compresion.type", "compression.type"),
        ("segmentbytes", "segment.bytes"),
        ("max.message.size", "max.message.bytes"),
        ("foo", None),
        ("", None),
        ("retention.ms" * LONGEST, None),
    ],
)
def test_the_nearest_name_is_told_if_one_is_near(name: str, meant: str | None) -> None:
    assert Nearest(TOPIC).to(name) == meant
    with pytest.raises(ConfigError, match=f"nearest is {meant}$" if meant else f"unknown topic setting {name}$"):
        topic_setting(name)


def test_every_name_is_nearest_to_itself() -> None:
    known = Nearest(SETTINGS)
    assert [name for name in SETTINGS if len(name) > 2 and known.to(name + "s") is None] == []


def test_a_misspelt_name_costs_little() -> None:
    """A request creates up to 10,000 topics, each with a setting of its own that nobody knows."""

    def fail() -> None:
        with pytest.raises(ConfigError):
            topic_setting("retention.interval.msss")

    fail()  # what is made once
    assert steps(fail) < 600


def test_long_lists_are_altered_in_one_pass() -> None:
    class Counted(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

        def split(self, *_: object) -> list[str]:
            return [Counted(part) for part in str.split(self, ",")]

        def strip(self, *_: object) -> str:
            return self

    setting = TOPIC["leader.replication.throttled.replicas"]
    present = Counted(",".join(f"{number}:1" for number in range(2000)))
    given = Counted(",".join(f"{number}:2" for number in range(2000)))
    assert alter_list(setting, present, "append", given).count(",") == 3999
    assert alter_list(setting, present, "subtract", given) == present
    assert Counted.compared < 20_000
