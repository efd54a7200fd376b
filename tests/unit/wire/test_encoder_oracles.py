"""Every declared message in every version against two independent codecs: kio and kafka-python."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest
from hypothesis import given
from tests.worlds.message_strategies import (
    KAFKA_CASE_IDS,
    KAFKA_CASES,
    few,
    kio_class,
    kio_fields,
    kio_read,
    kio_write,
    objects,
    plain,
    present,
)

from duramen.wire.messages import API
from duramen.wire.schema import Message
from duramen.wire.types import UUID, Struct

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it reads its schemas in a way that Python is giving up
    KAFKA_PYTHON = [
        importlib.import_module(f"kafka.protocol.{name}")
        for name in ("admin", "consumer", "metadata", "producer", "sasl")
    ]

UNKNOWN_TO_KAFKA_PYTHON = {
    f"{API[key].name}{kind}"
    for key in (52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 68, 69, 70, 73, 80, 81, 82)
    for kind in ("Request", "Response")
}
"""What only brokers and controllers say to each other, and what members of consumer groups say."""


def kafka_python_class(name: str) -> Any:
    """kafka-python's class of that name, None where it has none."""
    return next((getattr(module, name) for module in KAFKA_PYTHON if hasattr(module, name)), None)


def same_name(ours: str, theirs: str) -> bool:
    """kio drops the unit of durations and times, whose type it turns into timedelta and datetime; id is `id_`."""
    return ours == theirs.rstrip("_") or ours in (f"{theirs}_ms", f"{theirs}_timestamp_ms", f"{theirs}_timestamp")


def assert_same(struct: Struct, version: int, ours: Any, theirs: Any) -> None:
    """Field by field, by name: a swap of two fields of one type shows here, not in the bytes."""
    for field, counterpart in zip(present(struct, version), kio_fields(type(theirs)), strict=True):
        assert same_name(field.name, counterpart.name), (field.name, counterpart.name)
        mine, other = getattr(ours, field.name), getattr(theirs, counterpart.name)
        inner = getattr(field.type, "element", field.type)
        if mine is None or other is None:
            empty = mine is None or mine in (bytes(16), -1)
            assert empty
            assert other is None
        elif isinstance(inner, Struct):
            pairs = zip(mine, other, strict=True) if isinstance(mine, list) else [(mine, other)]
            for mine_item, other_item in pairs:
                assert_same(inner, version, mine_item, other_item)
        elif inner is UUID and isinstance(mine, list):
            assert mine == [bytes(16) if each is None else plain(each) for each in other]
        else:
            assert mine == plain(other)


@pytest.mark.parametrize(("message", "version"), KAFKA_CASES, ids=KAFKA_CASE_IDS)
def test_kio_agrees_byte_for_byte(message: Message, version: int) -> None:
    theirs = kio_class(message, version)

    @few
    @given(objects(message, message.struct, version, theirs))
    def check(value: Any) -> None:
        data = message.encode(value, version)
        parsed = kio_read(theirs, data)
        assert_same(message.struct, version, value, parsed)
        assert kio_write(theirs, parsed) == data
        assert message.decode(data, version) == value

    check()


@pytest.mark.parametrize(("message", "version"), KAFKA_CASES, ids=KAFKA_CASE_IDS)
def test_kafka_python_agrees_byte_for_byte(message: Message, version: int) -> None:
    theirs = kafka_python_class(message.name)
    assert (theirs is None) == (message.name in UNKNOWN_TO_KAFKA_PYTHON)
    if theirs is None:
        return

    @few
    @given(objects(message, message.struct, version, kio_class(message, version)))
    def check(value: Any) -> None:
        if message.name == "ApiVersionsResponse":
            value.error_code = 0  # it takes a response with an error for one of version 0, whatever it asked for
        data = message.encode(value, version)
        parsed = theirs.decode(data, version=version)
        parsed._header = None  # its decoder leaves this unset, its encoder reads it
        assert bytes(parsed.encode(version=version)) == data

    check()
