"""TxnOffsetCommit: a group's positions, which count when the producer's transaction commits. Versions 0-5.

v2 leader epoch, and COORDINATOR_LOAD_IN_PROGRESS is known · v3 member, generation and instance id (KIP-447) · v4
TRANSACTION_ABORTABLE is known · v5 adds the group's partition to the transaction (KIP-890)

The group's partition has to be part of the transaction before anything is written there: its coordinator is asked,
unless the transaction has written there already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from duramen.errors import DuramenError, ErrorCode, KafkaError
from duramen.machines.contract import ProducerEpoch
from duramen.machines.group.commands import CommitTransactionOffsets, NewOffset
from duramen.model import FIRST_NAMED_PRODUCER_ID, TopicPartition
from duramen.partition.replica import transactional_writes
from duramen.partition.replica.partition import PLAIN
from duramen.server.api.authorizer import Operation, Resource
from duramen.server.coordinators.groups import group_error
from duramen.server.handlers.offset_commit import MAX_AT_ONCE
from duramen.server.net.steps import STEP, Steps
from duramen.storage import TransactionGuard
from duramen.wire.messages.txn_offset_commit import TxnOffsetCommitResponse

if TYPE_CHECKING:
    from duramen.partition.replica.partition import Partition
    from duramen.server.api.request import Request

KNOWS_LOADING: Final = 2
KNOWS_ABORTABLE: Final = 4
ADDS_PARTITION: Final = 5
NO_SEQUENCE: Final = -1

Pending = list[tuple[Any, NewOffset]]
"""(entry of the response, what is to be committed for it)."""


def handle(request: Request) -> None:
    """Commit what can be committed; every partition has its own error."""
    call = _TxnOffsetCommitCall(request)
    request.in_steps(call.check(), lambda _: call.begin())


class _TxnOffsetCommitCall:
    """One TxnOffsetCommit until it is answered."""

    def __init__(self, request: Request) -> None:
        body = request.body
        self._request = request
        self._producer = ProducerEpoch(body.producer_id, body.producer_epoch)
        self._adds = request.version >= ADDS_PARTITION
        self._response = TxnOffsetCommitResponse.new(topics=[])
        self._pending: Pending = []
        self._open = 1

    def check(self) -> Steps:
        """Make an entry of the response for every partition; what can be committed is pending then."""
        request, body = self._request, self._request.body
        refused = ErrorCode.NONE
        if body.transactional_id in request.denied:
            refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif request.denies(Operation.READ, Resource.GROUP, [body.group_id]):
            refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
        done = 0
        for topic in body.topics:
            done += 1
            if done % STEP == 0:
                yield
            entries: list[Any] = []
            self._response.topics.append(
                TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=entries)
            )
            known = request.services.image.topic(topic.name)
            count = 0 if known is None else len(known.partitions)
            code = refused
            if code is ErrorCode.NONE and request.denies(Operation.READ, Resource.TOPIC, [topic.name]):
                code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            for wanted in topic.partitions:
                done += 1
                if done % STEP == 0:
                    yield
                index = wanted.partition_index
                entry = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(partition_index=index)
                entries.append(entry)
                if code is ErrorCode.NONE and known is not None and 0 <= index < count:
                    offset = NewOffset(
                        topic.name,
                        index,
                        wanted.committed_offset,
                        wanted.committed_leader_epoch,
                        wanted.committed_metadata or "",
                        known.id,
                    )
                    self._pending.append((entry, offset))
                else:
                    entry.error_code = int(code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    # ---- the transaction -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """See that the group's partition is part of the transaction, then commit."""
        body = self._request.body
        if not self._pending:
            self._settled()
        elif not body.group_id:
            self._refuse(ErrorCode.INVALID_GROUP_ID)
        elif not 0 <= body.producer_id < FIRST_NAMED_PRODUCER_ID:
            self._refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        elif body.producer_epoch < 0:
            self._refuse(ErrorCode.INVALID_PRODUCER_EPOCH)
        else:
            self._request.services.groups.ensure_topics(self._with_topic)

    def _with_topic(self, code: ErrorCode) -> None:
        services = self._request.services
        tp = services.groups.partition_of(self._request.body.group_id)
        if tp is None:
            self._refuse(code or ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        partition = services.store.partitions.get(tp)
        if partition is None:
            self._refuse(ErrorCode.NOT_COORDINATOR)
        elif not self._adds and not services.config.boolean("transaction.partition.verification.enable"):
            self._commit(partition, PLAIN)
        else:
            self._verify(partition)

    def _verify(self, partition: Partition) -> None:
        try:
            guard = transactional_writes.transaction_guard(partition, self._producer, NO_SEQUENCE, self._adds)
        except DuramenError as error:
            self._refuse(group_error(error))
            return
        if guard is None:
            self._commit(partition, None)
            return
        tp = partition.tp

        def answered(refused: dict[TopicPartition, ErrorCode]) -> None:
            if refused.get(tp, ErrorCode.NONE) is ErrorCode.NONE:
                self._commit(partition, guard)
            else:
                self._refuse(refused[tp])

        transactional_id = self._request.body.transactional_id
        self._request.services.transactions.verify(transactional_id, self._producer, (tp,), not self._adds, answered)

    # ---- the offsets -----------------------------------------------------------------------------------------

    def _commit(self, partition: Partition, guard: TransactionGuard | None) -> None:
        """Have the group's machine commit what is pending, in pieces if that is much."""
        self._request.in_steps(self._pieces(partition, guard), lambda _: self._settled())

    def _pieces(self, partition: Partition, guard: TransactionGuard | None) -> Steps:
        pending = self._pending
        for start in range(0, len(pending), MAX_AT_ONCE):
            if start:
                yield
            piece = self._of_topics_there(pending[start : start + MAX_AT_ONCE])
            if piece:
                self._submit(piece, partition, guard)

    def _of_topics_there(self, piece: Pending) -> Pending:
        """Without the positions of topics that were deleted meanwhile, as OffsetCommit."""
        topic_id = self._request.services.image.topic_id
        there: Pending = []
        for entry, offset in piece:
            if topic_id(offset.topic) == offset.topic_id:
                there.append((entry, offset))
            else:
                entry.error_code = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return there

    def _submit(self, piece: Pending, partition: Partition, guard: TransactionGuard | None) -> None:
        """In one turn: what the guard is worth now it is worth when the machine's records are appended."""
        body = self._request.body

        def answered(answer: Any) -> None:
            failed = self._told(group_error(answer)) if isinstance(answer, DuramenError) else None
            for number, (entry, _) in enumerate(piece):
                entry.error_code = int(answer[number] if failed is None else failed)
            self._settled()

        self._open += 1
        if guard is not PLAIN:
            try:
                transactional_writes.check_guard(partition, self._producer, guard)
            except KafkaError as error:
                answered(error)
                return
        command = CommitTransactionOffsets(
            body.group_id,
            body.member_id,
            body.group_instance_id,
            body.generation_id,
            self._producer,
            tuple(offset for _, offset in piece),
        )
        self._request.services.groups.submit(body.group_id, command, answered)

    def _told(self, code: ErrorCode) -> ErrorCode:
        """As this version knows it, which has other errors than the transaction's own requests."""
        version = self._request.version
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if code is ErrorCode.TRANSACTION_ABORTABLE and version < KNOWS_ABORTABLE:
            return ErrorCode.INVALID_TXN_STATE
        if code is ErrorCode.NETWORK_EXCEPTION:
            # Of the way to the transaction's coordinator, of which the client knows nothing.
            code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and version < KNOWS_LOADING:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return code

    def _refuse(self, code: ErrorCode) -> None:
        told = int(self._told(code))
        for entry, _ in self._pending:
            entry.error_code = told
        self._settled()

    def _settled(self) -> None:
        self._open -= 1
        if self._open == 0:
            self._request.reply(self._response)
