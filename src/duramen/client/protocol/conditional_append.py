"""ConditionalAppend, an API of ours: one batch for one partition under conditions, or the closing of its stream."""

from __future__ import annotations

from typing import Any, Final

from duramen.client.protocol.metadata import error_code
from duramen.dlsn import LogEnd
from duramen.model import NO_PRODUCER_ID, TopicId, TopicPartition
from duramen.ports import Buffer
from duramen.wire.conditional_answer import ConditionalAnswer
from duramen.wire.messages import API

CONDITIONAL_APPEND: Final = 10031

__all__ = ["CONDITIONAL_APPEND", "ConditionalAnswer", "parsed", "request"]


def request(
    tp: TopicPartition,
    topic_id: TopicId,
    batch: Buffer | None,
    expected: LogEnd,
    *,
    close: bool,
    timeout_ms: int,
    producer_id: int = NO_PRODUCER_ID,
) -> Any:
    """The request. batch None: close alone, or ask. expected: where the log has to end, or ANYWHERE.

    producer_id: who closes an exclusive topic alone, or who is asked about (`producers.progress_in`).
    """
    return API[CONDITIONAL_APPEND].request.new(
        topic_name=tp.topic,
        topic_id=topic_id,
        partition=tp.partition,
        timeout_ms=timeout_ms,
        expected_offset=expected.offset,
        expected_epoch=expected.epoch,
        close=close,
        records=batch,
        producer_id=producer_id,
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
        response.last_txid,
        response.log_append_time_ms,
        response.end_epoch,
    )
