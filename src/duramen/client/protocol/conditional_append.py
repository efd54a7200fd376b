"""ConditionalAppend, an API of ours: one batch for one partition under conditions, or the closing of its stream."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code
from duramen.errors import ErrorCode
from duramen.model import TopicId, TopicPartition
from duramen.ports import Buffer
from duramen.wire.messages import API

CONDITIONAL_APPEND: Final = 10031
NO_CONDITION: Final = -1


class ConditionalAnswer(NamedTuple):
    """What the leader says; docs/protocol.md has each field. code NONE: it is stored (or there already: duplicate).

    base_offset, last_offset: of the batch, -1 unknown. end_offset: the log's end. expected_sequence: what has to come
    next from the batch's producer, -1 where that was no question; writer_epoch: its newest epoch, -1 unknown.
    is_stable: on stable storage, else in the page cache; copies: in-sync replicas that had it.
    """

    code: ErrorCode
    message: str
    base_offset: int
    last_offset: int
    end_offset: int
    leader_epoch: int
    duplicate: bool
    expected_sequence: int
    writer_epoch: int
    closed: bool
    is_stable: bool
    copies: int


def request(
    tp: TopicPartition, topic_id: TopicId, batch: Buffer | None, expected_offset: int, *, close: bool, timeout_ms: int
) -> Any:
    """The request. batch None: close alone, or ask. expected_offset: where the log has to end, or NO_CONDITION."""
    return API[CONDITIONAL_APPEND].request.new(
        topic_name=tp.topic,
        topic_id=topic_id,
        partition=tp.partition,
        timeout_ms=timeout_ms,
        expected_offset=expected_offset,
        close=close,
        records=batch,
    )


def parsed(response: Any) -> ConditionalAnswer:
    """The response as plain values."""
    return ConditionalAnswer(
        error_code(response.error_code),
        response.error_message or "",
        response.base_offset,
        response.last_offset,
        response.end_offset,
        response.leader_epoch,
        response.duplicate,
        response.expected_sequence,
        response.writer_epoch,
        response.closed,
        bool(response.durability),
        response.copies,
    )
