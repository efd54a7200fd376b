"""Goes through the ids of one machine, slice by slice, for those that are not used any more; and timers' names."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from duramen.machines.ages import Ages
from duramen.machines.contract import LogRecord, Outcome
from duramen.machines.transaction import records
from duramen.machines.transaction.commands import SweepRefused
from duramen.machines.transaction.settings import TransactionSettings
from duramen.machines.transaction.state import Transaction

TIME_OUTS: Final = "time-outs"
"""Timer of what aborts transactions that are open for too long."""
EXPIRY: Final = "expiry"
"""Timer of what removes ids."""
COMPLETIONS: Final = "completions"
"""Timer of what completes transactions whose markers are all written, where the log did not take that at once."""

RETRY_MS: Final = 1_000
"""How long records wait after the log refused them."""
ABANDONED_MS: Final = 30_000
"""How long markers wait that another coordinator was known for: by then this one is deposed, or has to try again."""
SLICE_RECORDS: Final = 500
SLICE_BYTES: Final = 256 << 10
"""Written in one decision by a timer; the rest follows in further ones."""
SLICE_IDS: Final = 5_000
"""Ids that one decision looks at."""


class MarkersTimer(NamedTuple):
    """Timer of markers that are asked for again."""

    transactional_id: str


class ParkedTimer(NamedTuple):
    """Timer of a request that waits for the end of the last transaction."""

    transactional_id: str


class Room:
    """What is left of a slice, so that a batch is sure to fit."""

    def __init__(self) -> None:
        self._records = SLICE_RECORDS
        self._bytes = SLICE_BYTES

    def take(self, written: Sequence[LogRecord]) -> bool:
        """Whether there is room for more after these."""
        self._records -= max(len(written), 1)
        self._bytes -= sum(len(record.key or b"") + len(record.value or b"") for record in written)
        return self._records > 0 and self._bytes > 0


class SweptTransactions(Protocol):
    """What a sweep reads of the machine whose ids it goes through."""

    settings: TransactionSettings
    transactions: dict[str, Transaction]
    ages: Ages


class ExpirySweep:
    """One at a time: from the first id to the last, then idle until the timer begins it again."""

    def __init__(self) -> None:
        self._left: deque[str] | None = None

    def forget(self) -> None:
        """The log took none of a step: begin again at the next one."""
        self._left = None

    def step(self, machine: SweptTransactions, now: int, out: Outcome) -> None:
        """The next slice; the timer brings another one, and the next sweep."""
        if self._left is None:
            self._left = deque(machine.transactions)
        room = Room()
        for _ in range(SLICE_IDS):
            if not self._left:
                break
            transactional_id = self._left.popleft()
            transaction = machine.transactions.get(transactional_id)
            if transaction is None or not transaction.is_idle:
                continue
            if machine.ages.since(transaction.updated_ms, now) >= machine.settings.id_expiration_ms:
                removed = records.tombstone(transactional_id)
                out.records.append(removed)
                if not room.take([removed]):
                    break
        if out.records:
            out.if_refused = SweepRefused(EXPIRY)
        if self._left:
            out.timers.append((EXPIRY, now))
        else:
            self._left = None
            out.timers.append((EXPIRY, now + machine.settings.remove_interval_ms))
