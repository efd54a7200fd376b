"""Writes what a machine decided to its log: one batch, or, where that is too large, several between transaction marks.

A change that is refused in the middle is aborted. Where the abort is refused, too, as on a full disk, the transaction
stays open: nothing is written until its abort is, or what follows would be taken for a part of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from duramen.errors import ErrorCode, KafkaError, StorageError
from duramen.machines.contract import LogRecord, Machine, ProducerEpoch, TransactionMarks
from duramen.partition.host.replay import ReadableLog
from duramen.wire import batch as batches

RECORD_OVERHEAD_BYTES: Final = 32
"""Upper bound of what a record adds to its key and value in a batch: lengths, deltas, attributes, header count."""


class HostedLog(ReadableLog, Protocol):
    """What the host needs of a partition."""

    def append_local(self, batch: bytearray, now_ms: int) -> int:
        """Append one batch of our own; returns the new log end. DuramenError or OSError when it is refused."""

    @property
    def may_answer(self) -> bool:
        """Whether what is known here may be told without a record that has to be committed first."""

    def watch(self, callback: Callable[[], None], on_failed: Callable[[KafkaError], None] | None = None) -> None: ...

    def unwatch(self, callback: Callable[[], None]) -> None: ...


class RecordWriter:
    """Of one host; what is appended is applied to its machine at once.

    max_batch_bytes, compression: as of the host.
    """

    def __init__(self, partition: HostedLog, machine: Machine, max_batch_bytes: int, compression: int) -> None:
        self._partition = partition
        self._machine = machine
        self._max_batch_bytes = max_batch_bytes
        self._compression = compression
        self._abort: LogRecord | None = None
        """What an open transaction waits for."""

    def close_open(self, now: int) -> None:
        """Before each decision, which may go by offsets: abort what is open, if that is taken by now."""
        if self._abort is not None:
            with suppress(KafkaError, StorageError):
                self._append_batch([self._abort], now)
                self._abort = None

    def append(self, records: list[LogRecord], now: int, producer: ProducerEpoch | None = None) -> None:
        """All of the records or none; DuramenError: none. producer: whose open transaction they are part of."""
        if self._abort is not None:
            what = f"{self._partition.tp}: a change that could be written in part only is still to be aborted"
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, what)
        size = batches.HEADER_SIZE + sum(map(_record_bytes, records))
        if size <= self._max_batch_bytes:
            self._append_batch(records, now, producer)
            return
        marks = None if producer is not None else self._machine.transaction_marks
        if marks is None or max(map(_record_bytes, records)) + batches.HEADER_SIZE > self._max_batch_bytes:
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes of records; {self._max_batch_bytes} fit")
        self._append_transaction(records, marks, now)

    def _append_transaction(self, records: list[LogRecord], marks: TransactionMarks, now: int) -> None:
        self._append_batch([marks.begin], now)
        self._abort = marks.abort
        try:
            chunk: list[LogRecord] = []
            size = batches.HEADER_SIZE
            for record in records:
                cost = _record_bytes(record)
                if chunk and size + cost > self._max_batch_bytes:
                    self._append_batch(chunk, now)
                    chunk, size = [], batches.HEADER_SIZE
                chunk.append(record)
                size += cost
            self._append_batch(chunk, now)
            self._append_batch([marks.end], now)
            self._abort = None
        finally:
            self.close_open(now)

    def _append_batch(self, records: list[LogRecord], now: int, producer: ProducerEpoch | None = None) -> None:
        rows = [(record.key, record.value, (), now) for record in records]
        if producer is None:
            batch = batches.build_batch(rows, compression=self._compression)
        else:
            batch = batches.build_batch(
                rows,
                compression=self._compression,
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                transactional=True,
            )
        try:
            end = self._partition.append_local(batch, now)
        except OSError as error:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._partition.tp}: {error}") from error
        first = end - len(records)
        apply = self._machine.apply
        for index, record in enumerate(records):
            apply(record, first + index, now, producer)


def _record_bytes(record: LogRecord) -> int:
    return len(record.key or b"") + len(record.value or b"") + RECORD_OVERHEAD_BYTES
