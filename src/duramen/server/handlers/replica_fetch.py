"""Fetch of a replica: records up to the log end for another broker, whose position acknowledges. Versions 17-18.

What it names is checked (topic id, leader epoch, replica and broker epoch, history, offset); the ends of all partitions
that fit are taken first, then each partition settles once. A Fetch waits for records, which are told behind the commit
of their turn, or for another high watermark, told within LATE_SECONDS. Records leave as consumers get them: spans of
files and pieces of memory, whole batches. What has to come from the disk is read beside the loop, and the answer goes
without it.

The session (reads/replica_sessions.py) has rules of its own: an answer brings what changed, a request names what was
answered. An error comes with the high watermark and the log start, where the partition is here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from duramen.errors import CorruptLogError, ErrorCode, KafkaError, StorageError
from duramen.machines.metadata.image import LOST_DIRECTORY, UNASSIGNED_DIRECTORY
from duramen.model import METADATA_TOPIC, NO_TOPIC_ID
from duramen.partition.replica.offset_lookup import divergence
from duramen.partition.replica.partition import Partition
from duramen.server.api.authorizer import CLUSTER_NAME, AllowAll, Operation, Resource
from duramen.server.net.steps import STEP, Steps
from duramen.server.reads.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH, NO_SESSION, Records
from duramen.server.reads.replica_sessions import ReplicaPosition, ReplicaSession, ReplicaSessions
from duramen.storage import Pending
from duramen.wire.messages.fetch import FetchResponse

if TYPE_CHECKING:
    from duramen.server.api.request import Request
    from duramen.server.api.services import Services

_PartitionData = FetchResponse.PartitionData
_Topic = FetchResponse.FetchableTopicResponse
NOTHING = b""

MOST_ANSWERED = 400
"""Partitions in an answer: the others come with the next one. So the request behind it is one of SMALL_BYTES."""

MOST_POSITIONS = 100_000
"""Of a session."""

PAGE_CACHE, CATCH_UP = "page-cache", "catch-up"
"""In what a client id says of its fetcher's purpose, behind `duramen-NODE-` (client/loop/peer_channels.py): its offsets
are log ends; it is far behind."""


def handle(request: Request) -> None:
    """Take what the replica names, and answer when there is something for it."""
    work = _taking(request)
    while True:
        try:
            next(work)
        except StopIteration as end:
            _wait(request, end.value)
            return


def handle_large(request: Request) -> None:
    """The same for one that names many partitions."""
    request.in_steps(_taking(request), partial(_wait, request))


def _taking(request: Request) -> Steps:
    """The session, or why there is none; when everything is taken."""
    try:
        session = _session(request)
    except KafkaError as error:
        return error
    body = request.body
    topics, forgotten = body.topics, body.forgotten_topics_data
    body.topics = body.forgotten_topics_data = ()  # a request may wait for long
    services = request.services
    now = services.clock.monotonic()
    settling: list[Partition] = []
    for number, (topic_id, wanted) in enumerate(_each(topics), 1):
        partition = _take(services, session, topic_id, wanted)
        if (
            partition is not None
            and not (session.counts_log_ends and partition.is_stable)
            and partition.fetched_by(session.node_id, session.broker_epoch, wanted.fetch_offset, now)
        ):
            settling.append(partition)
        if number % STEP == 0:
            yield
    for number, partition in enumerate(settling, 1):
        partition.settle_fetched()
        if number % STEP == 0:
            yield
    for topic in forgotten:
        for index in topic.partitions:
            session.forget(topic.topic_id, index)
    return session


def _each(topics: Any) -> Iterator[tuple[Any, Any]]:
    for topic in topics:
        topic_id = topic.topic_id
        for wanted in topic.partitions:
            yield topic_id, wanted


def _wait(request: Request, session: ReplicaSession | KafkaError) -> None:
    if isinstance(session, KafkaError):
        request.reply(FetchResponse.new(error_code=int(session.code), session_id=0, responses=[]))
    elif not session.closed:
        session.answer = partial(_answer, request, session)
        session.wait(request.body.max_wait_ms / 1000)


# ---- who asks --------------------------------------------------------------------------------------------------------


def _session(request: Request) -> ReplicaSession:
    """The session in which this request goes on, or the one that it begins; KafkaError."""
    services, body, connection = request.services, request.body, request.connection
    state = body.replica_state
    is_open = type(services.access.authorizer) is AllowAll
    if not is_open and request.denies(Operation.CLUSTER_ACTION, Resource.CLUSTER, (CLUSTER_NAME,)):
        raise KafkaError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if body.cluster_id is not None and body.cluster_id != services.node.cluster_id:
        raise KafkaError(ErrorCode.INCONSISTENT_CLUSTER_ID)
    _check_broker(services, state.replica_id, state.replica_epoch)
    sessions = _sessions(services)
    session = sessions.of(connection)
    if session is not None:
        session.interrupt()
    if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        connection.become_peer()
        purpose = request.client_id.split("-", 2)[-1]
        return sessions.begin(
            connection,
            state.replica_id,
            state.replica_epoch,
            counts_log_ends=purpose.startswith(PAGE_CACHE),
            is_far_behind=purpose.endswith(CATCH_UP),
            is_lasting=body.session_epoch == INITIAL_EPOCH,
        )
    who = (state.replica_id, state.replica_epoch)
    if session is None or session.id != body.session_id or (session.node_id, session.broker_epoch) != who:
        raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    if session.epoch != body.session_epoch:
        raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
    session.epoch = 1 if session.epoch >= 2**31 - 1 else session.epoch + 1
    return session


def _check_broker(services: Services, node_id: int, broker_epoch: int) -> None:
    """A process that another one has replaced acknowledges nothing; one that is not known here asks again (KIP-903)."""
    known = services.image.brokers.get(node_id)
    if node_id == services.node.id:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a node does not replicate from itself")
    if known is None or broker_epoch > known.epoch:
        raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, f"no registration {broker_epoch} of node {node_id} is known")
    if broker_epoch < known.epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"node {node_id} is registered as {known.epoch} by now")


def _sessions(services: Services) -> ReplicaSessions:
    found: ReplicaSessions | None = services.fetch_sessions.of_replicas
    if found is None:
        world = services.world
        found = services.fetch_sessions.of_replicas = ReplicaSessions(world.clock, world.executor, world.entropy)
    return found


# ---- what it names ---------------------------------------------------------------------------------------------------


def _take(services: Services, session: ReplicaSession, topic_id: bytes, wanted: Any) -> Partition | None:
    """The partition, if the replica may have it and what it has is the beginning of what is here."""
    if len(session.positions) >= MOST_POSITIONS and (topic_id, wanted.partition) not in session.positions:
        return None
    position = session.name(topic_id, wanted.partition)
    position.epoch = wanted.current_leader_epoch
    position.offset = wanted.fetch_offset
    position.max_bytes = wanted.partition_max_bytes
    # What was told in answer to an earlier Fetch, when this one was on its way, it may have left aside.
    position.told_high_watermark = min(position.told_high_watermark, wanted.high_watermark)
    if wanted.log_start_offset >= 0:
        position.told_log_start = min(position.told_log_start, wanted.log_start_offset)
    partition = None
    try:
        partition = _find(services, session, topic_id, wanted)
        parted = divergence(partition, wanted.last_fetched_epoch, wanted.fetch_offset)
        if parted is None:
            _check_offset(partition, wanted.fetch_offset)
            session.follow(position, partition)
            partition.replication.starts(session.node_id, session.broker_epoch, wanted.log_start_offset)
            return partition
        data = _data(position, partition)
        data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=parted[0], end_offset=parted[1])
    except KafkaError as error:
        if partition is None and topic_id != NO_TOPIC_ID:
            partition = services.store.partition_by_id(topic_id, wanted.partition)
        data = _refusal(position, partition, error.code)
    session.refuse(position, data)
    return None


def _find(services: Services, session: ReplicaSession, topic_id: bytes, wanted: Any) -> Partition:
    """The partition, if this replica follows it here in this epoch; KafkaError."""
    topic = services.image.topic_by_id(topic_id)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    partition = services.store.partition_by_id(topic_id, wanted.partition)
    if partition is None or topic.name == METADATA_TOPIC:
        raise KafkaError(services.partitions.absence(topic.name, wanted.partition))
    stale = partition.replication.epoch_error(wanted.current_leader_epoch)
    if stale is None and wanted.current_leader_epoch < 0:
        stale = ErrorCode.FENCED_LEADER_EPOCH  # who does not say in which epoch he has it proves nothing
    if stale is not None:
        raise KafkaError(stale)
    if session.node_id not in partition.replication.replicas:
        # It may be one since metadata that is not here yet, or was one up to then (as Kafka answers).
        raise KafkaError(ErrorCode.UNKNOWN_LEADER_EPOCH)
    if not _is_home(services, session, topic.partitions[wanted.partition], wanted.replica_directory_id):
        raise KafkaError(ErrorCode.LOG_DIR_NOT_FOUND)
    if wanted.fetch_offset < partition.log.start_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)  # wherever the histories part
    return partition


def _is_home(services: Services, session: ReplicaSession, known: Any, directory_id: bytes) -> bool:
    """Whether the replica's directory is the one that the metadata knows, as far as it still has that."""
    if directory_id == NO_TOPIC_ID or session.node_id not in known.replicas:
        return True
    expected = known.directory_of(session.node_id)
    if expected in (directory_id, UNASSIGNED_DIRECTORY, LOST_DIRECTORY):
        return True
    return expected not in services.image.brokers[session.node_id].directories


def _check_offset(partition: Partition, offset: int) -> None:
    if offset > partition.log.end_offset:
        raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)


# ---- what it is told -------------------------------------------------------------------------------------------------


def _answer(request: Request, session: ReplicaSession, *, due: bool, expired: bool) -> None:
    """Answer the Fetch that waits, if there is enough for it; due: with whatever there is, expired: be it nothing."""
    body = request.body
    found, size, urgent = _collect(request.services, session, body.max_bytes)
    if not due and not urgent and size < min(body.min_bytes, body.max_bytes):
        return  # wait on
    late = list(islice(session.late, MOST_ANSWERED - len(found)))
    if not found and not late and not expired:
        return
    session.end_wait()
    topics: dict[bytes, Any] = {}
    for position, data in found:
        _add(topics, position, data)
        answered = data.records is not NOTHING or data.error_code != 0 or data.diverging_epoch.end_offset >= 0
        session.told(position, data, answered=answered)
    for position in late:
        if position.partition is not None:
            data = _data(position, position.partition)
            _add(topics, position, data)
            session.told(position, data, answered=False)
    request.reply(FetchResponse.new(session_id=session.id, responses=list(topics.values())))
    if session.id == NO_SESSION:
        _sessions(request.services).end(request.connection)


def _add(topics: dict[bytes, Any], position: ReplicaPosition, data: Any) -> None:
    topic = topics.get(position.topic_id)
    if topic is None:
        topics[position.topic_id] = topic = _Topic(topic="", topic_id=position.topic_id, partitions=[])
    topic.partitions.append(data)


def _collect(
    services: Services, session: ReplicaSession, most: int
) -> tuple[list[tuple[ReplicaPosition, Any]], int, bool]:
    """What is ready, in at most so many bytes; its bytes; and whether it is to be told at once.

    What is not in memory leaves the list until it has been read.
    """
    found: list[tuple[ReplicaPosition, Any]] = []
    size, urgent = 0, False
    for position in list(islice(session.ready, MOST_ANSWERED)):
        if size and size >= most:
            break
        data = position.verdict or _read(services, session, position, most - size, at_least_one=size == 0)
        if data is None:
            continue
        found.append((position, data))
        if data.records is not NOTHING:
            size += data.records.size
        else:
            urgent = True
    return found, size, urgent


def _read(
    services: Services, session: ReplicaSession, position: ReplicaPosition, room: int, *, at_least_one: bool
) -> Any | None:
    """Its next records, in at most so many bytes; None: not now."""
    partition = position.partition
    if partition is None or not position.is_led:
        return _refusal(position, partition, _reason(services, position, partition))
    records: Any = position.found
    if records is not None:
        if records.size > room and not at_least_one:
            return None
        if records.size:
            data = _data(position, partition)
            data.records = records
            return data
    try:
        if position.failure is not None:
            raise position.failure
        read = partition.read_as_replica(position.offset, min(position.max_bytes, room), at_least_one)
    except KafkaError as error:
        return _refusal(position, partition, error.code)
    except (CorruptLogError, OSError, StorageError) as error:
        return _damaged(services, position, partition, error)
    if read.parts and type(read.parts[0]) is Pending:
        session.read_off_loop(position, read.parts[0])
        return None
    if not read.size and position.offset < partition.log.end_offset:
        if position.offset >= partition.log.written_end:
            session.look_again(position)
        return None  # or there is no room for its next batch
    data = _data(position, partition)
    if read.size:
        data.records = Records(read.parts, read.size)
    return data


def _data(position: ReplicaPosition, partition: Partition | None) -> Any:
    """How far the partition goes, without records."""
    return _PartitionData(
        partition_index=position.index,
        error_code=0,
        high_watermark=-1 if partition is None else partition.high_watermark,
        log_start_offset=-1 if partition is None else partition.log_start_offset,
        aborted_transactions=None,
        records=NOTHING,
    )


def _refusal(position: ReplicaPosition, partition: Partition | None, code: ErrorCode) -> Any:
    """Who leads it is told, too, where that is known (KIP-951)."""
    data = _data(position, partition)
    data.error_code = int(code)
    if partition is not None and partition.replication.epoch > position.epoch:
        replication = partition.replication
        data.current_leader = FetchResponse.LeaderIdAndEpoch(
            leader_id=replication.leader, leader_epoch=replication.epoch
        )
    return data


def _reason(services: Services, position: ReplicaPosition, partition: Partition | None) -> ErrorCode:
    """Why it is not led here any more in the epoch that the follower named."""
    if services.image.topic_by_id(position.topic_id) is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    stale = None if partition is None or partition.closed else partition.replication.epoch_error(position.epoch)
    return ErrorCode.NOT_LEADER_OR_FOLLOWER if stale is None else stale


def _damaged(services: Services, position: ReplicaPosition, partition: Partition, error: BaseException) -> Any:
    """Damage is an error where nothing sound is in front of it; it is reported with its place, once."""
    corrupt = isinstance(error, CorruptLogError)
    if isinstance(error, CorruptLogError):
        services.store.found_damage(partition.tp, error)
    if position.told_damage != str(error):
        position.told_damage = str(error)
        tp = partition.tp
        services.report("read-failed", partition=tp.partition, topic=tp.topic, error=error)
    return _refusal(position, partition, ErrorCode.CORRUPT_MESSAGE if corrupt else ErrorCode.KAFKA_STORAGE_ERROR)
