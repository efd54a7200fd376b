"""What a reader of a stream gets at a time: messages out of fetched batches, and the position behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from duramen.client.protocol.fetch import FetchedBytes
from duramen.dlsn import Dlsn
from duramen.gateway.streams.stream_position import behind
from duramen.wire.aborted import AbortedTransactions
from duramen.wire.batch import batches, records
from duramen.wire.records.control import ControlType, decode_key

INFLATED_MAX = 128 << 20
"""Bytes that one compressed batch may become."""


class StreamPage(NamedTuple):
    """Messages in order, and where to go on. up_to_date: nothing more could be read; closed: nothing will come.

    offsets: those of the messages, where they were read from the log.
    """

    messages: list[bytes]
    position: Dlsn
    up_to_date: bool
    closed: bool
    offsets: Sequence[int] = ()


def read_page(fetched: FetchedBytes, asked: Dlsn) -> StreamPage:
    """The committed records at and behind the position asked for.

    Control records and those of aborted transactions are passed over. Behind a closing mark stands nothing, so the
    position stays in front of it: whoever held that position before the closing finds the end there, too.
    """
    aborted = AbortedTransactions(fetched.aborted)
    messages: list[bytes] = []
    offsets: list[int] = []
    position = asked
    closed = False
    for start, header in batches(fetched.data):
        batch = fetched.data[start : start + header.size]
        hidden = aborted.hides(header, batch)
        if header.is_control and header.producer_id < 0 and _is_closing(batch):
            closed = True
            break
        if not hidden and not header.is_control:
            for record in records(batch, header, max_bytes=INFLATED_MAX):
                if record.offset >= asked.offset:
                    messages.append(record.value or b"")
                    offsets.append(record.offset)
        position = behind(header.leader_epoch, header.base_offset, header.last_offset)
    up_to_date = closed or max(position.offset, fetched.next_offset) >= fetched.last_stable_offset
    return StreamPage(messages, position, up_to_date, closed, offsets)


def _is_closing(batch: memoryview) -> bool:
    first = next(records(batch, max_bytes=INFLATED_MAX), None)
    return first is not None and first.key is not None and decode_key(first.key) == ControlType.STREAM_CLOSED
