"""The transaction machine: transactional ids, their producers and transactions, on `__transaction_state`."""

from duramen.machines.transaction.commands import (
    FIRST_GENERATION,
    NO_PRODUCER,
    SECOND_GENERATION,
    AbortTransaction,
    AddPartitions,
    DescribeTransactions,
    DrawFailed,
    DrawProducerId,
    EndTransaction,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    MarkersAbandoned,
    MarkersWritten,
    TransactionDescription,
    VerifyPartitions,
    WriteMarkers,
)
from duramen.machines.transaction.descriptions import STATE_TITLES
from duramen.machines.transaction.machine import TransactionMachine
from duramen.machines.transaction.settings import TransactionSettings

__all__ = [
    "FIRST_GENERATION",
    "NO_PRODUCER",
    "SECOND_GENERATION",
    "STATE_TITLES",
    "AbortTransaction",
    "AddPartitions",
    "DescribeTransactions",
    "DrawFailed",
    "DrawProducerId",
    "EndTransaction",
    "InitProducer",
    "ListTransactions",
    "ListedTransaction",
    "MarkersAbandoned",
    "MarkersWritten",
    "TransactionDescription",
    "TransactionMachine",
    "TransactionSettings",
    "VerifyPartitions",
    "WriteMarkers",
]
