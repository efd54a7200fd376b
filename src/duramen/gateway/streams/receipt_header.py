"""The receipt of an append as a header: where its first record is, and how safe it is there. Pure."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from duramen.client.protocol.conditional_append import ConditionalAnswer
from duramen.client.protocol.open_writer import NO_TXID
from duramen.dlsn import dlsn_at

RECEIPT: Final = "stream-receipt"


class ReceiptBody(msgspec.Struct, omit_defaults=True):
    """The JSON of the header. offset, dlsn: of the first record; epoch: of the leader that stored it; txid: its
    transaction id, where there are any; timestamp: of all records of its batch (ms), where the topic stamps them."""

    offset: int
    dlsn: str
    epoch: int
    durability: Literal["stable", "page-cache"]
    copies: int
    txid: int | None = None
    timestamp: int | None = None


def receipt(answer: ConditionalAnswer, offset: int, timestamp: int | None = None) -> ReceiptBody:
    """Of the record at this offset, in the batch that was stored. timestamp: it was sent with, if that is known."""
    dlsn = dlsn_at(offset, answer.base_offset, answer.leader_epoch)
    durability: Literal["stable", "page-cache"] = "stable" if answer.is_stable else "page-cache"
    stamped = None if answer.log_append_time_ms < 0 else answer.log_append_time_ms
    txid = None
    if answer.last_txid != NO_TXID:
        txid, stamped = timestamp if stamped is None else stamped, None
    return ReceiptBody(offset, str(dlsn), answer.leader_epoch, durability, answer.copies, txid, stamped)


def receipt_header(answer: ConditionalAnswer, offset: int | None = None, txid: int | None = None) -> dict[str, str]:
    """The header, of the batch's first record if not of the one at `offset`; none where no record was appended, or
    where it is not known any more where it is."""
    if answer.base_offset < 0 or answer.leader_epoch < 0:
        return {}
    body = receipt(answer, answer.base_offset if offset is None else offset, txid)
    return {RECEIPT: msgspec.json.encode(body).decode("ascii")}
