"""What became of a conditional append, as plain values: of a node's response, and of the engine in this process."""

from __future__ import annotations

from typing import NamedTuple

from duramen.errors import ErrorCode


class ConditionalAnswer(NamedTuple):
    """What the leader says; docs/protocol.md has each field. code NONE: it is stored (or there already: duplicate).

    base_offset, last_offset: of the batch, -1 unknown. end_offset: the log's end. expected_sequence: what has to come
    next from the batch's producer, -1 where that was no question; writer_epoch: its newest epoch, -1 unknown.
    is_stable: on stable storage, else in the page cache; copies: in-sync replicas that had it. last_txid: the log's
    last transaction id, 0 before the first, -1 where it has none. log_append_time_ms: of all records of the batch, -1
    where they keep their own. end_epoch: the leader epoch of the record in front of `end_offset`, -1 unknown.
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
    last_txid: int = -1
    log_append_time_ms: int = -1
    end_epoch: int = -1
