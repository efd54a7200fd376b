"""Error codes are found in every message that has a field for them, as deep as it is."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.worlds.message_strategies import sample

from duramen.wire.error_codes import NAME, error_codes
from duramen.wire.messages import API
from duramen.wire.schema import Message
from duramen.wire.types import Array, Struct

RESPONSES = [api.response for api in API.values()]


def slow_count(struct: Struct, value: Any, found: dict[int, int]) -> None:
    """The same by another way: look at every field of every object."""
    for field in struct.fields:
        inner = getattr(value, field.name)
        kind = field.type.element if isinstance(field.type, Array) else field.type
        if field.name == NAME and inner:
            found[inner] = found.get(inner, 0) + 1
        if isinstance(kind, Struct) and inner is not None:
            for each in inner if isinstance(inner, list) else [inner]:
                slow_count(kind, each, found)


@pytest.mark.parametrize("message", RESPONSES, ids=[message.name for message in RESPONSES])
def test_every_code_is_counted(message: Message) -> None:
    dice = Random(1)
    for _ in range(5):
        value = sample(message, message.max_version, dice)
        expected: dict[int, int] = {}
        slow_count(message.struct, value, expected)
        assert error_codes(message, value) == expected
    assert error_codes(message, message.new()) == {}


def test_produce_tells_of_each_partition() -> None:
    response = API[0].response
    one = [response.PartitionProduceResponse(index=index, error_code=code) for index, code in enumerate((0, 3, 87, 3))]
    two = [response.PartitionProduceResponse(index=0, error_code=87)]
    topics = [response.TopicProduceResponse(name="t", partition_responses=each) for each in (one, two)]
    assert error_codes(response, response.new(responses=topics)) == {3: 2, 87: 2}
