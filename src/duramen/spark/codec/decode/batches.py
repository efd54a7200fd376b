"""The headers of many record batches as columns, and which of the batches a reader may see.

Opening nothing: what lies outside of the asked offsets, what is a control batch and what belongs to an aborted
transaction is known from the header, and is neither checked by CRC nor inflated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from duramen.errors import ErrorCode, KafkaError
from duramen.spark.codec.decode.varints import Ints
from duramen.wire.aborted import AbortedTransaction, AbortedTransactions
from duramen.wire.batch import (
    APPEND_TIME,
    COMPRESSION_MASK,
    CONTROL,
    CRC_START,
    HEADER_SIZE,
    LOG_OVERHEAD,
    TRANSACTIONAL,
    batches,
)
from duramen.wire.checksum import crc32c

_HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("count", ">i4"),
    ]
)
_RECORD_BYTES_MIN: Final = 7


class Headers(NamedTuple):
    """One row per batch, int64 each: `position` and `size` in bytes, `records` how many, the rest as in the format."""

    position: Ints
    size: Ints
    base_offset: Ints
    last_offset: Ints
    attributes: Ints
    base_timestamp: Ints
    max_timestamp: Ints
    producer_id: Ints
    records: Ints
    crc: Ints

    @property
    def codec(self) -> Ints:
        """Compression codec numbers."""
        return self.attributes & COMPRESSION_MASK

    @property
    def append_time(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether every record has the batch's greatest timestamp instead of its own."""
        set_at_append: np.ndarray[Any, np.dtype[np.bool_]] = (self.attributes & APPEND_TIME) != 0
        return set_at_append

    def only(self, chosen: Any) -> Headers:
        """The batches at these indexes, or where this mask is true."""
        return Headers(*(column[chosen] for column in self))


def read_headers(data: memoryview) -> Headers:
    """The headers of every whole batch; a partial one at the end is left out.

    Raises KafkaError CORRUPT_MESSAGE at a header that cannot be true.
    """
    position = np.fromiter((at for at, _ in batches(data)), np.int64)
    if not position.size:
        return Headers(*(np.empty(0, np.int64) for _ in Headers._fields))
    raw = np.frombuffer(data, np.uint8)[position[:, None] + np.arange(HEADER_SIZE)].reshape(-1).view(_HEADER)

    def column(name: str) -> Ints:
        numbers: Ints = raw[name].astype(np.int64)
        return numbers

    return Headers(
        position=position,
        size=column("length") + LOG_OVERHEAD,
        base_offset=column("base_offset"),
        last_offset=column("base_offset") + column("last_offset_delta"),
        attributes=column("attributes"),
        base_timestamp=column("base_timestamp"),
        max_timestamp=column("max_timestamp"),
        producer_id=column("producer_id"),
        records=column("count"),
        crc=column("crc"),
    )


def visible(
    headers: Headers, data: memoryview, start: int | Ints, end: int | Ints, aborted: Sequence[AbortedTransaction] | None
) -> Headers:
    """The batches with records for a reader of the offsets `start`..`end` (exclusive; each batch may have its own), CRC
    checked.

    aborted: the transactions that Fetch listed for these bytes, for a reader of committed records; None shows all.
    Raises KafkaError CORRUPT_MESSAGE where a CRC or a count cannot be, INVALID_RECORD for a marker that cannot be read.
    """
    shown = (headers.last_offset >= start) & (headers.base_offset < end) & (headers.records != 0)
    shown &= (headers.attributes & CONTROL) == 0
    if aborted:
        shown &= ~_of_aborted(headers, data, aborted)
    wanted = headers.only(shown)
    check(wanted, data)
    return wanted


def check(headers: Headers, data: memoryview) -> None:
    """Every batch's CRC, and that its count of records can be. Raises KafkaError CORRUPT_MESSAGE naming the batch."""
    for at, size, crc, base in zip(
        headers.position.tolist(),
        headers.size.tolist(),
        headers.crc.tolist(),
        headers.base_offset.tolist(),
        strict=True,
    ):
        if crc32c(data[at + CRC_START : at + size]) != crc:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the CRC of the batch at offset {base} does not match")
    delta = headers.last_offset - headers.base_offset
    bad = np.flatnonzero((headers.records < 0) | (headers.records > delta + 1))
    if bad.size:
        base, count = int(headers.base_offset[bad[0]]), int(headers.records[bad[0]])
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {base} cannot hold {count} records")


def check_counts(count: Ints, payload: Ints) -> None:
    """That no batch claims more records than its inflated bytes can hold. Raises KafkaError INVALID_RECORD."""
    if np.any(count * _RECORD_BYTES_MIN > payload):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a batch claims more records than its bytes can hold")


def _of_aborted(
    headers: Headers, data: memoryview, aborted: Sequence[AbortedTransaction]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which batches belong to an aborted transaction: a producer's from the listed offset to its abort marker."""
    hidden = np.zeros(len(headers.position), np.bool_)
    transactions = AbortedTransactions(aborted)
    for index in np.flatnonzero(headers.attributes & TRANSACTIONAL).tolist():
        control = None
        if int(headers.attributes[index]) & CONTROL:
            at = int(headers.position[index])
            control = data[at : at + int(headers.size[index])]
        hidden[index] = transactions.take(int(headers.producer_id[index]), int(headers.last_offset[index]), control)
    return hidden
