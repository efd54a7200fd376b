"""A member of a group that waits for its node, and lets the group go on without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from duramen.cli.shared import retry
from duramen.cli.shared.retry import Patience
from duramen.errors import DeadlineError, NetworkError
from duramen.swaps import PendingCommitsError


@pytest.fixture(autouse=True)
def passed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were slept, on a clock of its own: other threads of the process keep theirs."""
    slept: list[float] = []
    monkeypatch.setattr(retry, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept)))
    return slept


def failing(error: Exception, times: int) -> Callable[[], str]:
    left = [times]

    def what() -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise error
        return "answer"

    return what


def kafka(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


@pytest.mark.parametrize(
    "error",
    [
        kafka(KafkaError._WAIT_COORD),
        kafka(KafkaError._TRANSPORT),
        kafka(KafkaError.COORDINATOR_LOAD_IN_PROGRESS),
        kafka(KafkaError.NOT_COORDINATOR),
        NetworkError("hung up"),
        DeadlineError("not done within 30 s", NetworkError("hung up")),
    ],
)
def test_a_node_that_is_away_is_asked_again(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit that met a restart of the node ended `duramen consume --group --follow`."""
    done: list[str] = []
    assert Patience(math.inf).ask(failing(error, 300)) == "answer"
    assert capsys.readouterr().err.count("waiting for the node") == 1
    work = failing(error, 3)
    Patience(math.inf).commit(lambda: done.append(work()))
    assert done == ["answer"]
    with pytest.raises(type(error)):
        Patience(1.0).ask(failing(error, 300))


@pytest.mark.parametrize("code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION])
def test_a_commit_that_comes_too_late_is_no_error(code: int, passed: list[float]) -> None:
    Patience(1.0).commit(failing(kafka(code), 9))
    assert passed == [], "it is not tried again: the records are another member's by now"
    with pytest.raises(KafkaException):
        Patience(1.0).ask(failing(kafka(code), 9))


def test_other_errors_end_it(passed: list[float]) -> None:
    for error in (kafka(KafkaError.GROUP_AUTHORIZATION_FAILED), kafka(KafkaError.TOPIC_AUTHORIZATION_FAILED)):
        with pytest.raises(KafkaException):
            Patience(math.inf).commit(failing(error, 1))
    assert passed == []


def test_offsets_that_are_pending_are_waited_for_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    pending = PendingCommitsError("audit")
    assert Patience(math.inf).ask(failing(pending, 300)) == "answer"
    assert capsys.readouterr().err.startswith("waiting for the group: the offsets of group audit are pending")
    with pytest.raises(PendingCommitsError):
        Patience(1.0).ask(failing(pending, 300))
