"""Appends that are in the log and not answered yet, each with the end that it waits for. `Partition` says when."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.wire.batch import BatchHeader


class Appended(NamedTuple):
    """An append that took effect: where, and when if the topic stamps its own time (-1 otherwise)."""

    base_offset: int
    append_time_ms: int
    log_start_offset: int


Done = Callable[[Appended | KafkaError], None]
Parked = tuple[int, Done, Appended | KafkaError]
"""The end that a producer waits for, whom to call, and the answer it gets then."""


class ParkedAppends:
    """Of one partition, each queue by the end it waits for; loop thread only.

    local: acks=1, which waits for this replica's own durable end. replicated: acks=all, which waits for the high
    watermark. Either is None where no producer waits: an empty deque has 600 bytes.
    """

    __slots__ = ("local", "replicated")

    def __init__(self) -> None:
        self.local: deque[Parked] | None = None
        self.replicated: deque[Parked] | None = None

    def __len__(self) -> int:
        return len(self.local or ()) + len(self.replicated or ())

    def add(self, end: int, acks: int, done: Done, answer: Appended | KafkaError) -> None:
        """acks: 1 or -1. `end` is not below that of any before it."""
        if acks == 1:
            if self.local is None:
                self.local = deque()
            self.local.append((end, done, answer))
        else:
            if self.replicated is None:
                self.replicated = deque()
            self.replicated.append((end, done, answer))

    def answer_local(self, end: int) -> None:
        """This replica has everything below `end`."""
        waiting = self.local
        while waiting and waiting[0][0] <= end:
            _, done, answer = waiting.popleft()
            done(answer)
        if not waiting and self.local is waiting:
            self.local = None

    def answer_replicated(self, high_watermark: int) -> None:
        """All in-sync replicas have everything below it."""
        waiting = self.replicated
        while waiting and waiting[0][0] <= high_watermark:
            _, done, answer = waiting.popleft()
            done(answer)
        if not waiting and self.replicated is waiting:
            self.replicated = None

    def is_due(self, end: int) -> bool:
        """Whether there is one that `answer_local` would answer."""
        waiting = self.local
        return bool(waiting) and waiting is not None and waiting[0][0] <= end

    def wait_for_replicas(self) -> None:
        """Those who wait for this replica alone wait for the others, too."""
        self.replicated = deque(sorted((*(self.replicated or ()), *(self.local or ())), key=itemgetter(0)))
        self.local = None

    def take_replicated(self) -> Iterable[Parked]:
        """Remove those who wait for the high watermark."""
        waiting, self.replicated = self.replicated, None
        return waiting or ()

    def take_all(self) -> list[Parked]:
        """Remove all of them."""
        waiting = [*(self.local or ()), *(self.replicated or ())]
        self.local = self.replicated = None
        return waiting


def answer_duplicate(header: BatchHeader, done: Done, result: Appended | KafkaError) -> None:
    """A named writer's batch is there, and its offset is remembered no more: clients take that code for success."""
    if not isinstance(result, KafkaError):
        what = (
            f"writer {header.producer_id}: sequence {header.base_sequence} was stored before, its offset is not known"
        )
        result = KafkaError(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, what)
    done(result)
