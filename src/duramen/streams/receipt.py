"""What an append answers: where it went, and how safe it is there."""

from __future__ import annotations

from typing import Literal, NamedTuple

from duramen.dlsn import INVALID, Dlsn, dlsn_at
from duramen.wire.conditional_answer import ConditionalAnswer


class Receipt(NamedTuple):
    """Where an append went. offset, dlsn: of its first record; end: the offset after its last.

    epoch: the leader epoch in which it was stored. durability: "stable" for stable storage, "page-cache" for memory of
    the nodes that survives their processes but no power cut. copies: in-sync replicas that had it when it was
    acknowledged. duplicate: it was there already, for it was sent before; of one that lies far back it is not known
    where (offset, end and epoch -1, dlsn INVALID).
    """

    offset: int
    dlsn: Dlsn
    end: int
    epoch: int
    durability: Literal["stable", "page-cache"]
    copies: int
    duplicate: bool = False

    @property
    def next(self) -> Dlsn:
        """The position after its last record: where the stream ends if nobody has appended since."""
        return self.dlsn._replace(slot=self.end - self.offset) if self.offset >= 0 else INVALID


def receipt_of(answer: ConditionalAnswer, count: int) -> Receipt:
    """Of an append of so many records that was granted."""
    base = answer.base_offset
    return Receipt(
        base,
        dlsn_at(base, base, answer.leader_epoch) if base >= 0 else INVALID,
        base + count if base >= 0 else -1,
        answer.leader_epoch,
        "stable" if answer.is_stable else "page-cache",
        answer.copies,
        answer.duplicate,
    )
