"""Messages of our own key range: what goes in comes out, and Kafka's keys stay Kafka's."""

from __future__ import annotations

from random import Random

import pytest
from tests.worlds.message_strategies import CASES, OWN, sample

from duramen.wire import messages
from duramen.wire.schema import Message


@pytest.mark.parametrize("message", sorted(OWN, key=lambda each: each.name), ids=lambda each: each.name)
def test_what_is_encoded_is_decoded(message: Message) -> None:
    for seed in range(50):
        value = sample(message, 0, Random(seed))
        assert message.decode(message.encode(value, 0), 0) == value


def test_own_messages_are_flexible_from_the_start() -> None:
    assert {m.flexible_from for m, _ in CASES if m in OWN} == {0}


def test_own_keys_fit_the_protocol_and_lie_far_above_kafkas() -> None:
    own = [key for key in messages.API if key >= messages.OWN_KEYS]
    assert own
    assert max(own) < 1 << 15
    assert max(key for key in messages.API if key < messages.OWN_KEYS) < 1000
