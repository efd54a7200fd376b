"""Refusals that rest on what a log holds: they are told when that is committed.

What another leader does not have was never there: nobody is to stop for its sake, or to look for an end that is none.
Who waits so is told that another node leads; nothing of what it sent is stored.
"""

from __future__ import annotations

from collections.abc import Set
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from duramen.errors import ErrorCode, KafkaError, StreamClosedError

if TYPE_CHECKING:
    from duramen.partition.replica.parked_appends import Appended, Done

FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED})
OF_THE_LOG: Final = FENCED | {
    ErrorCode.END_IS_ELSEWHERE,
    ErrorCode.OFFSET_OUT_OF_RANGE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TIMESTAMP,
}


class ParkedRefusals(Protocol):
    """What this needs of a partition."""

    @property
    def log_end_offset(self) -> int: ...

    def park(self, end: int, acks: int, done: Done, answer: Appended | KafkaError) -> None: ...


def refuse(partition: ParkedRefusals, error: KafkaError, done: Done, waits: Set[ErrorCode] = FENCED) -> None:
    """Tell `done` the error; one of the codes in `waits`, and that the log is closed, once all of the log is committed.

    KafkaErrors instead: NOT_LEADER_OR_FOLLOWER, and what else ends the wait of an append.
    """
    if isinstance(error, StreamClosedError) or error.code in waits:
        partition.park(partition.log_end_offset, -1, partial(_tell, done), error)
    else:
        done(error)


def _tell(done: Done, answer: Appended | KafkaError) -> None:
    if isinstance(answer, KafkaError) and answer.code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
        answer = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS, f"it was not looked at: {answer.message}")
    done(answer)
