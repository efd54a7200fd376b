"""Batches of idempotent producers that were refused for a while: those behind them wait until they have come again.

Up to five batches of a producer are under way at once (KIP-98). Where the first is refused because a disk is full, and
the second comes a moment later, when there is room, two things could go wrong. The log takes any first sequence of a
producer that it does not know (Kafka 4.3): the second would stand before the first. And of a known one the error
OUT_OF_ORDER_SEQUENCE_NUMBER makes librdkafka begin another epoch, under which it sends everything again whose outcome
it was not told. The first one's own error makes every client send them again, in order. It is the same where the first
comes before its partition is served: metadata names a new one a moment earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.model import TopicId
from duramen.storage import ProducerStates
from duramen.wire.batch import MAX_SEQUENCE, BatchHeader, parse_header

FOR_A_WHILE: Final = (
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)  # fmt: skip
"""What a batch is refused with that is taken later, just as it is. The last two: its partition is being made."""
REMEMBERED_S: Final = 60.0
"""From the last refusal on, by a clock that nobody sets. Clients send again within a second of hearing of it; they may
hear of it after the answer to an earlier batch, which takes half of this at most (`request.timeout.ms`). One that gave
up goes on with the epoch it has."""
MAX_PRODUCERS: Final = 1000
"""Remembered for one partition; the oldest goes."""
MAX_UNSERVED: Final = 1000
"""Partitions that are not served, and for which something is remembered; the oldest goes."""


class _Refused(NamedTuple):
    epoch: int
    sequence: int
    """Of the batch: what follows the last one that is stored has to come next, or this one where nothing is known."""
    code: ErrorCode
    when: float
    """By the monotonic clock, in seconds."""


class RetryGate:
    """Of one partition, whose log knows these producers; `monotonic` gives seconds. Loop thread only.

    A batch that is stored, or follows what is stored, is never held back.
    """

    __slots__ = ("_known", "_monotonic", "_producers")

    def __init__(self, known: ProducerStates, monotonic: Callable[[], float]) -> None:
        self._known = known
        self._monotonic = monotonic
        self._producers: dict[int, _Refused] = {}
        """By producer id, the latest refusal last."""

    def __bool__(self) -> bool:
        return bool(self._producers)

    def remember(self, batch: memoryview, error: KafkaError) -> None:
        """A batch was refused with `error`; nothing of it was stored now."""
        if error.code not in FOR_A_WHILE:
            return
        try:
            header = parse_header(batch)
        except KafkaError:
            return
        if header.producer_id < 0 or self._refused_before(header) or self._is_old(header):
            return
        self._producers.pop(header.producer_id, None)
        now = self._monotonic()
        while self._producers and _is_over(next(iter(self._producers.values())), now):
            del self._producers[next(iter(self._producers))]
        self._producers[header.producer_id] = _Refused(header.producer_epoch, header.base_sequence, error.code, now)
        if len(self._producers) > MAX_PRODUCERS:
            del self._producers[next(iter(self._producers))]

    def take_over(self, others: RetryGate) -> None:
        """What was refused before the partition was served."""
        self._producers = others._producers

    def check(self, header: BatchHeader) -> None:
        """Raises KafkaError, with the code of the refused one, for a batch behind one that has to come first."""
        refused = self._refused_before(header)
        if refused is not None:
            raise KafkaError(
                refused.code,
                f"producer {header.producer_id}: sequence {refused.sequence} was refused, and what follows what is "
                f"stored has to come again before {header.base_sequence}",
            )

    def _refused_before(self, header: BatchHeader) -> _Refused | None:
        refused = self._refused(header)
        if refused is None or refused.epoch != header.producer_epoch or self._is_fenced(header):
            return None
        distance = (header.base_sequence - refused.sequence) & MAX_SEQUENCE
        return refused if 0 < distance <= MAX_SEQUENCE // 2 and not self._is_next_or_stored(header) else None

    def _is_next_or_stored(self, header: BatchHeader) -> bool:
        producer = self._known.get(header.producer_id)
        if producer is None or producer.epoch != header.producer_epoch:
            return False
        try:
            self._known.check(header)
        except KafkaError:
            return False
        return True

    def _is_old(self, header: BatchHeader) -> bool:
        """Whether the producer has begun another epoch: an old connection brings what it will not send again."""
        refused = self._refused(header)
        return self._is_fenced(header) or (refused is not None and header.producer_epoch < refused.epoch)

    def _is_fenced(self, header: BatchHeader) -> bool:
        """Whether the log has a later epoch of the producer: then this one is over, and the log says so itself."""
        producer = self._known.get(header.producer_id)
        return producer is not None and header.producer_epoch < producer.epoch

    def _refused(self, header: BatchHeader) -> _Refused | None:
        refused = self._producers.get(header.producer_id)
        if refused is not None and _is_over(refused, self._monotonic()):
            del self._producers[header.producer_id]
            return None
        return refused


class RetryGates:
    """Refusals of partitions that the metadata log names and that are not there, most because they are being made."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._partitions: dict[tuple[TopicId, int], RetryGate] = {}

    def remember(self, topic_id: TopicId, index: int, batch: memoryview, error: KafkaError) -> None:
        """A batch for the partition was refused with `error`."""
        key = topic_id, index
        retry_gate = self._partitions.get(key)
        if retry_gate is None:
            if len(self._partitions) >= MAX_UNSERVED:
                del self._partitions[next(iter(self._partitions))]
            retry_gate = self._partitions[key] = RetryGate(ProducerStates(), self._monotonic)
        retry_gate.remember(batch, error)

    def made(self, topic_id: TopicId, index: int, retry_gate: RetryGate) -> None:
        """The partition is there, and goes on with what was remembered."""
        before = self._partitions.pop((topic_id, index), None)
        if before is not None:
            retry_gate.take_over(before)


def _is_over(refused: _Refused, now: float) -> bool:
    return now - refused.when >= REMEMBERED_S
