"""Fetch: whole record batches from partitions, at once or when enough has come. Versions 4-18.

A request that finds less than `min_bytes` is parked: its partitions call it back when their high watermark moves, and
a timer answers with what there is after `max_wait_ms`. Record bytes are never copied: the reply is encoded around
spans of the segment files. Cold pieces are read and verified off the loop first.

v7 sessions (KIP-227) · v9 leader epoch check (KIP-320) · v12 flexible, diverging epoch (KIP-595) · v13 topic ids ·
v15 replica state · v16 leader hints (KIP-951) · v17 directory id · v18 follower's high watermark

Only the leader answers, but for replica id -2, by which Kafka's ReplicaVerificationTool reads any replica: up to the
high watermark that it knows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from duramen.errors import CorruptLogError, ErrorCode, KafkaError, StorageError
from duramen.model import TopicPartition
from duramen.partition.replica.offset_lookup import epoch_end, is_at_end
from duramen.partition.replica.partition import READ_COMMITTED, Partition
from duramen.ports import Timer
from duramen.server.api.leader_hints import NOT_THE_LEADER, LeaderHints
from duramen.server.net.loop import after_others
from duramen.server.net.steps import STEP, Steps
from duramen.server.reads.fetch_answers import NOTHING, FetchResult, PartitionAnswer, read_cold
from duramen.server.reads.fetch_sessions import FetchPlan, FetchTarget, Records
from duramen.storage import SPAN_BYTES, Pending
from duramen.wire.messages.fetch import FetchResponse
from duramen.wire.runtime import blob_size

if TYPE_CHECKING:
    from duramen.server.api.request import Request

_PartitionData = FetchResponse.PartitionData
_Topic = FetchResponse.FetchableTopicResponse
_Aborted = FetchResponse.AbortedTransaction

MANY = 1_000
"""Partitions of one request: more are read in steps."""

FIRST_VERSION_WITH_LEADER_HINTS = 16
FIRST_VERSION_WITH_REPLICA_STATE = 15
ANY_REPLICA = -2
"""Kafka's replica id of a debugging consumer."""

MAX_PARKED_PARTITIONS = 1_000_000
"""Of all requests that wait; some 300 bytes each. Beyond it they are answered with what there is."""


class FetchCall:
    """One Fetch request until it is answered: read, perhaps parked, perhaps waiting for cold bytes."""

    __slots__ = (
        "_enough",
        "_hints",
        "_most",
        "_parked",
        "done",
        "of_leader",
        "plan",
        "request",
        "timer",
        "waking",
        "watched",
    )

    def __init__(self, request: Request, plan: FetchPlan) -> None:
        self.request = request
        self.plan = plan
        body = request.body
        has_state = request.version >= FIRST_VERSION_WITH_REPLICA_STATE
        self.of_leader = (body.replica_state.replica_id if has_state else body.replica_id) != ANY_REPLICA
        self._most = min(body.max_bytes, request.services.settings.fetch_max_bytes)
        # Waiting for more than may be sent would always end with the time-out.
        self._enough = min(body.min_bytes, self._most)
        self.timer: Timer | None = None
        self.watched: list[Partition] = []
        self._parked = 0
        """Partitions of it that the broker counts."""
        self._hints: LeaderHints | None = None
        self.waking = False
        self.done = False

    # ---- waiting ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Answer at once if there is enough, else park."""
        body = self.request.body
        services = self.request.services
        count = len(self.plan.targets)
        may_wait = body.max_wait_ms > 0 and 0 < count <= MAX_PARKED_PARTITIONS - services.parked.partitions
        partitions = self._at_their_ends() if may_wait else None
        if partitions is None:
            found = self._read_all()
            if found.urgent or found.size >= self._enough or not may_wait:
                self._answer(found)
                return
            partitions = [p for target in self.plan.targets if (p := self._partition(target)) is not None]
        self._parked = count
        services.parked.partitions += count
        self.watched = partitions
        for partition in partitions:
            partition.watch(self.wake)
        self.request.connection.on_close(self.abandon)
        self.timer = services.clock.call_later(body.max_wait_ms / 1000, self.expire)

    def _at_their_ends(self) -> list[Partition] | None:
        """The partitions, if each of them has nothing to tell: most requests of who follows a log find it so."""
        if self._enough <= 0:
            return None
        isolation = self.request.body.isolation_level
        partitions = []
        try:
            for target in self.plan.targets:
                partition = _check(self, target)
                if target.last_fetched_epoch >= 0 or not is_at_end(partition, target.fetch_offset, isolation):
                    return None
                partitions.append(partition)
        except KafkaError:
            return None  # reading finds it, too
        return partitions

    def wake(self) -> None:
        """More may be readable: look again, in this broker's turn for woken readers."""
        if not self.waking and not self.done:
            self.waking = True
            self.request.services.parked.wake_soon(self)

    def retry(self) -> None:
        """Our turn: answer if there is enough by now, else wait on.

        Not on a partition that is gone: another topic may have its name by now, and would wake nobody who waits here.
        """
        self.waking = False
        if self.done:
            return
        found = self._read_all()
        if found.urgent or found.size >= self._enough or any(partition.closed for partition in self.watched):
            self._answer(found)

    def expire(self) -> None:
        """`max_wait_ms` passed: answer with what there is."""
        self.timer = None
        if not self.done:
            self._answer(self._read_all())

    def abandon(self) -> None:
        """The connection ended."""
        self._unpark()

    def _unpark(self) -> None:
        self.done = True
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        for partition in self.watched:
            partition.unwatch(self.wake)
        if self.watched:
            self.request.connection.forget(self.abandon)
            self.watched = []
        self.request.services.parked.partitions -= self._parked
        self._parked = 0

    # ---- reading ---------------------------------------------------------------------------------------------

    def _partition(self, target: FetchTarget) -> Partition | None:
        key = target.key
        if self.request.version >= 13:
            return self.request.services.partitions.find_by_id(key.topic_id, key.partition)
        return self.request.services.partitions.find(key.name, key.partition)

    def _read_all(self) -> FetchResult:
        found = FetchResult()
        self._read_some(self.plan.targets, found)
        return found

    def _read_some(self, targets: list[FetchTarget], found: FetchResult) -> None:
        """Add what there is for these."""
        answers, total, cold = found.answers, found.size, found.cold
        for target in targets:
            answer = self._read_one(target, self._most - total, at_least_one=total == 0)
            if answer.read is not None and answer.is_cold:
                cold += answer.read.size
                request = self.request
                most = request.services.cold_reads.reply_bytes(request.connection, recent=answer.is_recent)
                if cold > most and cold > answer.read.size:
                    answer.leave_out()
            if answer.read is not None and answer.read.size:
                total += answer.read.size
                found.full.append(answer)
            if answer.data.error_code or answer.data.diverging_epoch.end_offset >= 0:
                found.urgent = True
            answers.append(answer)
        found.size, found.cold = total, cold

    def _read_one(self, target: FetchTarget, budget: int, *, at_least_one: bool) -> PartitionAnswer:
        data = _PartitionData(
            partition_index=target.key.partition, high_watermark=-1, aborted_transactions=None, records=NOTHING
        )
        try:
            partition = _check(self, target)
            if target.last_fetched_epoch >= 0 and self._diverged(partition, target, data):
                return PartitionAnswer(target, data, None, None, at_least_one=at_least_one)
            most = min(target.max_bytes, budget)
            isolation = self.request.body.isolation_level
            read = partition.read(target.fetch_offset, max(most, 0), isolation, at_least_one=at_least_one)
        except KafkaError as error:
            data.error_code = int(error.code)
            return PartitionAnswer(target, data, None, None, at_least_one=at_least_one)
        except (CorruptLogError, OSError, StorageError) as error:
            self._damaged(target, data, error)
            return PartitionAnswer(target, data, None, None, at_least_one=at_least_one)
        data.high_watermark = read.high_watermark
        data.last_stable_offset = read.last_stable_offset
        data.log_start_offset = read.log_start_offset
        if isolation == READ_COMMITTED:
            data.aborted_transactions = [
                _Aborted(producer_id=producer, first_offset=first) for producer, first in read.aborted or ()
            ]
        if read.parts:
            data.records = Records(read.parts, read.size)
        return PartitionAnswer(target, data, partition, read, at_least_one=at_least_one)

    def _diverged(self, partition: Partition, target: FetchTarget, data: Any) -> bool:
        """Tell a reader whose history is not ours where the histories part (KIP-595)."""
        epoch, end = epoch_end(partition, target.last_fetched_epoch)
        if epoch < 0:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, "no history is known for the last fetched epoch")
        if epoch == target.last_fetched_epoch and end >= target.fetch_offset:
            return False
        data.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end)
        data.high_watermark = partition.high_watermark
        data.last_stable_offset = partition.last_stable_offset
        data.log_start_offset = partition.log_start_offset
        return True

    def _damaged(self, target: FetchTarget, data: Any, error: BaseException) -> None:
        """Damage is an error where nothing sound is in front of it, never an empty answer."""
        corrupt = isinstance(error, CorruptLogError)
        data.error_code = int(ErrorCode.CORRUPT_MESSAGE if corrupt else ErrorCode.KAFKA_STORAGE_ERROR)
        data.records = NOTHING
        if isinstance(error, CorruptLogError):
            self.request.services.store.found_damage(TopicPartition(target.name, target.key.partition), error)
        self.request.services.report("read-failed", partition=target.key.partition, topic=target.name, error=error)

    # ---- answering -------------------------------------------------------------------------------------------

    def _answer(self, found: FetchResult) -> None:
        self._unpark()
        connection = self.request.connection
        cold = [answer for answer in found.full if answer.is_cold]
        if connection.is_backed_up or "cold" in connection.muted:
            # Cold bytes are memory until they are sent: one such reply at a time for a connection. Of several requests
            # that were parked the others bring nothing of the kind; and none brings more than its client takes.
            for answer in found.full if connection.is_backed_up else cold:
                answer.leave_out()
            cold = []
        if not cold:
            for answer in found.full:
                if answer.read is not None and not answer.read.is_old:
                    self.request.services.cold_reads.served(connection)
                    break
            self._send(found)
            return

        pending = [part for answer in cold if answer.read for part in answer.read.parts if isinstance(part, Pending)]
        connection.mute("cold")
        cold_reads = self.request.services.cold_reads
        recent = all(part.recent for part in pending)

        def limit(most: int) -> int:
            alone = cold_reads.is_alone(connection)
            for part in pending:
                part.limit(most, stays=alone)
            return sum(part.size for part in pending)

        def warmed(failures: list[tuple[PartitionAnswer, BaseException]] | None, error: BaseException | None) -> None:
            if error is not None:
                failures = [(answer, error) for answer in cold]
            for answer, failure in failures or ():
                self._damaged(answer.target, answer.data, failure)
            brought = sum(part.complete() for part in pending)
            for answer in cold:
                if answer.is_back:
                    self._read_back(answer)
                else:
                    answer.send_from_file()
            if recent:
                self._leave(found)
                return
            cold_reads.pay(connection, brought)
            rate, throttle_ms = cold_reads.leaving(connection, brought)
            leave = partial(self._leave, found, throttle_ms, rate)
            if rate:
                after_others(self.request.services.clock, leave)  # this turn has done enough for old data
            else:
                leave()

        cold_reads.submit(connection, limit, partial(read_cold, cold), warmed, recent=recent)

    def _leave(self, found: FetchResult, throttle_ms: int = 0, rate: float | None = None) -> None:
        """With what was not in memory; None: at the pace that this client's replies have."""
        if rate is not None:
            self.request.connection.outbox.slow_down(rate)
        self._send(found, throttle_ms)
        self.request.connection.unmute("cold")

    def _read_back(self, answer: PartitionAnswer) -> None:
        """The same read again, which finds in memory by now what it waited for."""
        assert answer.read is not None
        again = self._read_one(answer.target, answer.read.size, at_least_one=answer.at_least_one)
        answer.data, answer.partition, answer.read = again.data, again.partition, again.read
        if answer.is_cold:
            answer.leave_out()

    def _send(self, found: FetchResult, throttle_ms: int = 0) -> None:
        topics: dict[Any, Any] = {}
        brought = self._gather(found.answers, topics)
        self.request.reply(self._response(topics, throttle_ms))
        if brought >= SPAN_BYTES:
            self.request.services.clock.call_soon(partial(self._look_ahead, found.full))

    def _gather(self, answers: list[PartitionAnswer], by_topic: dict[Any, Any]) -> int:
        """Put what is to be told into the topics of the reply; bytes of records in it."""
        session = self.plan.session
        brought = 0
        for answer in answers:
            key = answer.target.key
            size = blob_size(answer.data.records)
            brought += size
            if size and answer.partition is not None:
                answer.partition.bytes_out += size
            if session is not None:
                changed = _changed(answer)
                answer.target.told_high_watermark = answer.data.high_watermark
                answer.target.told_log_start = answer.data.log_start_offset
                if answer.read is not None and answer.read.size:
                    session.rotate(key)
                if self.plan.incremental and not changed:
                    continue
            topic = by_topic.get((key.topic_id, key.name))
            if topic is None:
                topic = _Topic(topic=key.name, topic_id=key.topic_id, partitions=[])
                by_topic[(key.topic_id, key.name)] = topic
            topic.partitions.append(answer.data)
            if answer.data.error_code in NOT_THE_LEADER:
                self._name_leader(answer)
        return brought

    def _name_leader(self, answer: PartitionAnswer) -> None:
        if self.request.version >= FIRST_VERSION_WITH_LEADER_HINTS:
            self._hints = self._hints or LeaderHints(self.request, FetchResponse)
            self._hints.name(answer.data, answer.target.name, answer.target.key.partition)

    def _response(self, topics: dict[Any, Any], throttle_ms: int) -> Any:
        return FetchResponse.new(
            throttle_time_ms=throttle_ms,
            session_id=self.plan.session_id,
            responses=list(topics.values()),
            node_endpoints=[] if self._hints is None else self._hints.endpoints,
        )

    def _look_ahead(self, answers: list[PartitionAnswer]) -> None:
        """While the client takes the reply: have in memory what it will ask for next, where the machine took it out."""
        recalls = []
        for answer in answers:
            read = answer.read
            if read is None or read.size < SPAN_BYTES:
                continue  # of a thousand partitions most
            partition = self._partition(answer.target)
            if partition is not None:
                with suppress(CorruptLogError, OSError, StorageError):  # who reads it will be told
                    recalls.append(partition.log.read_ahead(read.next_offset, read.size))
        self.request.services.cold_reads.recall([recall for recall in recalls if recall is not None])


def _check(call: FetchCall, target: FetchTarget) -> Partition:
    """The partition, if this request may read it here; KafkaError otherwise."""
    request = call.request
    by_id = request.version >= 13
    image = request.services.image
    name = target.name
    if by_id and not name:
        found = image.topic_name(target.key.topic_id)
        if found is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
        target.name = name = found
    is_named = not by_id and call.plan.session is None
    if name in request.denied or (not is_named and request.deny_topics([name])):
        raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    partition = call._partition(target)
    if partition is None:
        # In a session an id keeps the name it was first known by: who took the name since is another topic.
        if by_id and image.topic(name) not in (None, image.topic_by_id(target.key.topic_id)):
            raise KafkaError(ErrorCode.INCONSISTENT_TOPIC_ID)
        raise KafkaError(request.services.partitions.absence(name, target.key.partition))
    stale = partition.replication.epoch_error(target.current_leader_epoch, of_leader=call.of_leader)
    if stale is not None:
        raise KafkaError(stale)
    return partition


def _changed(answer: PartitionAnswer) -> bool:
    """Whether an incremental reply has to mention this partition."""
    data, target = answer.data, answer.target
    if data.error_code:
        # An error is repeated every time until the client stops asking.
        target.told_high_watermark = -1
        return True
    return bool(
        (answer.read is not None and answer.read.size)
        or data.diverging_epoch.end_offset >= 0
        or data.high_watermark != target.told_high_watermark
        or data.log_start_offset != target.told_log_start
    )


class LargeFetchCall(FetchCall):
    """One of many partitions: they are read, and the reply is put together, in steps."""

    __slots__ = ("_again", "_found", "_then")

    def __init__(self, request: Request, plan: FetchPlan) -> None:
        super().__init__(request, plan)
        self._found = FetchResult()
        self._then: Callable[[], None] | None = None
        """What is done with what is being read; None while nothing is."""
        self._again = False
        """Whether more may have come since it was read."""

    def start(self) -> None:
        self._read(self._started)

    def retry(self) -> None:
        self.waking = False
        if self._then is not None:
            self._again = True
        elif not self.done:
            self._read(super().retry)

    def expire(self) -> None:
        if self._then is not None:
            self._then = super().expire
        elif not self.done:
            self._read(super().expire)

    def _started(self) -> None:
        super().start()
        self._again = True  # nobody was watched meanwhile

    def _read(self, then: Callable[[], None]) -> None:
        self._then = then
        self._again = False
        self.request.in_steps(self._reading(), self._was_read)

    def _reading(self) -> Steps:
        found = FetchResult()
        targets = self.plan.targets
        for start in range(0, len(targets), STEP):
            if start:
                yield
            self._read_some(targets[start : start + STEP], found)
        return found

    def _was_read(self, found: FetchResult) -> None:
        self._found = found
        then, self._then = self._then, None
        if then is not None and not self.done:
            then()
        self._found = FetchResult()
        if self._again and not self.done:
            self.wake()

    def _read_all(self) -> FetchResult:
        return self._found

    def _at_their_ends(self) -> list[Partition] | None:
        return None  # they were read in steps, and so many are not looked at again in one

    def _send(self, found: FetchResult, throttle_ms: int = 0) -> None:
        self.request.reply_in_steps(self._replying(found, throttle_ms))

    def _replying(self, found: FetchResult, throttle_ms: int) -> Steps:
        topics: dict[Any, Any] = {}
        brought = 0
        for start in range(0, len(found.answers), STEP):
            if start:
                yield
            brought += self._gather(found.answers[start : start + STEP], topics)
        if brought >= SPAN_BYTES:
            self.request.services.clock.call_soon(partial(self._look_ahead, found.full))
        return self._response(topics, throttle_ms)


FIRST_OF_REPLICAS = 17
"""Version of the Fetch that other brokers send: they follow what is led here."""


def _of_replicas(request: Request) -> Any:
    """What answers another broker, loaded on demand, for a node alone has none; None: a consumer asks."""
    if request.body.replica_state.replica_id < 0 or request.version < FIRST_OF_REPLICAS:
        return None
    return import_module("duramen.server.handlers.replica_fetch")


def handle(request: Request) -> None:
    """Resolve the session, then read or park."""
    if (replicas := _of_replicas(request)) is not None:
        replicas.handle(request)
        return
    services = request.services
    try:
        plan = services.fetch_sessions.plan(request.body, request.version, services.clock.monotonic())
    except KafkaError as error:
        request.reply(FetchResponse.new(error_code=int(error.code), session_id=0, responses=[]))
        return
    _start(request, plan)


def handle_large(request: Request) -> None:
    """The same for a request that names many partitions."""
    if (replicas := _of_replicas(request)) is not None:
        replicas.handle_large(request)
        return
    services = request.services
    work = services.fetch_sessions.plan_in_steps(request.body, request.version, services.clock.monotonic())
    request.in_steps(_planned(work), partial(_start_or_refuse, request))


def _planned(work: Steps) -> Steps:
    try:
        return (yield from work)
    except KafkaError as error:
        return error


def _start_or_refuse(request: Request, plan: FetchPlan | KafkaError) -> None:
    if isinstance(plan, KafkaError):
        request.reply(FetchResponse.new(error_code=int(plan.code), session_id=0, responses=[]))
    else:
        _start(request, plan)


def _start(request: Request, plan: FetchPlan) -> None:
    request.body.topics = request.body.forgotten_topics_data = ()  # the plan has them; a request may wait for long
    (FetchCall if len(plan.targets) <= MANY else LargeFetchCall)(request, plan).start()
