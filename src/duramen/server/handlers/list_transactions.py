"""ListTransactions: the transactional ids that this broker coordinates (KIP-664). Versions 0-2.

v1 those that are open for longer than a duration (KIP-994) · v2 those that a pattern matches (KIP-1152)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.group.expressions import compile_expression
from duramen.machines.transaction.commands import ListTransactions
from duramen.machines.transaction.descriptions import STATE_TITLES
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.shell import coordinator_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.list_transactions import ListTransactionsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Ask every machine here; while one of them is still loading nothing is listed, as in Kafka."""
    body = request.body
    states = frozenset(body.state_filters)
    unknown = sorted(states - STATE_TITLES)
    pattern = body.transactional_id_pattern if request.version >= 2 else None
    try:
        matches = compile_expression(pattern) if pattern else None
    except KafkaError as error:
        _refuse(request, error.code)
        return
    duration_ms = body.duration_filter if request.version >= 1 else -1
    command = ListTransactions(states, frozenset(body.producer_id_filters), duration_ms, matches)

    def answered(answers: list[Any]) -> None:
        listed = []
        for answer in answers:
            if not isinstance(answer, DuramenError):
                listed += answer
                continue
            code = coordinator_error(answer)
            if code is not ErrorCode.NOT_COORDINATOR:
                _refuse(request, code)
                return
        request.reply_in_steps(_response(request, listed, unknown))

    request.services.transactions.submit_everywhere(command, answered)


def _refuse(request: Request, code: ErrorCode) -> None:
    request.reply(ListTransactionsResponse.new(error_code=int(code), transaction_states=[]))


def _response(request: Request, listed: list[Any], unknown: list[str]) -> Steps:
    hidden = request.denies(Operation.DESCRIBE, Resource.TRANSACTIONAL_ID, [each.transactional_id for each in listed])
    states = []
    for number, each in enumerate(listed, 1):
        if number % STEP == 0:
            yield
        if each.transactional_id not in hidden:
            states.append(
                ListTransactionsResponse.TransactionState(
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    transaction_state=each.state,
                )
            )
    return ListTransactionsResponse.new(unknown_state_filters=unknown, transaction_states=states)
