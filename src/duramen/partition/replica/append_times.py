"""Timestamps that a topic gives to what is appended: the time of the append, or transaction ids (`duramen.txid`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from duramen.config import TopicConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.model import FIRST_SINK_PRODUCER_ID, NO_TIMESTAMP, TopicPartition
from duramen.partition.replica.batch_rules import TxidRefusedError, check_txid
from duramen.wire.batch import TRANSACTIONAL, BatchHeader, parse_header, stamp_append_time


class TimedSegment(Protocol):
    """What of a segment tells the last transaction id: the greatest timestamp of its records, -1 for none."""

    max_timestamp: int


def sets_timestamps(config: TopicConfig) -> bool:
    """Whether `stamp_batch` has anything to do."""
    return config.message_timestamp_type == "LogAppendTime" or config.txid != "none"


def find_last_txid(config: TopicConfig, segments: Iterable[TimedSegment]) -> int | None:
    """The greatest transaction id that is stored, 0 where there is none; None: the topic has none.

    What is stored need not be in order where it is older than the setting.
    """
    return None if config.txid == "none" else max(0, *(segment.max_timestamp for segment in segments))


def stamp_batch(
    tp: TopicPartition, config: TopicConfig, last_txid: int | None, view: memoryview, header: BatchHeader, now_ms: int
) -> tuple[BatchHeader, int]:
    """Give a batch the topic's own timestamps, or check those it has: what its header says then, and the timestamp
    of all its records (-1: they keep their own).

    Raises KafkaError: TxidRefusedError for a transaction id below the last; POLICY_VIOLATION for a transaction,
    whose records would be read in another order than they are stored in.
    """
    if last_txid is None:
        if config.message_timestamp_type != "LogAppendTime":
            return header, NO_TIMESTAMP
    elif header.attributes & TRANSACTIONAL:
        no = f"{tp}: a topic with duramen.txid={config.txid} takes no transactions"
        raise KafkaError(ErrorCode.POLICY_VIOLATION, no)
    elif config.txid == "application" and header.producer_id < FIRST_SINK_PRODUCER_ID:
        why = check_txid(header.max_timestamp, last_txid)
        if why is not None:
            raise TxidRefusedError([(0, why)], last_txid)
        return header, NO_TIMESTAMP
    else:  # a sink's were staged when the topic had other settings
        now_ms = max(last_txid, now_ms, 1)
    stamp_append_time(view, now_ms)
    return parse_header(view), now_ms
