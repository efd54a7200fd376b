"""DescribeTransactions: state, producer and partitions of transactional ids (KIP-664). Version 0."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.transaction.commands import DescribeTransactions, TransactionDescription
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.shell import coordinator_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.describe_transactions import DescribeTransactionsResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request


def handle(request: Request) -> None:
    """Ask each machine about all its ids."""
    names = list(dict.fromkeys(request.body.transactional_ids))  # once each, as in describe_producers.py
    described: dict[str, TransactionDescription] = {}

    def answered(asked: list[str], answer: Any) -> None:
        if isinstance(answer, DuramenError):
            answer = [TransactionDescription(name, coordinator_error(answer)) for name in asked]
        described.update(zip(asked, answer, strict=True))
        if len(described) == len(names):
            request.reply_in_steps(_response(request, [described[name] for name in names]))

    transactions = request.services.transactions
    denied = [name for name in names if name in request.denied] if request.denied else []
    if denied or not names:
        refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        answered(denied, [TransactionDescription(name, refused) for name in denied])

    def ask(some: list[str]) -> None:
        for asked in transactions.sharing(some):
            transactions.submit(asked[0], DescribeTransactions(tuple(asked)), partial(answered, asked))

    allowed = [name for name in names if name not in request.denied] if denied else names
    transactions.in_turns(request, allowed, ask)


def _response(request: Request, descriptions: list[TransactionDescription]) -> Steps:
    states = []
    done = 0
    for each in descriptions:
        states.append(_state(request, each))
        done += 1 + len(each.partitions)
        if done >= STEP:
            done = 0
            yield
    return DescribeTransactionsResponse.new(transaction_states=states)


def _state(request: Request, described: TransactionDescription) -> Any:
    if described.error is not ErrorCode.NONE:  # all else is zero, as in Kafka
        return DescribeTransactionsResponse.TransactionState(
            error_code=int(described.error), transactional_id=described.transactional_id
        )
    topics: dict[str, list[int]] = {}
    for tp in described.partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    # Nobody is told of topics that he may not know of.
    hidden = request.denies(Operation.DESCRIBE, Resource.TOPIC, topics)
    return DescribeTransactionsResponse.TransactionState(
        transactional_id=described.transactional_id,
        transaction_state=described.state,
        transaction_timeout_ms=described.timeout_ms,
        transaction_start_time_ms=described.start_ms,
        producer_id=described.producer.id,
        producer_epoch=described.producer.epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=name, partitions=indexes)
            for name, indexes in topics.items()
            if name not in hidden
        ],
    )
