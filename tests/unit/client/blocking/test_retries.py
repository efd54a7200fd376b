"""Trying again: what passes, and for how long."""

from __future__ import annotations

import time

import pytest

from duramen.client.blocking.connection_pool import ConnectionPool
from duramen.client.blocking.retries import Retries
from duramen.client.protocol.deadline import UNKNOWN_PATIENCE_S
from duramen.client.protocol.routes import ANY
from duramen.errors import ErrorCode, KafkaError, NetworkError


def test_a_topic_is_looked_for_from_when_it_is_missing_and_not_from_when_its_node_was() -> None:
    """A node that was away longer than that is the one that may need the moment."""
    attempts = Retries(ConnectionPool("127.0.0.1:1", "test", 1 << 20), 60, 1)
    begun = time.monotonic()
    missed: list[float] = []

    def attempt(_: float) -> str:
        if time.monotonic() - begun < 1.1 * UNKNOWN_PATIENCE_S:
            raise NetworkError("away")
        if not missed:
            missed.append(time.monotonic())
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return "found"

    assert attempts.retry("call", ANY, attempt) == "found"

    def never(_: float) -> str:
        missed.append(time.monotonic())
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    missed.clear()
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        attempts.retry("call", ANY, never)
    assert missed[-1] - missed[0] > UNKNOWN_PATIENCE_S


def test_a_topic_that_was_missing_before_its_node_was_away_gets_the_whole_moment_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a node said before it started again tells nothing of what it knows now."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    attempts = Retries(ConnectionPool("127.0.0.1:1", "test", 1 << 20), 60, 1)
    unknown = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    answers = iter([unknown, NetworkError("away"), unknown, unknown, None])

    def attempt(_: float) -> str:
        nonlocal now
        now += 0.6 * UNKNOWN_PATIENCE_S
        if (error := next(answers)) is not None:
            raise error
        return "found"

    assert attempts.retry("call", ANY, attempt) == "found"
