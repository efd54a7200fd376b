"""Who may write to an exclusive topic: the producer id that its partition was opened for last, and nobody else.

It begins with sequence 0, and is known for as long as it is the one: so of appends that leave together none overtakes
another, and none is stored twice.
"""

from __future__ import annotations

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicPartition
from duramen.storage import ProducerStates
from duramen.wire.batch import BatchHeader


def check_exclusive_writer(tp: TopicPartition, producers: ProducerStates, header: BatchHeader) -> None:
    """PRODUCER_FENCED for a batch of anybody else; OUT_OF_ORDER_SEQUENCE_NUMBER for its first one with another sequence
    than 0: what comes before it is still under way, or was lost.
    """
    check_exclusive(tp, producers, header.producer_id)
    if header.base_sequence != 0 and producers.get(header.producer_id) is None:
        raise KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"{tp}: the writer {header.producer_id} has stored nothing, and begins with sequence 0",
        )


def check_exclusive(tp: TopicPartition, producers: ProducerStates, producer_id: int) -> None:
    """PRODUCER_FENCED unless it is the writer's id. The message names who has it."""
    stream = producers.stream
    writer = None if stream is None else stream.writer
    if writer is None or writer.producer_id < 0:
        raise KafkaError(
            ErrorCode.PRODUCER_FENCED, f"{tp} is exclusive, and no writer has opened it; its writer opens it first"
        )
    if producer_id != writer.producer_id:
        since = f"since offset {writer.offset}"
        raise KafkaError(ErrorCode.PRODUCER_FENCED, f"{tp} belongs to the writer {writer.name!r} {since}")
