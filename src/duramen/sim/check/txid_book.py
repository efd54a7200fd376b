"""What is known of transaction ids in a simulated world: which were acknowledged, and in which order a log has them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.check.invariants import HighestKnown, InvariantViolated, Ledger
from duramen.sim.check.stream_book import Sent, StreamBatch


class TxidBook:
    """Of one world. applications: topics whose writers choose the ids; assigned: those whose leader does."""

    def __init__(self, ledger: Ledger, applications: Sequence[str], assigned: Sequence[str]) -> None:
        self.ledger = ledger
        self._applications = frozenset(applications)
        self._all = self._applications | frozenset(assigned)
        self._last: defaultdict[TopicPartition, HighestKnown] = defaultdict(HighestKnown)
        self._asked: dict[bytes, int] = {}
        """By first value of a batch: the fact known when it was sent for the first time."""

    def fail(self, detail: str) -> None:
        """The promise is broken."""
        raise InvariantViolated("TxidsNeverStepBack", detail)

    def power_failed(self) -> None:
        """What page-cache topics hold may be gone."""
        self.ledger.forget(self._last)

    def sent(self, tp: TopicPartition, sent: Sent, asked: int) -> None:
        """A batch goes out, perhaps once more."""
        if tp.topic in self._applications and sent.values:
            self._asked.setdefault(sent.values[0], asked)

    def acknowledged(self, tp: TopicPartition, sent: Sent) -> None:
        """It was taken, now or before."""
        if tp.topic not in self._applications or not sent.values:
            return
        if any(later < earlier for earlier, later in zip(sent.txids, sent.txids[1:], strict=False)):
            self.fail(f"{tp}: {sent.values[0]!r} is taken, whose ids {sent.txids} step back")
        known = self._last[tp]
        asked = self._asked[sent.values[0]]
        if known.at(asked) > sent.txids[0]:
            self.fail(f"{tp}: {sent.values[0]!r} is taken with id {sent.txids[0]}, known was {known.at(asked)}")
        if self.ledger.lasts(tp, asked):
            known.learn(self.ledger.facts, sent.txids[-1])

    def refused(self, tp: TopicPartition, sent: Sent, last: int) -> None:
        """It was refused for its ids, and the log's last one was told."""
        if last <= sent.txids[0] and list(sent.txids) == sorted(sent.txids) and sent.txids[0] > 0:
            code = ErrorCode.TXID_OUT_OF_ORDER.name
            raise InvariantViolated("NoUnexpectedError", f"{tp}: {code} for {sent.txids}, the last one is {last}")

    def log_read(self, tp: TopicPartition, batches: Sequence[StreamBatch]) -> None:
        """Everything in the partition."""
        if tp.topic not in self._all:
            return
        last = 0
        for batch in batches:
            for txid in batch.txids:
                if txid < last:
                    self.fail(f"{tp}: the batch at offset {batch.base} has ids {batch.txids}, before it is {last}")
                last = txid
