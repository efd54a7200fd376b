"""OpenWriter, an API of ours: an exclusive partition is opened for one writer alone, or given up."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code
from duramen.errors import KafkaError
from duramen.model import TopicId, TopicPartition
from duramen.wire.messages import API

OPEN_WRITER: Final = 10030
NO_TXID: Final = -1


class WriterOpening(NamedTuple):
    """Who may write from now on; producer_id -1: nobody. end_offset: where the log ends after what says so.

    last_txid: the log's last transaction id, 0 before the first, NO_TXID where there are none.
    """

    producer_id: int
    end_offset: int
    leader_epoch: int
    last_txid: int


def request(tp: TopicPartition, topic_id: TopicId, name: str, timeout_ms: int, *, give_up: int | None = None) -> Any:
    """The request. give_up: instead of an opening, the producer id that is given up; then `name` may be empty."""
    return API[OPEN_WRITER].request.new(
        topic_name=tp.topic,
        topic_id=topic_id,
        partition=tp.partition,
        name=name,
        timeout_ms=timeout_ms,
        release=give_up is not None,
        producer_id=-1 if give_up is None else give_up,
    )


def parsed(response: Any) -> WriterOpening:
    """What was opened or given up; KafkaError when it was refused."""
    code = error_code(response.error_code)
    if code:
        raise KafkaError(code, response.error_message or code.name)
    return WriterOpening(response.producer_id, response.end_offset, response.leader_epoch, response.last_txid)
