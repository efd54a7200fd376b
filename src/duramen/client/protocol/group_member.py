"""A member of a consumer group whose partitions the coordinator assigns (KIP-848): which heartbeat is due, and what
follows from its answer.

Whoever runs it sends one heartbeat at a time and brings every answer back, hands the events to whoever reads the
partitions, and finds the names of topics. Moments are those of any monotonic clock, in seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from duramen.client.protocol.metadata import error_code
from duramen.client.protocol.outcomes import may_help
from duramen.errors import ConfigError, DeadlineError, DuramenError, ErrorCode, KafkaError, OutcomeUnknownError
from duramen.model import TopicId, TopicPartition
from duramen.wire.messages import API

CONSUMER_GROUP_HEARTBEAT: Final = 68
FIRST_VERSION_WITH_OWN_IDS: Final = 1
"""From here on members make their own ids, and may subscribe by a regular expression."""

NO_MEMBER_EPOCH: Final = -1
_JOIN: Final = 0
_LEAVE: Final = -1
_LEAVE_FOR_A_WHILE: Final = -2
"""A member with an instance id, whose partitions are kept for its return until its session ends."""

FIRST_RETRY_S: Final = 0.1
LONGEST_RETRY_S: Final = 1.0

_FENCED: Final = frozenset((ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID))
_GONE: Final = _FENCED | {ErrorCode.GROUP_ID_NOT_FOUND}
"""The group does not have the member any more; the last is a group that its last member has left."""

_Place = tuple[TopicId, int]


class MembershipChange(Enum):
    """What happens to partitions of a member."""

    ASSIGNED = "assigned"
    """They are the member's from now on: read them from what the group has committed."""
    REVOKED = "revoked"
    """They go to another member: stop reading them, commit, then acknowledge."""
    LOST = "lost"
    """They may be another member's already: stop reading them, and commit nothing, then acknowledge."""


class MembershipEvent(NamedTuple):
    """number: no two events of a member have the same."""

    number: int
    change: MembershipChange
    partitions: frozenset[TopicPartition]


class MembershipState(Enum):
    """Where a member stands with its group."""

    OUTSIDE = "outside"
    """It takes no part, or not any more: see `failure`."""
    JOINING = "joining"
    """Its first heartbeat, or the first one after the group has removed it, is not answered."""
    JOINED = "joined"
    LEAVING = "leaving"
    """It gives up what it has, and its last heartbeat is not answered."""


class _Heartbeat(NamedTuple):
    """What a heartbeat said, None where it left something out."""

    is_leave: bool
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    owned: frozenset[_Place] | None = None


class GroupMembership:
    """One member. Call `due` and `heartbeat`, then `answered` or `failed`, and take what `events` gives each time.

    member_id: an id of its own (a UUID as text), for the life of the process; "" for a coordinator that gives ids
    (ConsumerGroupHeartbeat 0). rebalance_timeout_ms: how long it may take to acknowledge a revocation before the
    coordinator removes it. instance_id: that of a static member. assignor: its wish ("uniform", "range").
    """

    def __init__(
        self,
        group: str,
        member_id: str,
        *,
        rebalance_timeout_ms: int = 300_000,
        instance_id: str | None = None,
        assignor: str | None = None,
    ) -> None:
        if not group:
            raise ConfigError("a group has a name")
        self.group = group
        self.member_id = member_id
        self.epoch = NO_MEMBER_EPOCH
        """What commits carry. NO_MEMBER_EPOCH outside the group."""
        self.state = MembershipState.OUTSIDE
        self.failure: BaseException | None = None
        """Why the member is outside the group, or leaves it: what no repetition mends. `subscribe` clears it."""
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self.instance_id = instance_id
        self._assignor = assignor
        self._topics: tuple[str, ...] | None = None
        self._pattern: str | None = None
        self._had_pattern = False
        self._owned: frozenset[_Place] = frozenset()
        self._target: frozenset[_Place] | None = None
        self._names: dict[TopicId, str] = {}
        self._known: _Heartbeat | None = None
        """What the coordinator has heard for sure; None: the next heartbeat says everything."""
        self._in_flight: _Heartbeat | None = None
        self._may_be_in = False
        """A heartbeat was sent by which the group may have it as a member."""
        self._due = 0.0
        self._interval_s = 0.0
        self._retry_s = FIRST_RETRY_S
        self._events: list[MembershipEvent] = []
        self._number = 0
        self._waits_for: MembershipEvent | None = None
        """A revocation or a loss that is not acknowledged. Nothing else is changed until it is."""

    # ---- what its owner wants --------------------------------------------------------------------------------

    def subscribe(self, topics: Iterable[str] | None, pattern: str | None, now: float) -> None:
        """Join, or read something else from now on: topics by name, by a regular expression (RE2, matches whole
        names), or both. ConfigError for neither."""
        names = None if topics is None else tuple(sorted(set(topics)))
        if not names and not pattern:
            raise ConfigError("a member subscribes to topics or to a pattern")
        self._topics = names or ()
        self._pattern = pattern or None
        self.failure = None
        if self.state is MembershipState.OUTSIDE:
            self._join(now)
        elif self.state is not MembershipState.LEAVING:  # from there it joins when it has left
            self._due = now

    def leave(self, now: float) -> None:
        """Give up everything and leave the group. Does nothing outside."""
        self._topics = self._pattern = None
        self._begin_to_leave(now)

    def give_up(self, error: BaseException, now: float) -> None:
        """Leave for this reason, which is `failure` from now on."""
        self.failure = error
        self.leave(now)

    def refresh(self, now: float) -> None:
        """Have a heartbeat sent at once: the coordinator says that the epoch is an old one."""
        self._due = min(self._due, now)

    def acknowledge(self, event: MembershipEvent, now: float) -> None:
        """The partitions of this event are not read any more. An event that has been overtaken is ignored."""
        if event is not self._waits_for:
            return
        self._waits_for = None
        if event.change is MembershipChange.REVOKED:
            self._due = now
            self._owned = frozenset(place for place in self._owned if self._named(place) not in event.partitions)
        if self.state is MembershipState.LEAVING:
            self._give_up_all()
        else:
            self._reconcile()

    # ---- what it has -----------------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """What is the member's: in an ASSIGNED event, and since then neither acknowledged as revoked nor lost."""
        return frozenset(map(self._named, self._owned))

    @property
    def topic_ids(self) -> dict[str, TopicId]:
        """By name, of the topics in `assignment`."""
        return {self._names[topic_id]: topic_id for topic_id, _ in self._owned}

    @property
    def unnamed(self) -> frozenset[TopicId]:
        """Topics of which partitions are assigned whose names are not known: bring them to `name`."""
        return frozenset(topic_id for topic_id, _ in self._target or () if topic_id not in self._names)

    def name(self, names: Mapping[TopicId, str]) -> None:
        """Names of topics. Those that are not among `unnamed` are ignored."""
        for topic_id in self.unnamed & names.keys():
            self._names[topic_id] = names[topic_id]
        self._reconcile()

    def events(self) -> list[MembershipEvent]:
        """What has happened since the last call, to be handled in this order; acknowledge each REVOKED and LOST."""
        found, self._events = self._events, []
        return found

    @property
    def is_known(self) -> bool:
        """Whether the coordinator has accepted the member with its subscription."""
        known = self._known
        is_same = known is not None and (known.topics, known.pattern) == (self._topics, self._pattern)
        return self.state is MembershipState.JOINED and is_same

    @property
    def is_over(self) -> bool:
        """Whether it is outside the group and nothing is left to be acknowledged."""
        return self.state is MembershipState.OUTSIDE and self._waits_for is None

    # ---- heartbeats ------------------------------------------------------------------------------------------

    @property
    def due(self) -> float | None:
        """The moment of the next heartbeat; None while there is none: one is in flight, the member is outside its
        group, or something has to be acknowledged first."""
        if self._in_flight is not None or self.state is MembershipState.OUTSIDE:
            return None
        if self._waits_for is not None and (
            self._waits_for.change is MembershipChange.LOST or self.state is MembershipState.LEAVING
        ):
            return None
        return self._due

    def heartbeat(self, now: float) -> Any | None:
        """The ConsumerGroupHeartbeat that is due, else None. Bring what comes of it to `answered` or `failed`."""
        due = self.due
        if due is None or due > now:
            return None
        message = API[CONSUMER_GROUP_HEARTBEAT].request
        request = message.new(group_id=self.group, member_id=self.member_id, instance_id=self.instance_id)
        if self.state is MembershipState.LEAVING:
            request.member_epoch = _LEAVE if self.instance_id is None else _LEAVE_FOR_A_WHILE
            self._in_flight = _Heartbeat(is_leave=True)
            return request
        request.member_epoch = _JOIN if self.state is MembershipState.JOINING else self.epoch
        self._may_be_in = True
        known = self._known
        said = self._in_flight = _Heartbeat(False, self._topics, self._pattern, self._owned)
        if known is None:
            request.rebalance_timeout_ms = self._rebalance_timeout_ms
            request.server_assignor = self._assignor
        if known is None or known.topics != said.topics:
            request.subscribed_topic_names = list(said.topics or ())
        if said.pattern is not None:
            self._had_pattern = True
        if known is None or known.pattern != said.pattern:
            # An empty one takes an earlier one back; coordinators of version 0 have none.
            request.subscribed_topic_regex = said.pattern or ("" if self._had_pattern else None)
        if known is None or known.owned != said.owned:
            request.topic_partitions = _listed(message, self._owned)
        return request

    def answered(self, response: Any, now: float) -> None:
        """What the coordinator answered to the heartbeat in flight."""
        code = error_code(response.error_code)
        if code is not ErrorCode.NONE:
            self.failed(KafkaError(code, f"group {self.group}: {response.error_message or code.name}"), now)
            return
        said, self._in_flight = self._in_flight, None
        if said is None:
            return
        if said.is_leave:
            self._left(now)
            return
        self.member_id = response.member_id or self.member_id
        self.epoch = response.member_epoch
        self._known = said
        if self.state is MembershipState.LEAVING:
            return
        if self.state is MembershipState.JOINED:
            self._retry_s = (
                FIRST_RETRY_S  # not at a join: a member that is fenced after each one must not join in a tight loop
            )
        self.state = MembershipState.JOINED
        self._interval_s = max(response.heartbeat_interval_ms / 1000, FIRST_RETRY_S)
        if response.assignment is not None:
            topics = response.assignment.topic_partitions
            self._target = frozenset((bytes(each.topic_id), number) for each in topics for number in each.partitions)
            in_use = {topic_id for topic_id, _ in self._target | self._owned}
            self._names = {topic_id: name for topic_id, name in self._names.items() if topic_id in in_use}
        has_changed = (said.topics, said.pattern) != (self._topics, self._pattern)
        # What was acknowledged meanwhile is waited for by another member.
        is_smaller = not (said.owned or frozenset()) <= self._owned
        self._due = now if has_changed or is_smaller else now + self._interval_s
        self._reconcile()

    def failed(self, error: DuramenError, now: float) -> None:
        """The heartbeat in flight was refused, was not answered, or could not be sent."""
        said, self._in_flight = self._in_flight, None
        if said is None:
            return
        self._known = None  # it may have taken effect all the same: say everything
        if isinstance(error, DeadlineError | OutcomeUnknownError) or may_help(error):
            self._pause(now)
        elif said.is_leave:
            self._left(now)
        elif self.state is MembershipState.LEAVING:
            self._due = now
        elif error.code in _FENCED or (error.code in _GONE and self.state is MembershipState.JOINED):
            self._join(now)
            self._pause(now)
            self._lose()
        else:
            self.failure = error
            self._topics = self._pattern = None
            if self.state is MembershipState.JOINING:
                self._left(now)
            elif error.code is ErrorCode.FENCED_INSTANCE_ID:
                self._left(now)
                self._lose()
            else:  # the coordinator would keep its partitions for it until its session ends
                self._begin_to_leave(now)

    # ---- within ----------------------------------------------------------------------------------------------

    def _pause(self, now: float) -> None:
        self._due = now + self._retry_s
        self._retry_s = min(2 * self._retry_s, LONGEST_RETRY_S)

    def _join(self, now: float) -> None:
        self.state = MembershipState.JOINING
        self.epoch = NO_MEMBER_EPOCH
        self._may_be_in = False
        self._known = None
        self._target = None
        self._due = now

    def _begin_to_leave(self, now: float) -> None:
        if self.state is MembershipState.OUTSIDE:
            return
        if not self._may_be_in:
            self._left(now)
            return
        self.state = MembershipState.LEAVING
        self._target = None
        self._due = now
        self._give_up_all()

    def _left(self, now: float) -> None:
        self._join(now)
        if self._topics is None:
            self.state = MembershipState.OUTSIDE

    def _lose(self) -> None:
        """All that is owned is lost; what was about to be given up, too."""
        if self._owned:
            partitions = self.assignment
            self._owned = frozenset()
            self._waits_for = self._emit(MembershipChange.LOST, partitions)

    def _give_up_all(self) -> None:
        if self._waits_for is None and self._owned:
            self._waits_for = self._emit(MembershipChange.REVOKED, self.assignment)

    def _reconcile(self) -> None:
        """One step from what is owned towards what is assigned; given up first."""
        if self._target is None or self._waits_for is not None:
            return
        gone = self._owned - self._target
        if gone:
            self._waits_for = self._emit(MembershipChange.REVOKED, frozenset(map(self._named, gone)))
            return
        new = frozenset(place for place in self._target - self._owned if place[0] in self._names)
        if new:
            self._owned |= new
            self._emit(MembershipChange.ASSIGNED, frozenset(map(self._named, new)))

    def _emit(self, change: MembershipChange, partitions: frozenset[TopicPartition]) -> MembershipEvent:
        self._number += 1
        event = MembershipEvent(self._number, change, partitions)
        self._events.append(event)
        return event

    def _named(self, place: _Place) -> TopicPartition:
        return TopicPartition(self._names[place[0]], place[1])


def _listed(message: Any, owned: frozenset[_Place]) -> list[Any]:
    numbers: dict[TopicId, list[int]] = {}
    for topic_id, number in sorted(owned):
        numbers.setdefault(topic_id, []).append(number)
    return [message.TopicPartitions(topic_id=topic_id, partitions=each) for topic_id, each in numbers.items()]
