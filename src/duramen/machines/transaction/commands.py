"""What the transaction machine is asked, what it answers, and the work outside that it asks for.

A refusal is a KafkaError whose code is the newest one; handlers translate it for old versions of their API. Times are
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.model import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition

NO_PRODUCER = ProducerEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
FIRST_GENERATION = 0
"""`transaction.version` of clients that add partitions themselves; 1 changes records alone."""
SECOND_GENERATION = 2
"""From this `transaction.version` on the epoch rises with each transaction (KIP-890)."""


class InitProducer(NamedTuple):
    """Whose transactional id this is from now on. Answer: the ProducerEpoch to write with.

    producer_id, producer_epoch: what the client had before, both -1 when nothing. fresh_id: a producer id not in use,
    for a new id, or one whose epochs are used up; where it is needed and None, it is asked for by DrawProducerId.
    client_id: whose request it is, told where it ends a transaction that another one has open.
    """

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    fresh_id: int | None = None
    client_id: str = ""


class AddPartitions(NamedTuple):
    """These are part of the transaction from now on; the first begin it. Answer: None.

    transaction_version: 0 from AddPartitionsToTxn 0-3 and AddOffsetsToTxn, 2 from Produce 12 and TxnOffsetCommit 5 on.
    """

    transactional_id: str
    producer: ProducerEpoch
    partitions: tuple[TopicPartition, ...]
    transaction_version: int


class VerifyPartitions(NamedTuple):
    """Are these part of the open transaction? Answer: {TopicPartition: ErrorCode}."""

    transactional_id: str
    producer: ProducerEpoch
    partitions: tuple[TopicPartition, ...]


class EndTransaction(NamedTuple):
    """Commit or abort. Answer, when it is decided for good: the ProducerEpoch of the next transaction, or NO_PRODUCER
    where transaction_version (that of the request) is below 2. fresh_id: as in InitProducer."""

    transactional_id: str
    producer: ProducerEpoch
    commit: bool
    transaction_version: int
    fresh_id: int | None = None


class AbortTransaction(NamedTuple):
    """Fence this producer and abort, if it has an open transaction still. Answer: None."""

    transactional_id: str
    producer: ProducerEpoch
    cause: str
    fresh_id: int | None = None


class MarkersWritten(NamedTuple):
    """Of these partitions nothing is left to be done: the marker is committed, or the topic is gone, or the partition
    knows a later epoch. The last one completes the transaction. Answer: None.

    producer, decided_ms: as in the WriteMarkers that this is the answer to.
    """

    transactional_id: str
    producer: ProducerEpoch
    partitions: tuple[TopicPartition, ...]
    decided_ms: int


class MarkersAbandoned(NamedTuple):
    """The markers were refused for good (another coordinator is known there); those that are left are asked for again
    a while later, should there be none. Answer: None."""

    transactional_id: str
    producer: ProducerEpoch
    decided_ms: int


class DrawFailed(NamedTuple):
    """No producer id could be drawn for `command`. Answer: the error."""

    command: Any
    error: KafkaError


class DescribeTransactions(NamedTuple):
    """Answer: one TransactionDescription for each id, in order."""

    transactional_ids: tuple[str, ...]


class TransactionDescription(NamedTuple):
    """state: as Kafka spells it. partitions: those whose marker is still to be written; start_ms: -1 before the first
    transaction."""

    transactional_id: str
    error: ErrorCode = ErrorCode.NONE
    state: str = ""
    producer: ProducerEpoch = NO_PRODUCER
    timeout_ms: int = 0
    start_ms: int = -1
    partitions: tuple[TopicPartition, ...] = ()


class ListTransactions(NamedTuple):
    """Answer: list of ListedTransaction. Empty filters let everything pass; a state's name that is unknown matches none
    (`descriptions.STATE_TITLES`). duration_ms: longer than this, -1 any. matches: the compiled pattern of ids."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    matches: Callable[[str], bool] | None = None


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: str


# ---------------------------------------------------------------------- follow-ups


class SweepRefused(NamedTuple):
    """Follow-up: the log did not take what this timer writes, or what it writes when that is refused; it runs later."""

    timer: str


# ---------------------------------------------------------------------- effects


class WriteMarkers(NamedTuple):
    """Write a marker into each of these partitions, until each is written or needs none; tell by MarkersWritten.

    producer: of the markers. transaction_version: the rule that partitions judge them by. decided_ms: goes back with
    the answer: with the first generation the next transaction has the same producer epoch, and a late answer about the
    markers of this one would complete it without its own. cause: why the coordinator itself aborted, ""
    when a client ended it.
    """

    transactional_id: str
    producer: ProducerEpoch
    commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    decided_ms: int
    cause: str = ""


class ResumeParked(NamedTuple):
    """Effect, and then command: what waited for the end of this id's last transaction is decided now."""

    transactional_id: str


class DrawProducerId(NamedTuple):
    """Draw a producer id, then decide `command` again for the same ticket with it in `fresh_id`, or DrawFailed."""

    ticket: int
    command: Any
