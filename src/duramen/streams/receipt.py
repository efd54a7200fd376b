"""What an append answers: where it went, and how safe it is there."""

from __future__ import annotations

from typing import Literal, NamedTuple

from duramen.dlsn import Dlsn


class Receipt(NamedTuple):
    """Where an append went. offset, dlsn: of its first record; end: the offset behind its last.

    epoch: the leader epoch in which it was stored. durability: "stable" for stable storage, "page-cache" for memory of
    the nodes that survives their processes but no power cut. copies: in-sync replicas that had it when it was
    acknowledged.
    """

    offset: int
    dlsn: Dlsn
    end: int
    epoch: int
    durability: Literal["stable", "page-cache"]
    copies: int
