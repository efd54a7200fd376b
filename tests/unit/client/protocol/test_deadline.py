"""Time limits, pauses and backoff, on a clock that the test moves."""

from __future__ import annotations

import pytest

from duramen.client.protocol.connect_backoff import LONGEST_S, ConnectBackoff
from duramen.client.protocol.deadline import LONGEST_PAUSE_S, UNKNOWN_PATIENCE_S, Deadline
from duramen.errors import DeadlineError, ErrorCode, KafkaError, NetworkError, OutcomeUnknownError

AWAY = NetworkError("away")
UNKNOWN = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_pauses_double_up_to_a_second_and_end_with_the_limit() -> None:
    now = 100.0
    deadline = Deadline("call", 5.0, now)
    pauses = []
    while deadline.end - now > LONGEST_PAUSE_S:
        pauses.append(deadline.pause_s(AWAY, now))
        now += pauses[-1]
    with pytest.raises(DeadlineError, match="call: not done within 5 s: away") as late:
        deadline.pause_s(AWAY, now)
    assert late.value.last is AWAY
    assert pauses[:3] == [0.02, 0.04, 0.08]
    assert pauses[-1] == LONGEST_PAUSE_S


@pytest.mark.parametrize(
    "error",
    [OutcomeUnknownError("lost"), KafkaError(ErrorCode.CORRUPT_MESSAGE), KafkaError(ErrorCode.MESSAGE_TOO_LARGE)],
)
def test_what_cannot_help_is_not_tried(error: KafkaError) -> None:
    with pytest.raises(type(error)) as raised:
        Deadline("call", 5.0, 0.0).pause_s(error, 0.0)
    assert raised.value is error


def test_a_topic_is_looked_for_a_moment_from_when_it_is_missing() -> None:
    deadline = Deadline("call", 60.0, 0.0)
    deadline.pause_s(UNKNOWN, 0.0)
    deadline.pause_s(UNKNOWN, UNKNOWN_PATIENCE_S)
    deadline.pause_s(AWAY, 5.0)
    deadline.pause_s(UNKNOWN, 6.0)
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        deadline.pause_s(UNKNOWN, 6.1 + UNKNOWN_PATIENCE_S)


def test_an_address_that_fails_is_left_alone_for_longer_each_time() -> None:
    backoff = ConnectBackoff()
    assert not backoff.holds(0.0)
    backoff.failed("refused", 1.0)
    assert (backoff.holds(1.01), backoff.holds(1.03), backoff.reason) == (True, False, "refused")
    for _ in range(9):
        backoff.failed("refused", 2.0)
    assert (backoff.holds(1.99 + LONGEST_S), backoff.holds(2.01 + LONGEST_S)) == (True, False)
