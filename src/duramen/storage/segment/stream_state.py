"""What control records of ours say of a log: that it is closed, and who alone may write to it.

Like the state of producers it is a cache of the log: the records lie in it, are replicated and read again with it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from duramen.errors import KafkaError
from duramen.ports import Buffer
from duramen.wire.batch import BatchHeader, records
from duramen.wire.errors import DecodeError
from duramen.wire.records import control
from duramen.wire.records.control import FIRST_OWN_TYPE, ControlType
from duramen.wire.records.versioned import Unknown


class ExclusiveWriter(NamedTuple):
    """Whom a log was opened for last. offset: of the record that says so; producer_id -1: it was given up."""

    producer_id: int
    epoch: int
    name: str
    offset: int


class StreamState(NamedTuple):
    """closed_at: offset of the record that closed the log; None while it is open."""

    closed_at: int | None = None
    writer: ExclusiveWriter | None = None


def stream_after(stream: StreamState | None, data: Buffer, header: BatchHeader) -> StreamState | None:
    """The state behind a control batch without a producer; the same object where that says nothing of it.

    A type or version that is not known here, or a record that cannot be read, says nothing.
    """
    try:
        kind, message = _record(data, header)
    except (KafkaError, DecodeError):
        return stream
    before = stream or StreamState()
    if kind == ControlType.STREAM_CLOSED and before.closed_at is None:
        return before._replace(closed_at=header.base_offset)
    if kind == ControlType.WRITER_OPENED and not isinstance(message, Unknown):
        writer = ExclusiveWriter(message.producer_id, message.producer_epoch, message.name, header.base_offset)
        return before._replace(writer=writer)
    return stream


def _record(data: Buffer, header: BatchHeader) -> tuple[int, Any]:
    for record in records(data, header, max_bytes=len(data)):
        if record.key is not None and control.decode_key(record.key) >= FIRST_OWN_TYPE:
            return control.decode(record.key, record.value or b"")
    return -1, None
