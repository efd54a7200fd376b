"""One fetcher: the partitions that this node follows of one leader, for one purpose, by one Fetch after the other.

A Fetch names the ends of the logs, all of which is where their topics' durability wants it: so it acknowledges them.
What an answer brings is appended, all of it becomes durable together, and only then the next Fetch leaves. It leaves
out a partition of a page-cache topic whose transaction markers are not on stable storage yet. The leader keeps the
positions in a session (KIP-227): named is what changed. While one Fetch waits at the leader a second one may follow,
for what is to be fetched from now on; the leader answers the first one then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from duramen.client.loop.node_client import BY_NAME, NodeRequest
from duramen.client.loop.peer_channel import PeerChannel
from duramen.client.loop.peer_channels import PeerChannels, Purpose
from duramen.errors import DuramenError, ErrorCode, KafkaError, StorageError
from duramen.machines.replication.follower import (
    Append,
    BeginAnew,
    Cut,
    FetchedPartition,
    FollowerStep,
    GiveUp,
    Pause,
)
from duramen.model import TopicId
from duramen.partition.replica.follower import append_batches, cut
from duramen.partition.store.store import Store
from duramen.ports import Timer, World
from duramen.server.api.services import EventReport
from duramen.server.replication.replica_target import ReplicaTarget, TargetKey
from duramen.storage import NoRoomError, without_traceback
from duramen.wire.messages import fetch

VERSION: Final = 18
ANSWER_SECONDS: Final = 10.0
"""How long an answer may take beyond what the leader was asked to wait."""
SETTLE_SECONDS: Final = 0.01
"""Between two looks at a log that is being cut, or whose end is not durable yet."""
FAILED_SECONDS: Final = 1.0
"""The same in a directory that takes no writes."""
BATCHES_AT_ONCE: Final = 512
"""Batches that one turn of the loop appends, at most."""
MOST_OUT: Final = 2
"""Fetches on the way at once: one waits at the leader, another names what is new."""
JITTER: Final = 0.2
TICK_SECONDS: Final = 0.0005
"""What is due so soon is due: a sum of times may be a little more than the time that it stands for."""
LAST_EPOCH: Final = 0x7FFFFFFF


class FetcherSettings(NamedTuple):
    """`replica.fetch.*`: bytes and milliseconds."""

    max_bytes: int
    response_max_bytes: int
    wait_max_ms: int
    min_bytes: int
    backoff_ms: int


class _Received(NamedTuple):
    """Records of an answer that are not appended yet. named: what they answer."""

    target: ReplicaTarget
    named: object
    records: memoryview


class ReplicaFetcher:
    """See the module. Loop thread only.

    on_moved: gets a target whose topic's durability is another one by now, and which belongs to another fetcher.
    """

    def __init__(
        self,
        world: World,
        store: Store,
        channels: PeerChannels,
        node_id: int,
        leader_id: int,
        purpose: Purpose,
        settings: FetcherSettings,
        report: EventReport,
        on_moved: Callable[[ReplicaTarget], None],
    ) -> None:
        self.leader_id = leader_id
        self.purpose = purpose
        self.broker_epoch = -1
        self._clock = world.clock
        self._entropy = world.entropy
        self._store = store
        self._channels = channels
        self._node_id = node_id
        self._settings = settings
        self._report = report
        self._on_moved = on_moved
        self._address: tuple[str, int] | None = None
        self._channel: PeerChannel | None = None
        self._closed = False
        self._targets: dict[TargetKey, ReplicaTarget] = {}
        self._due: dict[ReplicaTarget, None] = {}
        """To be named in the next Fetch."""
        self._waiting: dict[ReplicaTarget, float] = {}
        """Until when they are not named."""
        self._unsettled: dict[ReplicaTarget, None] = {}
        """Appended to, or with another log start: to be named when that is durable."""
        self._settling: dict[ReplicaTarget, None] = {}
        """Of these the ones that are waited for."""
        self._hardening: dict[ReplicaTarget, None] = {}
        """With transaction markers of a page-cache topic that a power cut could take: to be named when it cannot."""
        self._received: deque[_Received] = deque()
        self._syncs = 0
        """What has to become durable before the next Fetch: directories, and the page-cache topics as one."""
        self._number = 0
        self._out: deque[int] = deque()
        """Fetches without an answer."""
        self._session_id = 0
        self._session_epoch = 0
        """Of the next Fetch; 0 begins a session."""
        self._connection = 0
        """Grows when what is on the way is lost."""
        self._held: set[TargetKey] = set()
        """What the leader has positions of."""
        self._forgotten: dict[TargetKey, None] = {}
        """What it is to be told that it need not."""
        self._failures = 0
        self._not_before = 0.0
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._sending = False

    def __len__(self) -> int:
        return len(self._targets)

    # ---- what is fetched -------------------------------------------------------------------------------------

    def add(self, target: ReplicaTarget) -> None:
        """Fetch this partition, too."""
        key = target.key
        self._targets[key] = target
        target.following.forget()
        if key in self._forgotten:
            del self._forgotten[key]
            self._held.add(key)
        self.ask(target)

    def remove(self, target: ReplicaTarget) -> None:
        """Fetch it no more; what is on the way of it counts for nothing."""
        key = target.key
        del self._targets[key]
        self._put_aside(target)
        target.following.forget()
        if key in self._held:
            self._held.discard(key)
            self._forgotten[key] = None

    def ask(self, target: ReplicaTarget) -> None:
        """Name it as soon as may be: its leader has another epoch, or what it waited for may have come."""
        if target.following.is_offline:
            return
        self._waiting.pop(target, None)
        if not self._is_durable_soon(target):
            target.following.wake()
            self._due[target] = None
            self._send_last()

    def reach(self, address: tuple[str, int] | None, broker_epoch: int) -> None:
        """Where the leader is now (None: it is fenced, or nobody knows), and the epoch of this broker."""
        if address == self._address and broker_epoch == self.broker_epoch:
            return
        self._address, self.broker_epoch = address, broker_epoch
        self.begin()

    def begin(self) -> None:
        """By another connection, at once: the leader is another process."""
        self._failures = 0
        self._forget_session()
        self._channels.drop(self.purpose, self.leader_id)
        self._not_before = 0.0
        self._send_last()

    def close(self) -> None:
        """Nothing is fetched any more."""
        self._closed = True
        self._connection += 1
        self._channels.drop(self.purpose, self.leader_id)
        self._received.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- asking ----------------------------------------------------------------------------------------------

    def _send_last(self) -> None:
        """All that this turn of the loop has to name is named together."""
        if not self._sending:
            self._sending = True
            self._clock.call_last(self._send)

    def _send(self) -> None:
        self._sending = False
        address = self._address
        if self._closed or address is None or self._received or self._syncs:
            return
        if self._clock.monotonic() < self._not_before - TICK_SECONDS:
            self._set_timer(self._not_before)
            return
        if self._out and (len(self._out) >= MOST_OUT or not self._session_id or not self._due):
            return
        number = self._number + 1
        topics = self._name_due(number)
        if self._closed:
            return  # the last one belongs to another fetcher by now
        if not topics and (self._out or not self._held):
            return
        self._number = number
        request = self._request(topics)
        self._out.append(number)
        settings = self._settings
        seconds = settings.wait_max_ms / 1000 + ANSWER_SECONDS
        self._channel = channel = self._channels.to(self.purpose, self.leader_id, *address)
        channel.send(request, partial(self._replied, self._connection, number), seconds)

    def _name_due(self, number: int) -> dict[TopicId, list[Any]]:
        """Positions of those that are due and can be named, by topic."""
        due, self._due = self._due, {}
        topics: dict[TopicId, list[Any]] = {}
        moved = []
        for target in due:
            partition = target.partition
            if not target.is_followed or target.following.is_offline:
                continue
            if target.is_stable != partition.is_stable:
                moved.append(target)
            elif target.directory.journal.failed is not None:
                self._wait(target, FAILED_SECONDS)
            elif not partition.log.is_whole or not self._store.is_settled(partition):
                self._wait(target, SETTLE_SECONDS)
            elif self._are_markers_safe(target):
                self._held.add(target.key)
                position = target.following.name(target.log, number)
                named = fetch.FetchRequest.FetchPartition(
                    partition=target.key[1],
                    current_leader_epoch=position.leader_epoch,
                    fetch_offset=position.offset,
                    last_fetched_epoch=position.last_epoch,
                    log_start_offset=partition.log_start_offset,
                    partition_max_bytes=self._settings.max_bytes,
                    replica_directory_id=target.directory_id,
                    high_watermark=partition.high_watermark,
                )
                topics.setdefault(target.key[0], []).append(named)
        for target in moved:
            self._on_moved(target)
        return topics

    def _request(self, topics: dict[TopicId, list[Any]]) -> NodeRequest:
        message = fetch.FetchRequest
        settings = self._settings
        forgotten: dict[TopicId, list[int]] = {}
        for topic_id, index in self._forgotten:
            forgotten.setdefault(topic_id, []).append(index)
        self._forgotten.clear()
        body = message.new(
            replica_state=message.ReplicaState(replica_id=self._node_id, replica_epoch=self.broker_epoch),
            max_wait_ms=settings.wait_max_ms,
            min_bytes=settings.min_bytes,
            max_bytes=settings.response_max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[message.FetchTopic(topic_id=each, partitions=named) for each, named in topics.items()],
            forgotten_topics_data=[
                message.ForgottenTopic(topic_id=each, partitions=gone) for each, gone in forgotten.items()
            ],
        )
        if self._session_epoch or self._session_id:
            self._session_epoch = self._session_epoch % LAST_EPOCH + 1
        return NodeRequest(BY_NAME["Fetch"], VERSION, body)

    # ---- answers ---------------------------------------------------------------------------------------------

    def _replied(self, connection: int, number: int, response: Any | None) -> None:
        if connection != self._connection:
            return
        self._out.popleft()
        if response is None:
            self._lost((self._channel and self._channel.last_error) or "no answer")
            return
        if response.error_code:
            self._lost(_code(response.error_code).name)
            return
        if self._session_id != response.session_id:
            if self._session_id:
                self._lost("another session answers")
                return
            self._session_id, self._session_epoch = response.session_id, 1
        self._failures = 0
        for topic in response.responses:
            topic_id = bytes(topic.topic_id)
            for data in topic.partitions:
                target = self._targets.get((topic_id, data.partition_index))
                if target is not None:
                    self._take(target, number, data)
        if not self._session_id:
            self._name_all()  # the leader keeps no session
        self._go_on()

    def _take(self, target: ReplicaTarget, number: int, data: Any) -> None:
        """What the leader says of one partition."""
        diverging = data.diverging_epoch
        answer = FetchedPartition(
            _code(data.error_code),
            data.high_watermark,
            data.log_start_offset,
            diverging.epoch,
            diverging.end_offset,
        )
        if not target.is_followed:
            return
        may_lose = target.may_lose or not target.is_stable
        step = target.following.hear(number, answer, target.log, may_lose=may_lose)
        if isinstance(step, Append):
            target.hear_leader(data.high_watermark, data.log_start_offset)
            records = data.records
            self._follow_leader(target)
            if records:
                self._received.append(_Received(target, target.following.named, memoryview(records)))
        else:
            self._do(target, step)

    def _do(self, target: ReplicaTarget, step: FollowerStep) -> None:
        if isinstance(step, Cut):
            before = target.log.end_offset
            if self._changes(target, partial(cut, target.partition, target.directory, step.offset)):
                self._tell(target, "replica-cut", offset=target.log.end_offset, end=before)
                self._wait(target, 0.0)
        elif isinstance(step, BeginAnew):
            before = target.log.end_offset
            if self._changes(target, partial(target.partition.begin_anew, target.directory, step.offset)):
                self._tell(target, "replica-begun-anew", offset=step.offset, end=before)
                self._wait(target, 0.0)
        elif isinstance(step, Pause):
            if step.reason:
                self._tell(target, "replica-not-fetched", error=step.reason)
            self._wait(target, step.seconds)
        elif isinstance(step, GiveUp):
            self.give_up(target, step)
        elif target.following.named is None and target not in self._waiting and not self._is_durable_soon(target):
            self._due[target] = None

    def give_up(self, target: ReplicaTarget, step: GiveUp) -> None:
        """It is followed no more in this epoch."""
        self._put_aside(target)
        self._tell(target, "replica-offline", error=step.reason)

    def _put_aside(self, target: ReplicaTarget) -> None:
        self._due.pop(target, None)
        self._waiting.pop(target, None)
        self._unsettled.pop(target, None)
        self._settling.pop(target, None)
        self._hardening.pop(target, None)

    def _is_durable_soon(self, target: ReplicaTarget) -> bool:
        """Whether it is named when it is durable, and not before."""
        return target in self._unsettled or target in self._settling or target in self._hardening

    def _are_markers_safe(self, target: ReplicaTarget) -> bool:
        """Whether no power cut takes a transaction marker that it has; if not, it is named as soon as that is so.

        The coordinator takes a transaction for complete whose markers are committed, and writes none again.
        """
        log = target.partition.log
        if log.stable or log.durable_end >= log.producers.markers_end:
            return True
        self._hardening[target] = None
        hardened = partial(self._hardened, target)
        self._store.marker_syncs.wait_for(target.partition, log.producers.markers_end, False, hardened)
        return False

    def _hardened(self, target: ReplicaTarget, error: KafkaError | None) -> None:
        """They are on stable storage, or that has failed, which is found when it is to be named."""
        if target in self._hardening:
            del self._hardening[target]
            self.ask(target)

    def _changes(self, target: ReplicaTarget, change: Callable[[], object]) -> bool:
        """Do it to the log; False where it has to wait."""
        try:
            change()
        except (OSError, DuramenError) as error:
            self._failed(target, error)
            return False
        return True

    def _failed(self, target: ReplicaTarget, error: OSError | DuramenError) -> None:
        """The log did not take it: this partition waits, the others go on."""
        passes = isinstance(error, NoRoomError) or (
            isinstance(error, KafkaError) and error.code is ErrorCode.KAFKA_STORAGE_ERROR
        )
        if isinstance(error, NoRoomError):
            error = without_traceback(error)
        pause = target.following.pause("" if passes else str(error))
        self._do(target, pause)

    def _follow_leader(self, target: ReplicaTarget) -> None:
        """Watermark and start; a start that moved has to be durable before it is named."""
        try:
            if target.follow_leader():
                self._unsettled[target] = None
                self._due.pop(target, None)
        except (OSError, KafkaError, StorageError):
            return  # the next answer moves it

    def _tell(self, target: ReplicaTarget, event: str, **fields: Any) -> None:
        tp = target.partition.tp
        self._report(event, topic=tp.topic, partition=tp.partition, leader=self.leader_id, **fields)

    # ---- appending -------------------------------------------------------------------------------------------

    def _go_on(self) -> None:
        """Append what has come, a part of it in each turn of the loop; then have it made durable."""
        left = BATCHES_AT_ONCE
        while self._received and not self._closed:
            if left <= 0:
                self._clock.call_soon(partial(self._resume, self._connection))
                return
            received = self._received.popleft()
            left -= self._append(received, left)
        self._settle()

    def _resume(self, connection: int) -> None:
        if connection == self._connection and not self._closed:
            self._go_on()

    def _append(self, received: _Received, most: int) -> int:
        """Returns how many batches that were, at least one."""
        target, named, records = received
        following = target.following
        if self._targets.get(target.key) is not target or not target.is_followed:
            return 1
        if named is None or following.named is not named:
            return 1  # another epoch has begun, or the session is lost
        log = target.partition.log
        try:
            size, count = append_batches(
                target.partition, target.directory, records, following.epoch, self._clock.wall_ms(), most
            )
        except (OSError, DuramenError) as error:
            following.appended()
            self._failed(target, error)
            return most
        if size < len(records) and log.is_whole:
            self._received.appendleft(_Received(target, named, records[size:]))
            return count
        following.appended()
        self._due.pop(target, None)
        self._unsettled[target] = None
        return max(count, 1)

    def _settle(self) -> None:
        """Wait until what was appended is durable; then the next Fetch tells."""
        if self._syncs or self._closed:
            return
        if not self._unsettled:
            self._send()
            return
        self._settling, self._unsettled = self._unsettled, {}
        directories = {each.directory: None for each in self._settling if each.partition.is_stable}
        written = [each.partition for each in self._settling if not each.partition.is_stable]
        self._syncs = len(directories) + bool(written)
        if written:
            self._store.when_written(written, self._settled)
        for directory in directories:
            self._store.when_directory_synced(directory, self._settled)

    def _settled(self, error: KafkaError | None) -> None:
        """One of those is, or has failed, which is found when it is to be named."""
        self._syncs -= 1
        if self._syncs or self._closed:
            return
        settled, self._settling = self._settling, {}
        for target in settled:
            if target.is_followed and not target.following.is_offline:
                self._due[target] = None
                self._follow_leader(target)
        if not self._received:  # else they are appended first
            self._settle()

    # ---- waiting ---------------------------------------------------------------------------------------------

    def _wait(self, target: ReplicaTarget, seconds: float) -> None:
        if self._targets.get(target.key) is not target:
            return
        self._due.pop(target, None)
        due = self._clock.monotonic() + seconds
        self._waiting[target] = due
        self._set_timer(due)

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._clock.call_later(max(0.0, due - self._clock.monotonic()), self._wake)

    def _wake(self) -> None:
        self._timer = None
        if self._closed:
            return
        now = self._clock.monotonic() + TICK_SECONDS
        for target in [target for target, due in self._waiting.items() if due <= now]:
            self.ask(target)
        if self._waiting:
            self._set_timer(min(self._waiting.values()))
        self._send_last()

    def _lost(self, reason: str) -> None:
        """The session is: everything is named in another one, after a pause."""
        if not self._failures:
            self._report("fetch-from-leader-failed", leader=self.leader_id, purpose=self.purpose.value, error=reason)
        self._failures += 1
        self._forget_session()
        pause = self._settings.backoff_ms / 1000 * self._entropy.uniform(1 - JITTER, 1 + JITTER)
        self._not_before = self._clock.monotonic() + pause
        self._set_timer(self._not_before)

    def _forget_session(self) -> None:
        self._connection += 1
        self._out.clear()
        self._session_id = self._session_epoch = 0
        self._received.clear()
        for target in self._targets.values():
            target.following.forget()
        self._name_all()

    def _name_all(self) -> None:
        """In the next Fetch, which knows of no session."""
        self._held.clear()
        self._forgotten.clear()
        for target in self._targets.values():
            if target in self._waiting or self._is_durable_soon(target) or target.following.is_offline:
                continue
            self._due[target] = None


def _code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR
