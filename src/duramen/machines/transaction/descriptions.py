"""What administrators see of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from duramen.errors import ErrorCode
from duramen.machines.transaction.commands import ListedTransaction, ListTransactions, TransactionDescription
from duramen.machines.transaction.state import Transaction
from duramen.machines.transaction.transitions import TransactionState
from duramen.model import TopicPartition

STATE_TITLES = frozenset({state.title for state in TransactionState} | {"Dead", "PrepareEpochFence"})
"""Names of states that a filter may have; nothing is ever in the last two."""


def describe(
    transactional_id: str, transaction: Transaction | None, unmarked: Set[TopicPartition] | None
) -> TransactionDescription:
    """unmarked: the partitions of a prepared transaction that have no marker yet, None for any other."""
    if not transactional_id:
        return TransactionDescription(transactional_id, ErrorCode.INVALID_REQUEST)
    if transaction is None:
        return TransactionDescription(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    return TransactionDescription(
        transactional_id,
        ErrorCode.NONE,
        transaction.state.title,
        transaction.producer,
        transaction.timeout_ms,
        transaction.started_ms,
        tuple(sorted(transaction.partitions if unmarked is None else unmarked)),
    )


def matching(
    transactions: Mapping[str, Transaction], command: ListTransactions, now: int
) -> Iterable[ListedTransaction]:
    """Those that pass all filters. One that never began a transaction is older than any duration, as in Kafka."""
    for transactional_id, transaction in transactions.items():
        if command.producer_ids and transaction.producer.id not in command.producer_ids:
            continue
        title = transaction.state.title
        if command.states and title not in command.states:
            continue
        if command.duration_ms >= 0 and now - transaction.started_ms <= command.duration_ms:
            continue
        if command.matches is None or command.matches(transactional_id):
            yield ListedTransaction(transactional_id, transaction.producer.id, title)
