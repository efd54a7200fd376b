"""AddOffsetsToTxn: a group's partition of `__consumer_offsets` joins a transaction (KIP-98). Versions 0-4.

v2 PRODUCER_FENCED · v4 TRANSACTION_ABORTABLE. Clients of the second generation do not ask: TxnOffsetCommit 5 adds it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import FIRST_GENERATION, AddPartitions
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.transactions import transaction_error
from duramen.wire.messages.add_offsets_to_txn import AddOffsetsToTxnResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

KNOWS_FENCED: Final = 2


def handle(request: Request) -> None:
    """Add it; the topic is created where this is the first that anybody hears of groups."""
    body = request.body
    if body.transactional_id in request.denied:
        _reply(request, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return
    if request.denies(Operation.READ, Resource.GROUP, [body.group_id]):
        _reply(request, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return

    def answered(answer: Any) -> None:
        is_refused = isinstance(answer, DuramenError)
        knows = request.version >= KNOWS_FENCED
        _reply(request, transaction_error(answer, knows_fenced=knows) if is_refused else ErrorCode.NONE)

    def created(code: ErrorCode) -> None:
        partition = request.services.groups.partition_of(body.group_id)
        if partition is None:
            _reply(request, ErrorCode.COORDINATOR_NOT_AVAILABLE if code is ErrorCode.NONE else code)
            return
        producer = ProducerEpoch(body.producer_id, body.producer_epoch)
        command = AddPartitions(body.transactional_id, producer, (partition,), FIRST_GENERATION)
        request.services.transactions.submit(body.transactional_id, command, answered)

    request.services.groups.ensure_topics(created)


def _reply(request: Request, code: ErrorCode) -> None:
    request.reply(AddOffsetsToTxnResponse.new(error_code=int(code)))
