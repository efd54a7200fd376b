"""Writing to a stream in batches."""

from __future__ import annotations

from types import TracebackType
from typing import Final, Protocol, Self

from duramen.errors import ClosedError
from duramen.streams.receipt import Receipt
from duramen.streams.records import NewStreamRecord

WRITER_BYTES: Final = 512 * 1024


class StreamAppend(Protocol):
    """`Stream.append`."""

    def __call__(self, records: list[bytes | NewStreamRecord], *, expected_position: int | None) -> Receipt: ...


class StreamWriter:
    """Gathers records and appends them as one batch per flush. For one thread; `Stream.writer` gives it.

    As a context manager it flushes at the end, but not where its block raises. After an append that failed it takes no
    more: what was gathered may be stored or not, as the error says. Open another one where the stream really ends.
    """

    def __init__(self, append: StreamAppend, expected_position: int | None, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError(f"max_bytes is at least 1, not {max_bytes}")
        self._append = append
        self._expected = expected_position
        self._most = max_bytes
        self._gathered: list[bytes | NewStreamRecord] = []
        self._size = 0
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._is_closed:
            self.flush()
        self._is_closed = True

    def write(self, record: bytes | NewStreamRecord) -> Receipt | None:
        """Gather a record; the receipt of a batch where that made it large enough to be appended, else None.

        Errors as `flush`.
        """
        self._check()
        value = record if isinstance(record, bytes) else (record.value or b"")
        size = len(value) + (len(record.key or b"") if isinstance(record, NewStreamRecord) else 0)
        receipt = self.flush() if self._gathered and self._size + size > self._most else None
        self._gathered.append(record)
        self._size += size
        return receipt

    def flush(self) -> Receipt | None:
        """Append what was gathered as one batch, and return once it is durable; None where there was nothing.

        Errors as `Stream.append`.
        """
        self._check()
        if not self._gathered:
            return None
        self._is_closed = True  # stays so where the append fails
        receipt = self._append(self._gathered, expected_position=self._expected)
        self._is_closed = False
        self._gathered, self._size = [], 0
        if self._expected is not None:
            self._expected = receipt.end
        return receipt

    def _check(self) -> None:
        if self._is_closed:
            raise ClosedError("this writer has ended; open another one")
