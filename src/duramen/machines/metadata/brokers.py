"""Decides the life of brokers: registered and fenced, active, stopping, fenced again (KIP-631).

A broker lives as long as it is heard: sessions are soft state of the active controller. When one comes or goes, leaders
and in-sync replicas of partitions follow, some in the same decision and the rest by a timer that is due at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from duramen.config import BrokerConfig
from duramen.errors import ErrorCode, KafkaError
from duramen.machines.contract import NO_TICKET, LogRecord, Outcome, TimerFired
from duramen.machines.metadata import codec, in_sync, leaders
from duramen.machines.metadata.commands import (
    OK,
    AlterPartition,
    BrokerHeartbeat,
    ElectLeaders,
    FenceBroker,
    HeartbeatAnswer,
    IsrChange,
    IsrChanged,
    RegisterBroker,
    Registered,
    Result,
    UnregisterBroker,
)
from duramen.machines.metadata.image import BrokerImage, MetadataImage
from duramen.machines.metadata.registrations import check_registration, losses

SESSION_MS: Final = "broker.session.timeout.ms"
HEARTBEAT_MS: Final = "broker.heartbeat.interval.ms"
BALANCE_S: Final = "leader.imbalance.check.interval.seconds"
NEXT_STEP: Final = "next step"
"""Key of the timer by which decisions about many partitions go on."""
BALANCE: Final = "balance"
"""Key of the timer that is due when partitions are to be led by their first replicas again."""

Timers = list[tuple[Hashable, int | None]]


class Refused(NamedTuple):
    """The log did not take what was decided about a broker; the caller with this ticket has been told."""

    ticket: int


class SessionEnd(NamedTuple):
    """Key of the timer that is due when a broker has been silent for a session."""

    node_id: int


class Elections(NamedTuple):
    """What is left of `ElectLeaders`, and what is answered so far."""

    election_type: int
    left: deque[leaders.Place]
    answers: list[tuple[str, int, Result]]
    tells_all: bool


class IsrChanges(NamedTuple):
    """What is left of `AlterPartition`, and what is answered so far."""

    command: AlterPartition
    left: deque[IsrChange]
    answers: list[IsrChanged]


@dataclass(slots=True)
class Session:
    """What the active controller remembers of a broker that it has heard, or that its predecessor may have."""

    offset: int = -1
    """How far the broker has said that it follows the metadata."""
    changed: int = -1
    """Offset of the last record about it; from there on what it is told is committed."""


def registered(image: MetadataImage, node_id: int, broker_epoch: int) -> BrokerImage:
    """The broker, if this is its epoch; KafkaError when it is not."""
    broker = image.brokers.get(node_id)
    if broker is None:
        raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"broker {node_id} is not registered")
    if broker.epoch != broker_epoch:
        raise KafkaError(ErrorCode.STALE_BROKER_EPOCH, f"broker {node_id} registered again with epoch {broker.epoch}")
    return broker


class Brokers:
    """Decides about brokers, and about the partitions they lead. `config` is the controller's own.

    Methods return the Outcome; `image` is that of everything applied.
    """

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self._sessions: dict[int, Session] = {}
        self._unsettled: leaders.Place | None = None
        """From where on partitions may not suit the active brokers; None: nowhere."""
        self._unbalanced: leaders.Place | None = None
        """From where on partitions may be led by others than their first replicas, and are to be looked at."""
        self._moved = -1
        """Offset of the last record by which that changed a partition."""
        self._unread: dict[int, int] = {}
        """Of processes that were fenced: offset of the last record by which they, or what they led, changed."""
        self._waiting: deque[tuple[int, Any]] = deque()
        """(ticket, command) of what takes several decisions."""

    # ---- start of a controller ---------------------------------------------------------------------------------

    def on_loaded(self, image: MetadataImage, now: int) -> Timers:
        """Give everybody a full session, and go on with what the predecessor had not finished.

        What was this process's node before is not there any more: who has its id may register at once.
        """
        for node_id in image.brokers:
            if node_id != self._own:
                self._sessions[node_id] = Session()
        self._moved = image.next_offset - 1
        self._unread = {broker.id: self._moved for broker in image.brokers.values() if broker.fenced}
        self._unsettled = leaders.START
        timers: Timers = [(SessionEnd(node_id), now + self._session_ms) for node_id in image.brokers]
        timers += self._next_balance(now)
        return [*timers, (NEXT_STEP, now)] if image.brokers else timers

    @property
    def _own(self) -> int:
        return self.config.integer("node.id")

    @property
    def _session_ms(self) -> int:
        return self.config.integer(SESSION_MS)

    # ---- registration ------------------------------------------------------------------------------------------

    def register(self, image: MetadataImage, command: RegisterBroker, ticket: int, now: int) -> Outcome:
        """Take in a process: fenced, until its heartbeat says that it has applied the record.

        The record stands alone, for its offset is the broker epoch, and takes the place of an older incarnation. What
        the older one led follows. What is lost comes first: as long as such copies count, it waits.
        """
        known = image.brokers.get(command.node_id)
        is_heard = command.node_id in self._sessions
        if known is not None and is_heard and known.incarnation_id == command.incarnation_id:
            return Outcome(replies=[(ticket, Registered(known.epoch))])
        check_registration(image, command, may_live=is_heard)
        lost = losses(image, self.config, command)
        if lost:
            fence = [] if known is None or known.fenced else [codec.broker_change(known, fenced=True)]
            self._unsettled = leaders.START
            self._waiting.append((ticket, command))
            return Outcome([*fence, *lost], timers=[(NEXT_STEP, now)], if_refused=Refused(ticket))
        epoch = image.next_offset
        record = codec.register_broker(command, epoch)
        self._sessions[command.node_id] = Session(changed=epoch)
        self._unread.pop(command.node_id, None)  # a new process leads nothing by what it read before
        timers = [self._session_timer(command.node_id, now)]
        if known is not None and known.active:
            self._unsettled = leaders.START
            timers.append((NEXT_STEP, now))
        return Outcome([record], [(ticket, Registered(epoch))], timers, if_refused=Refused(NO_TICKET))

    def unregister(self, image: MetadataImage, command: UnregisterBroker, ticket: int, now: int) -> Outcome:
        """Forget a broker that is fenced; one that lives would only come back, and count as new."""
        broker = image.brokers.get(command.node_id)
        if broker is None:
            text = f"Broker ID {command.node_id} is not currently registered"
            raise KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, text)
        if not broker.fenced:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Broker {broker.id} is in service: stop it first.")
        self._sessions.pop(broker.id, None)
        timers: Timers = [(SessionEnd(broker.id), None)]
        return Outcome([codec.unregister_broker(broker)], [(ticket, OK)], timers, if_refused=Refused(NO_TICKET))

    # ---- heartbeats --------------------------------------------------------------------------------------------

    def heartbeat(self, image: MetadataImage, command: BrokerHeartbeat, ticket: int, now: int) -> Outcome:
        """A broker lives: renew its session, and make of it what it asks for and may be.

        A process that slept through its session is unfenced when it has read what became of its partitions: else it
        would be one that may lead, and not know yet that others do.
        """
        broker = registered(image, command.node_id, command.broker_epoch)
        session = self._sessions.setdefault(broker.id, Session())
        session.offset = command.metadata_offset
        caught_up = command.metadata_offset >= broker.epoch
        active = image.active_ids()
        others = active - {broker.id}
        change: LogRecord | None = None
        fenced, done = broker.fenced, False
        if command.wants_shutdown or broker.in_controlled_shutdown:
            done = fenced or command.wants_fence or self._may_stop(image, broker, others)
            if not fenced and (done or not broker.in_controlled_shutdown):
                change = codec.broker_change(broker, fenced=True if done else None, stopping=True)
            fenced, active = done, others
        elif command.wants_fence:
            if not fenced:
                change = codec.broker_change(broker, fenced=True)
            fenced, active = True, others
        elif fenced and caught_up and command.metadata_offset >= self._unread.get(broker.id, -1):
            self._unread.pop(broker.id, None)
            change = codec.broker_change(broker, fenced=False)
            fenced, active = False, active | {broker.id}
        timer = self._session_timer(broker.id, now)
        answer = HeartbeatAnswer(caught_up, fenced, done)
        if change is None:
            # Before the broker has seen the last record about it, that may not be committed, and the answer waits.
            seen = command.metadata_offset >= session.changed and not done
            return Outcome(replies=[(ticket, answer)], timers=[timer], immediate=seen)
        session.changed = image.next_offset
        if fenced:
            self._unread[broker.id] = session.changed
        return self._changed(image, change, active, now, (ticket, answer), timer)

    def _may_stop(self, image: MetadataImage, broker: BrokerImage, others: leaders.Active) -> bool:
        """Whether it leads nothing that another one could, and the others know who leads what it did."""
        if leaders.can_hand_over(image, broker.id, others):
            return False
        if not broker.in_controlled_shutdown:
            return True
        heard = (self._sessions.get(node_id) for node_id in others)
        return all(session is None or session.offset >= self._moved for session in heard)

    # ---- fencing -----------------------------------------------------------------------------------------------

    def fence(self, image: MetadataImage, command: FenceBroker, ticket: int, now: int) -> Outcome:
        """A process is known to be dead: what it led is led by others at once."""
        broker = registered(image, command.node_id, command.broker_epoch)
        self._sessions.pop(broker.id, None)
        timer: tuple[Hashable, int | None] = (SessionEnd(broker.id), None)
        if broker.fenced:
            return Outcome(replies=[(ticket, OK)], timers=[timer])
        return self._fence(image, broker, now, (ticket, OK), timer)

    def _fence(self, image: MetadataImage, broker: BrokerImage, now: int, reply: Any, timer: Any) -> Outcome:
        change = codec.broker_change(broker, fenced=True)
        self._unread[broker.id] = image.next_offset
        return self._changed(image, change, image.active_ids() - {broker.id}, now, reply, timer)

    def fire(self, image: MetadataImage, timer: TimerFired, ticket: int, now: int) -> Outcome:
        """A session has ended, the next step is due, or a look at who leads what."""
        if timer.key == NEXT_STEP:
            return self._step(image, now)
        if timer.key == BALANCE:
            self._unbalanced = leaders.START
            return Outcome(timers=[*self._next_balance(now), *self._next_step(now)])
        assert isinstance(timer.key, SessionEnd)
        node_id = timer.key.node_id
        self._sessions.pop(node_id, None)
        broker = image.brokers.get(node_id)
        if broker is None or broker.fenced:
            return Outcome()
        return self._fence(image, broker, now, None, None)

    # ---- steps -------------------------------------------------------------------------------------------------

    def _changed(
        self, image: MetadataImage, change: LogRecord, active: leaders.Active, now: int, reply: Any, timer: Any
    ) -> Outcome:
        """A broker becomes active, or is not any more: with that the first partitions that follow it."""
        moves, self._unsettled = leaders.settle(image, active)
        if moves:
            self._leaders_moved(image.next_offset + len(moves))
        timers: Timers = [] if timer is None else [timer]
        timers += self._next_step(now)
        replies = [] if reply is None else [reply]
        return Outcome([change, *moves], replies, timers, if_refused=Refused(NO_TICKET))

    def _leaders_moved(self, last: int) -> None:
        """Offset of the last record that says so: who is fenced has to read that, too."""
        self._moved = last
        self._unread = dict.fromkeys(self._unread, last)

    def _step(self, image: MetadataImage, now: int) -> Outcome:
        if self._unsettled is not None:
            moves, self._unsettled = leaders.settle(image, image.active_ids(), self._unsettled)
            return self._moving(image, moves, now)
        if not self._waiting:
            if self._unbalanced is None:
                return Outcome()
            moves, self._unbalanced = leaders.balance(image, image.active_ids(), self._unbalanced)
            return self._moving(image, moves, now)
        ticket, command = self._waiting.popleft()
        try:
            if isinstance(command, Elections):
                outcome = self._elect(image, command, ticket)
            elif isinstance(command, IsrChanges):
                outcome = self._alter(image, command, ticket)
            else:
                outcome = self.register(image, command, ticket, now)
        except KafkaError as error:
            outcome = Outcome(replies=[(ticket, error)])
        outcome.timers += self._next_step(now)
        return outcome

    def _moving(self, image: MetadataImage, moves: list[LogRecord], now: int) -> Outcome:
        if moves:
            self._leaders_moved(image.next_offset + len(moves) - 1)
        return Outcome(moves, timers=self._next_step(now), if_refused=Refused(NO_TICKET))

    def _next_step(self, now: int) -> Timers:
        is_due = self._unsettled is not None or self._waiting or self._unbalanced is not None
        return [(NEXT_STEP, now)] if is_due else []

    def _next_balance(self, now: int) -> Timers:
        """Leaders went to others while their brokers were away; nobody but the controller leads them back."""
        if not self.config.boolean("auto.leader.rebalance.enable"):
            return []
        return [(BALANCE, now + 1000 * self.config.integer(BALANCE_S))]

    def elect(self, image: MetadataImage, command: ElectLeaders, ticket: int, now: int) -> Outcome:
        """Elect leaders; of the whole cluster only partitions that change are answered."""
        if command.election_type not in (leaders.PREFERRED, leaders.UNCLEAN):
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"unknown election type {command.election_type}")
        tells_all = command.partitions is not None
        left = deque(command.partitions if command.partitions is not None else leaders.every_partition(image))
        outcome = self._elect(image, Elections(command.election_type, left, [], tells_all), ticket)
        outcome.timers += self._next_step(now)
        return outcome

    def _elect(self, image: MetadataImage, wanted: Elections, ticket: int) -> Outcome:
        records: list[LogRecord] = []
        looked = 0
        active = image.active_ids()
        while wanted.left and len(records) < leaders.CHANGES_AT_ONCE and looked < leaders.LOOKS_AT_ONCE:
            place = wanted.left.popleft()
            looked += 1
            change, result = leaders.elect(image, place, wanted.election_type, active)
            if change is not None:
                records.append(change)
            if wanted.tells_all or result.error != ErrorCode.ELECTION_NOT_NEEDED:
                wanted.answers.append((*place, result))
        if records:
            self._leaders_moved(image.next_offset + len(records) - 1)
        if not wanted.left:
            return Outcome(records, [(ticket, wanted.answers)], if_refused=Refused(NO_TICKET))
        self._waiting.append((ticket, wanted))
        return Outcome(records, if_refused=Refused(ticket))

    def alter(self, image: MetadataImage, command: AlterPartition, ticket: int, now: int) -> Outcome:
        """In-sync replicas as the leaders on one broker propose them; a large request in several decisions."""
        outcome = self._alter(image, IsrChanges(command, deque(command.partitions), []), ticket)
        if outcome.records and not image.brokers[command.node_id].active:
            self._unsettled = leaders.START  # it is stopping, and who has joined may lead
        outcome.timers += self._next_step(now)
        return outcome

    def _alter(self, image: MetadataImage, wanted: IsrChanges, ticket: int) -> Outcome:
        in_sync.check_sender(image, wanted.command)
        records: list[LogRecord] = []
        changed: set[tuple[bytes, int]] = set()
        for _ in range(min(len(wanted.left), leaders.CHANGES_AT_ONCE)):
            proposal = wanted.left.popleft()
            place = proposal.topic_id, proposal.index
            if place in changed:  # the first one raises the partition epoch
                wanted.answers.append(in_sync.refusal(proposal, ErrorCode.INVALID_UPDATE_VERSION))
                continue
            record, answer = in_sync.alter(image, wanted.command.node_id, proposal)
            if record is not None:
                records.append(record)
                changed.add(place)
            wanted.answers.append(answer)
        if not wanted.left:
            return Outcome(records, [(ticket, wanted.answers)], if_refused=Refused(NO_TICKET))
        self._waiting.append((ticket, wanted))
        return Outcome(records, if_refused=Refused(ticket))

    def refused(self, image: MetadataImage, command: Refused, now: int) -> Outcome:
        """Nothing that was assumed happened: begin again, after a while, and with every session."""
        replies = []
        for waiting in [each for each in self._waiting if each[0] == command.ticket != NO_TICKET]:
            self._waiting.remove(waiting)
            why = KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the metadata log did not take the change")
            replies.append((command.ticket, why))
        self._unsettled, self._unbalanced = leaders.START, None
        timers: Timers = [self._session_timer(node_id, now) for node_id in image.brokers.keys() | self._sessions.keys()]
        timers.append((NEXT_STEP, now + self.config.integer(HEARTBEAT_MS)))
        return Outcome(replies=replies, timers=timers)

    def _session_timer(self, node_id: int, now: int) -> tuple[Hashable, int | None]:
        """The broker in this process is not silent while the process decides: its session has no end."""
        ends = None if node_id == self._own and node_id in self._sessions else now + self._session_ms
        return SessionEnd(node_id), ends
