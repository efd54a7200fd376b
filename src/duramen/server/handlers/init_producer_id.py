"""InitProducerId: an id for an idempotent producer, or the next epoch of a transactional one (KIP-98, KIP-360).

Versions 0-5: v3 a producer that goes on (id and epoch) · v4 PRODUCER_FENCED · v5 TRANSACTION_ABORTABLE. Ids come in
blocks that are recorded durably before the first is handed out, so none is ever given twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import InitProducer
from duramen.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.coordinators.transactions import SHOWN_CHARACTERS, transaction_error
from duramen.wire.messages.init_producer_id import InitProducerIdResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

KNOWS_FENCED = 4
"""First version whose clients know PRODUCER_FENCED."""


def handle(request: Request) -> None:
    """A fresh producer id with epoch 0, also for a producer that tells the one it had; a transactional id's is decided
    by its coordinator."""
    body = request.body
    if body.transactional_id is None:
        _idempotent(request)
        return
    if request.denies(Operation.WRITE, Resource.TRANSACTIONAL_ID, [body.transactional_id]):
        _refuse(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return

    def answered(answer: ProducerEpoch | DuramenError) -> None:
        if isinstance(answer, DuramenError):
            _refuse(request, transaction_error(answer, knows_fenced=request.version >= KNOWS_FENCED))
        else:
            request.reply(InitProducerIdResponse.new(producer_id=answer.id, producer_epoch=answer.epoch))

    command = InitProducer(
        body.transactional_id,
        body.transaction_timeout_ms,
        body.producer_id,
        body.producer_epoch,
        client_id=request.client_id[:SHOWN_CHARACTERS],
    )
    request.services.transactions.submit(body.transactional_id, command, answered)


def _idempotent(request: Request) -> None:
    body = request.body
    if CLUSTER_NAME in request.denied:
        _refuse(request, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
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
