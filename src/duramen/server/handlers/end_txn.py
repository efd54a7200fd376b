"""EndTxn: commit or abort a transaction (KIP-98). Versions 0-5.

v2 PRODUCER_FENCED · v4 TRANSACTION_ABORTABLE · v5 the epoch rises with each transaction: the reply has it (KIP-890)

The reply leaves when the decision is durable; its markers are written behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import FIRST_GENERATION, SECOND_GENERATION, EndTransaction
from duramen.server.coordinators.transactions import transaction_error
from duramen.wire.messages.end_txn import EndTxnResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

KNOWS_FENCED: Final = 2
RAISES_EPOCH: Final = 5
"""First version of the second generation."""


def handle(request: Request) -> None:
    """Have the coordinator decide."""
    body = request.body
    if body.transactional_id in request.denied:
        _refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return

    def answered(answer: ProducerEpoch | DuramenError) -> None:
        if isinstance(answer, DuramenError):
            _refuse(request, transaction_error(answer, knows_fenced=request.version >= KNOWS_FENCED))
        else:
            request.reply(EndTxnResponse.new(producer_id=answer.id, producer_epoch=answer.epoch))

    command = EndTransaction(
        body.transactional_id,
        ProducerEpoch(body.producer_id, body.producer_epoch),
        body.committed,
        SECOND_GENERATION if request.version >= RAISES_EPOCH else FIRST_GENERATION,
    )
    request.services.transactions.submit(body.transactional_id, command, answered)


def _refuse(request: Request, code: ErrorCode) -> None:
    request.reply(EndTxnResponse.new(error_code=int(code)))
