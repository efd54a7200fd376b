"""Positions that were handed out in a simulated world, what they lead to later, and where streams were truncated."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

from duramen.dlsn import Dlsn, dlsn_at
from duramen.model import TopicPartition
from duramen.sim.check.invariants import HighestKnown, InvariantViolated, Ledger
from duramen.sim.check.stream_book import Sent, Stored


class StreamReceipt(NamedTuple):
    """A record's position as its writer was told it. time: its timestamp or transaction id; -1: the leader's.

    asked: the fact known when the record was sent.
    """

    dlsn: Dlsn
    value: bytes
    time: int
    asked: int


class PositionBook:
    """Of one world."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.receipts: defaultdict[TopicPartition, list[StreamReceipt]] = defaultdict(list)
        """Whatever became of the records since."""
        self.has_damage = False
        self._known: set[tuple[TopicPartition, Dlsn]] = set()
        self._starts: defaultdict[TopicPartition, set[int]] = defaultdict(lambda: {0})
        """Where logs may begin."""
        self._least: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)
        """Where they begin at least."""

    def acknowledged(self, tp: TopicPartition, sent: Sent, stored: Stored, times: tuple[int, ...]) -> None:
        """A batch is stored; times: its records'."""
        if stored.base < 0 or stored.epoch < 0:
            return
        for delta, (value, time) in enumerate(zip(sent.values, times, strict=True)):
            dlsn = dlsn_at(stored.base + delta, stored.base, stored.epoch)
            if (tp, dlsn) not in self._known:
                self._known.add((tp, dlsn))
                self.receipts[tp].append(StreamReceipt(dlsn, value, time, sent.asked))

    # ---- positions looked up later -----------------------------------------------------------------------------

    def record_found(self, tp: TopicPartition, receipt: StreamReceipt, offset: int, value: bytes) -> None:
        """A reader that went to the position was given this record."""
        self.ledger.facts += 1
        if (offset, value) != (receipt.dlsn.offset, receipt.value):
            what = f"{tp}: {receipt.dlsn} named {receipt.value!r}, and leads to {value!r} at {offset}"
            raise InvariantViolated("PositionLasts", what)

    def truncated(self, tp: TopicPartition, receipt: StreamReceipt) -> None:
        """It was told that the record lies below the start."""
        self.ledger.facts += 1
        if receipt.dlsn.offset >= max(self._starts[tp]):
            raise InvariantViolated("PositionLasts", f"{tp}: {receipt} is truncated, and nobody has asked for that")

    def diverged(self, tp: TopicPartition, receipt: StreamReceipt) -> None:
        """It was told that the record is lost."""
        self.ledger.facts += 1
        if self.ledger.lasts(tp, receipt.asked) and (tp.topic in self.ledger.stable or not self.has_damage):
            raise InvariantViolated("PositionLasts", f"{tp}: {receipt} is lost")

    # ---- truncation --------------------------------------------------------------------------------------------

    def truncation_asked(self, tp: TopicPartition, before: int) -> None:
        """Somebody is about to ask for the records below an offset to be deleted. The last record may stay, where it
        is what closed the stream, or has the last transaction id.
        """
        self._starts[tp] |= {before, max(0, before - 1)}

    def truncation_known(self, tp: TopicPartition, low: int) -> None:
        """It was done: the log begins there."""
        self.ledger.facts += 1
        self._check_start(tp, low)
        self._least[tp].learn(self.ledger.facts, low)

    def truncated_by_time(self, tp: TopicPartition, start: int, before: int, time: int) -> None:
        """Records from the log's start on and below an offset are to be deleted, because they are older."""
        for receipt in self.receipts[tp]:
            if start <= receipt.dlsn.offset < before and receipt.time >= time and self._is_there(tp, receipt):
                what = f"{tp}: truncated before {time} at {before}, below which {receipt} was"
                raise InvariantViolated("TruncationExact", what)

    def log_begins(self, tp: TopicPartition, start: int, asked: int) -> None:
        """Somebody who asked at a fact was told where the log begins."""
        self._check_start(tp, start)
        least = self._least[tp].at(asked)
        if start < least and self.ledger.lasts(tp):
            raise InvariantViolated("LogStartNeverGoesBack", f"{tp} begins at {start}, was truncated before {least}")

    def _is_there(self, tp: TopicPartition, receipt: StreamReceipt) -> bool:
        return self.ledger.lasts(tp, receipt.asked) and (tp.topic in self.ledger.stable or not self.has_damage)

    def _check_start(self, tp: TopicPartition, start: int) -> None:
        # A log that ends below its start when power has failed begins at its end.
        if start not in self._starts[tp] and self.ledger.lasts(tp):
            what = f"{tp} begins at {start}; asked for were {sorted(self._starts[tp])}"
            raise InvariantViolated("TruncationExact", what)
