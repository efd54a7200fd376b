"""Decides blocks of producer ids: each is in the log before the first of its ids is given out."""

from __future__ import annotations

from typing import Final

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import LogRecord
from duramen.machines.metadata import codec
from duramen.machines.metadata.brokers import registered
from duramen.machines.metadata.commands import AllocateProducerIds, ProducerIds, SkipProducerIds
from duramen.machines.metadata.image import MetadataImage
from duramen.model import FIRST_NAMED_PRODUCER_ID

PRODUCER_ID_BLOCK: Final = 1000
"""Producer ids handed to a broker at once, as in Kafka."""


def allocate(image: MetadataImage, command: AllocateProducerIds) -> tuple[list[LogRecord], ProducerIds]:
    """The record that uses up the next block, and the block."""
    registered(image, command.node_id, command.broker_epoch)
    first = image.next_producer_id
    if first > FIRST_NAMED_PRODUCER_ID - PRODUCER_ID_BLOCK:
        raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "Exhausted all producer ids.")
    record = codec.producer_ids(command.node_id, command.broker_epoch, first + PRODUCER_ID_BLOCK)
    return [record], ProducerIds(first, PRODUCER_ID_BLOCK)


def skip_producer_ids(image: MetadataImage, command: SkipProducerIds) -> tuple[list[LogRecord], None]:
    """The record behind which no id below `least` is handed out."""
    if command.least <= image.next_producer_id:
        return [], None
    return [codec.producer_ids(command.node_id, -1, command.least)], None
