"""InitProducerId: an id for an idempotent producer (KIP-98). Versions 0-5.

Ids come in blocks that are recorded durably before the first is handed out, so none is ever given twice. A
transactional id is refused: transactions are not served yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import ErrorCode, KafkaError
from duramen.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from duramen.wire.messages.init_producer_id import InitProducerIdResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """A fresh producer id with epoch 0, also for a producer that tells the one it had; id and epoch come together."""
    body = request.body
    if body.transactional_id is not None:
        if body.transactional_id == "":
            _refuse(request, ErrorCode.INVALID_REQUEST)
            return
        peer = request.connection.transport.peer
        request.services.refused_transactions.tell([body.transactional_id], request.client_id, peer)
        _refuse(request, ErrorCode.INVALID_TXN_STATE)
        return
    if (body.producer_id == NO_PRODUCER_ID) != (body.producer_epoch == NO_PRODUCER_EPOCH):
        _refuse(request, ErrorCode.INVALID_REQUEST)
        return

    def answer(result: int | KafkaError) -> None:
        if isinstance(result, KafkaError):
            _refuse(request, result.code)
        else:
            request.reply(InitProducerIdResponse.new(producer_id=result, producer_epoch=0))

    request.services.producer_ids.next(answer)


def _refuse(request: Request, code: ErrorCode) -> None:
    request.reply(InitProducerIdResponse.new(error_code=int(code), producer_id=-1, producer_epoch=-1))
