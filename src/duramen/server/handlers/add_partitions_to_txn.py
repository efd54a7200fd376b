"""AddPartitionsToTxn: partitions join a transaction (KIP-98), or are verified to be part of it (KIP-890). Versions 0-5.

0-3 come from clients, for one transaction (v2 PRODUCER_FENCED); 4 and 5 from brokers, for many (v5
TRANSACTION_ABORTABLE). One partition that is not there, or forbidden, refuses all of its transaction.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from duramen.errors import DuramenError, ErrorCode
from duramen.machines.contract import ProducerEpoch
from duramen.machines.transaction.commands import (
    FIRST_GENERATION,
    SECOND_GENERATION,
    AddPartitions,
    VerifyPartitions,
)
from duramen.model import INTERNAL_TOPICS, TopicPartition
from duramen.server.api.authorizer import CLUSTER_NAME, Operation, Resource
from duramen.server.coordinators.transactions import transaction_error
from duramen.server.net.steps import STEP, Steps
from duramen.wire.messages.add_partitions_to_txn import AddPartitionsToTxnResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request

KNOWS_FENCED: Final = 2
FIRST_OF_BROKERS: Final = 4

Codes = dict[TopicPartition, ErrorCode]


def handle(request: Request) -> None:
    """Each transaction is decided by itself, where its id has its coordinator."""
    body = request.body
    if request.version < FIRST_OF_BROKERS:
        transactional_id = body.v3_and_below_transactional_id
        producer = ProducerEpoch(body.v3_and_below_producer_id, body.v3_and_below_producer_epoch)

        def client_answered(codes: Codes) -> None:
            request.reply_in_steps(_client_response(codes))

        if transactional_id in request.denied:
            refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            client_answered(dict.fromkeys(_partitions(body.v3_and_below_topics), refused))
            return
        topics = body.v3_and_below_topics
        ask = partial(_ask, request, transactional_id, producer, False, client_answered)
        request.in_steps(_look_up(request, topics), ask)
        return
    if request.denies(Operation.CLUSTER_ACTION, Resource.CLUSTER, [CLUSTER_NAME]):
        refused = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        request.reply(AddPartitionsToTxnResponse.new(error_code=int(refused), results_by_transaction=[]))
        return
    asked = {each.transactional_id: each for each in body.transactions}
    found: dict[str, Codes] = {}

    def answered(transactional_id: str, codes: Codes) -> None:
        found[transactional_id] = codes
        if len(found) == len(asked):
            request.reply_in_steps(_response(found))

    if not asked:
        request.reply(AddPartitionsToTxnResponse.new(results_by_transaction=[]))

    def ask_all(looked_up: dict[str, Codes]) -> None:
        for transactional_id, each in asked.items():
            producer = ProducerEpoch(each.producer_id, each.producer_epoch)
            done = partial(answered, transactional_id)
            _ask(request, transactional_id, producer, each.verify_only, done, looked_up[transactional_id])

    request.in_steps(_look_up_all(request, asked), ask_all)


def _partitions(topics: list[Any]) -> list[TopicPartition]:
    return [TopicPartition(topic.name, index) for topic in topics for index in topic.partitions]


def _look_up(request: Request, topics: list[Any]) -> Steps:
    """What there is of these partitions: a code for each, NONE for those that may join."""
    is_client = request.version < FIRST_OF_BROKERS
    denied = request.deny_topics({topic.name for topic in topics}) if is_client else frozenset()
    image = request.services.image
    codes: Codes = {}
    done = 0
    for topic in topics:
        # As in Kafka, where nobody may write to internal topics in a transaction of his own.
        is_denied = topic.name in denied or (is_client and topic.name in INTERNAL_TOPICS)
        for index in topic.partitions:
            done += 1
            if done % STEP == 0:
                yield
            tp = TopicPartition(topic.name, index)
            if is_denied:
                codes[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            else:
                is_there = image.partition(tp) is not None
                codes[tp] = ErrorCode.NONE if is_there else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return codes


def _look_up_all(request: Request, asked: dict[str, Any]) -> Steps:
    found = {}
    for transactional_id, each in asked.items():
        found[transactional_id] = yield from _look_up(request, each.topics)
    return found


def _ask(
    request: Request,
    transactional_id: str,
    producer: ProducerEpoch,
    verify_only: bool,
    done: Callable[[Codes], None],
    codes: Codes,
) -> None:
    if any(codes.values()):
        done({tp: code or ErrorCode.OPERATION_NOT_ATTEMPTED for tp, code in codes.items()})
        return
    partitions = tuple(codes)
    command: Any
    if verify_only:
        command = VerifyPartitions(transactional_id, producer, partitions)
    else:
        is_client = request.version < FIRST_OF_BROKERS
        generation = FIRST_GENERATION if is_client else SECOND_GENERATION
        command = AddPartitions(transactional_id, producer, partitions, generation)

    def answered(answer: Any) -> None:
        if isinstance(answer, DuramenError):
            code = transaction_error(answer, knows_fenced=request.version >= KNOWS_FENCED)
            done(dict.fromkeys(partitions, code))
        else:
            done(codes if answer is None else answer)

    request.services.transactions.submit(transactional_id, command, answered)


# ---- replies -----------------------------------------------------------------------------------------------------


def _results(codes: Codes) -> Steps:
    topics: dict[str, list[Any]] = {}
    for number, (tp, code) in enumerate(codes.items(), 1):
        if number % STEP == 0:
            yield
        result = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
            partition_index=tp.partition, partition_error_code=int(code)
        )
        topics.setdefault(tp.topic, []).append(result)
    return [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)
        for name, results in topics.items()
    ]


def _client_response(codes: Codes) -> Steps:
    results = yield from _results(codes)
    return AddPartitionsToTxnResponse.new(results_by_topic_v3_and_below=results)


def _response(found: dict[str, Codes]) -> Steps:
    results = []
    for transactional_id, codes in found.items():
        topics = yield from _results(codes)
        results.append(
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(transactional_id=transactional_id, topic_results=topics)
        )
    return AddPartitionsToTxnResponse.new(results_by_transaction=results)
