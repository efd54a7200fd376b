"""What was read for a Fetch, partition by partition, and the part of it that is still to be read beside the loop."""

from __future__ import annotations

from typing import Any

from duramen.errors import CorruptLogError, StorageError
from duramen.partition.replica.partition import Partition, Read
from duramen.ports import Buffer
from duramen.server.reads.fetch_sessions import FetchTarget, Records
from duramen.storage import Pending
from duramen.wire.frame import part_size

NOTHING = b""


class PartitionAnswer:
    """One partition's share of the reply."""

    __slots__ = ("at_least_one", "data", "is_back", "partition", "read", "target")

    def __init__(
        self, target: FetchTarget, data: Any, partition: Partition | None, read: Read | None, *, at_least_one: bool
    ) -> None:
        self.target = target
        self.data = data
        self.partition = partition
        self.read = read
        self.at_least_one = at_least_one
        self.is_back = False
        """Whether what the machine had taken out of memory is there again, for the same read to send."""

    @property
    def is_cold(self) -> bool:
        """Whether some of its bytes are still to be read, off the loop."""
        if self.read is not None:
            for part in self.read.parts:
                if type(part) is Pending:
                    return True
        return False

    @property
    def is_recent(self) -> bool:
        """Whether what is still to be read was in memory a moment ago."""
        return self.read is not None and all(part.recent for part in self.read.parts if type(part) is Pending)

    def send_from_file(self) -> None:
        """What was read and stays in memory leaves from there: what it was read into is free at once."""
        parts = self.read.parts if self.read is not None and not self.data.error_code else ()
        if len(parts) == 1 and isinstance(parts[0], Pending) and (span := parts[0].span) is not None:
            self.data.records = Records([span], span.length)

    def leave_out(self) -> None:
        """Its records wait for the next request."""
        self.data.records = NOTHING
        self.read = None


class FetchResult:
    """What was read for a request, partition by partition."""

    __slots__ = ("answers", "cold", "full", "size", "urgent")

    def __init__(self) -> None:
        self.answers: list[PartitionAnswer] = []
        self.full: list[PartitionAnswer] = []
        """Those with records, of many mostly few."""
        self.size = 0
        """Bytes of records."""
        self.cold = 0
        """Those of them that are still to be read, off the loop."""
        self.urgent = False
        """Whether something must be told at once."""


def read_cold(cold: list[PartitionAnswer]) -> list[tuple[PartitionAnswer, BaseException]]:
    """Off the loop: replace what is not in memory by verified bytes; damage stays with its partition."""
    failures: list[tuple[PartitionAnswer, BaseException]] = []
    for answer in cold:
        parts: list[Any] = []
        try:
            for part in answer.data.records.parts:
                if isinstance(part, Pending) and part.bring_back():  # the only part: see LogRead
                    answer.is_back = True
                    break
                parts.append(_compact(part.run().data) if isinstance(part, Pending) else part)
        except (CorruptLogError, OSError, StorageError) as error:
            failures.append((answer, error.with_traceback(None)))  # which would keep all that was read, and itself
            continue
        answer.data.records = Records(parts, sum(map(part_size, parts)))
    return failures


def _compact(data: memoryview) -> Buffer:
    """Bytes that may wait for their client: not in a buffer that is much larger than they are."""
    return bytes(data) if 2 * len(data) < len(data.obj) else data  # type: ignore[arg-type]
