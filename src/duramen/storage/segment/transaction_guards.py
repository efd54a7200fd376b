"""Guards: a producer's first transactional batch waits for its coordinator's word, which may be stale when it comes.

Between the word and the append the transaction may have been aborted and the next one begun, of which this partition
is no part: a batch that is appended then is never ended (KIP-890). So the word is worth something only while the guard
holds that was taken before it was asked for; the producer's first append and its markers cancel it.
"""

from __future__ import annotations

from typing import Final

from duramen.wire.batch import MAX_SEQUENCE, BatchHeader

MOST_GUARDS: Final = 10_000
"""Of one log: a client may claim any producer id. The oldest goes, and its batch has to come again."""


class TransactionGuard:
    """Of one producer and epoch, compared by identity. is_second_generation: the client's epoch rises with each
    transaction."""

    __slots__ = ("epoch", "is_ended", "is_second_generation", "lowest_sequence", "producer_id")

    def __init__(self, producer_id: int, epoch: int, lowest_sequence: int, is_second_generation: bool) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        """Of the batches that asked: one behind it may not be first, or that one would be refused for ever."""
        self.is_second_generation = is_second_generation
        self.is_ended = False
        """Whether a marker has ended the transaction since: what waited for the word is not part of the next one."""

    def is_behind(self, sequence: int) -> bool:
        """Whether a batch with this sequence has to wait for one that has asked before."""
        return 0 < (sequence - self.lowest_sequence) & MAX_SEQUENCE <= MAX_SEQUENCE // 2


class TransactionGuards:
    """Those that hold, by producer id. They are in memory alone: who has one asks again behind a restart."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        self._guards: dict[int, TransactionGuard] = {}

    def __len__(self) -> int:
        return len(self._guards)

    def take(self, producer_id: int, epoch: int, sequence: int, is_second_generation: bool) -> TransactionGuard:
        """The guard of this producer and epoch; one of another epoch holds no more."""
        guard = self._guards.get(producer_id)
        if guard is None or guard.epoch != epoch:
            self._guards.pop(producer_id, None)
            guard = self._guards[producer_id] = TransactionGuard(producer_id, epoch, sequence, is_second_generation)
            if len(self._guards) > MOST_GUARDS:
                del self._guards[next(iter(self._guards))]
        elif guard.is_behind(sequence) or sequence == guard.lowest_sequence:
            return guard
        else:
            guard.lowest_sequence = sequence
        return guard

    def holds(self, guard: TransactionGuard, producer_id: int, epoch: int) -> bool:
        """Whether a batch may be appended for the sake of this guard."""
        return self._guards.get(producer_id) is guard and guard.epoch == epoch

    def drop(self, guard: TransactionGuard) -> None:
        """The coordinator has said no."""
        if self._guards.get(guard.producer_id) is guard:
            del self._guards[guard.producer_id]

    def appended(self, producer_id: int) -> None:
        """A transactional batch of the producer is in the log."""
        self._guards.pop(producer_id, None)

    def ended(self, header: BatchHeader) -> None:
        """A marker is in the log. In the second generation one of the guard's own epoch ended the transaction before:
        the guard is the next one's.
        """
        guard = self._guards.get(header.producer_id)
        if guard is not None and not (guard.is_second_generation and guard.epoch == header.producer_epoch):
            guard.is_ended = True
            del self._guards[header.producer_id]
