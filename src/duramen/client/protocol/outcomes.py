"""What an error means for a call: whether to try again may help, and whether the request may have taken effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from duramen.client.protocol import fetch
from duramen.client.protocol.metadata import error_code
from duramen.errors import (
    DuramenError,
    ErrorCode,
    KafkaError,
    NetworkError,
    NoConnectionError,
    NothingThereError,
    OutcomeUnknownError,
    TlsError,
)
from duramen.model import TopicPartition

MAYBE_STORED: Final = frozenset(
    (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.KAFKA_STORAGE_ERROR)
)
"""What a leader answers when it appended a batch whose fate it does not know."""


def may_help(error: DuramenError) -> bool:
    """Whether the same request may succeed later, perhaps elsewhere."""
    if isinstance(error, NetworkError):
        return not isinstance(error, NothingThereError | OutcomeUnknownError | TlsError)
    # Bytes that were damaged on the disk stay so: Kafka calls this retriable for those damaged on the way.
    return error.retriable and error.code != ErrorCode.CORRUPT_MESSAGE


def check_known(error: DuramenError, *, resend: bool) -> None:
    """OutcomeUnknownError where a request that failed so may have taken effect and may not be sent again: its
    connection was lost after it, or the node that appended a batch does not know its fate."""
    if resend or isinstance(error, NoConnectionError):
        return
    if isinstance(error, NetworkError) or (isinstance(error, KafkaError) and error.code in MAYBE_STORED):
        raise OutcomeUnknownError(str(error)) from error


def check(code: int, what: str, *, resend: bool) -> None:
    """Raise the KafkaError of a response's code if to try again may help; other codes are left to the caller.

    OutcomeUnknownError instead, as of `check_known`.
    """
    found = error_code(code)
    if found and may_help(error := KafkaError(found, f"{what}: {found.name}")):
        check_known(error, resend=resend)
        raise error


def settled(
    tps: Iterable[TopicPartition],
    answers: Mapping[TopicPartition, Any],
    error: DuramenError | None,
    found: dict[TopicPartition, Any],
) -> dict[TopicPartition, DuramenError]:
    """Put what one leader's answers say for good of its partitions into `found`; the others, with errors that may pass.

    error: instead of answers.
    """
    refused: dict[TopicPartition, DuramenError] = {}
    for tp in tps:
        answer = error or answers.get(tp) or fetch.missing(tp)
        if isinstance(answer, DuramenError) and (may_help(answer) or not isinstance(answer, KafkaError)):
            refused[tp] = answer
        else:
            found[tp] = answer
    return refused
