"""Hosted partitions: in which state each partition of this node is, from its creation to its deletion.

Whoever asks whether a partition is served here, and why not, asks this table. It has one state for each partition;
`TRANSITIONS` are all the changes there are, and the diagram in docs/internals/partition.md is drawn from it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from duramen.errors import check
from duramen.model import LogKey, TopicId
from duramen.partition.replica.retry_gate import RetryGates


class HostedState(Enum):
    """Where a partition stands."""

    CREATING = "creating"
    """Committed metadata wants it here, and its log is not made yet."""
    OPENING = "opening"
    """A start has it opened on its log, or made where a crash came before that."""
    ONLINE = "online"
    """It is served."""
    OFFLINE = "offline"
    """It cannot be served: its log is damaged or missing, or could not be made."""
    DELETING = "deleting"
    """Its topic is deleted, and its log still has its name."""


class OfflineCause(Enum):
    """What keeps a partition from being served."""

    LOG_DAMAGED = "its log is in an open directory, and cannot be opened"
    LOG_MISSING = "its log may be in a directory that is not open, so none is made"
    NOT_OPENED = "a start could neither open nor make its log"
    NOT_CREATED = "its log could not be made"


class HostedPartition(NamedTuple):
    """The state of one partition."""

    state: HostedState
    cause: OfflineCause | None = None
    """Of one that is offline."""
    reason: str | None = None
    """Why it is offline; of one that is created again, why it could not be."""
    retry: bool = False
    """Of one that is offline: it is created as soon as there is room."""


OPENING: Final = HostedPartition(HostedState.OPENING)
ONLINE: Final = HostedPartition(HostedState.ONLINE)
DELETING: Final = HostedPartition(HostedState.DELETING)

TRANSITIONS: Final[Mapping[tuple[HostedState | None, HostedState | None], str]] = {
    (None, HostedState.CREATING): "committed metadata has it here",
    (None, HostedState.OPENING): "a start finds it in the image",
    (None, HostedState.OFFLINE): "a start finds its log damaged or missing",
    (None, HostedState.DELETING): "its topic is deleted while its log is offline",
    (HostedState.CREATING, HostedState.ONLINE): "its log is made",
    (HostedState.CREATING, HostedState.OFFLINE): "its log cannot be made",
    (HostedState.CREATING, None): "its topic is deleted before its log is made",
    (HostedState.OPENING, HostedState.ONLINE): "its log is open",
    (HostedState.OPENING, HostedState.OFFLINE): "its log can be neither opened nor made",
    (HostedState.ONLINE, HostedState.DELETING): "its topic is deleted",
    (HostedState.OFFLINE, HostedState.OFFLINE): "more is known about the reason",
    (HostedState.OFFLINE, HostedState.CREATING): "there may be room for it now",
    (HostedState.OFFLINE, HostedState.DELETING): "its topic is deleted while its log is here",
    (HostedState.OFFLINE, None): "its topic is deleted, and it has no log here",
    (HostedState.DELETING, None): "its log has its `-delete` name, or is left to the next start",
}
"""From state to state, and when; None: the partition is not hosted."""


def diagram() -> str:
    """`TRANSITIONS` as a Mermaid state diagram."""
    lines = ["stateDiagram-v2"]
    for (before, after), when in TRANSITIONS.items():
        lines.append(f"    {_name(before)} --> {_name(after)}: {when}")
    return "\n".join(lines) + "\n"


def _name(state: HostedState | None) -> str:
    return "[*]" if state is None else state.value


class HostedPartitions:
    """The table of one store. Loop thread only; `monotonic` gives seconds."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._partitions: dict[LogKey, HostedPartition] = {}
        self._not_online: dict[HostedState, dict[LogKey, None]] = {
            state: {} for state in HostedState if state is not HostedState.ONLINE
        }
        self.retry_gates = RetryGates(monotonic)
        """What was refused of partitions that are not online, most because they are being created."""

    # ---- questions -------------------------------------------------------------------------------------------

    def get(self, key: LogKey) -> HostedPartition | None:
        """The partition's state; None where it is not hosted."""
        return self._partitions.get(key)

    def is_offline(self, key: LogKey) -> bool:
        """Whether the partition is this node's and cannot be served."""
        return key in self._not_online[HostedState.OFFLINE]

    def is_wanted(self, key: LogKey) -> bool:
        """Whether a log has to be made for the partition, which this node is to have."""
        known = self._partitions.get(key)
        return known is None or known.state is HostedState.CREATING

    def keys_in(self, state: HostedState) -> Iterable[LogKey]:
        """The partitions in a state other than online, in the order in which they came to it."""
        return self._not_online[state]

    def without_log(self) -> int:
        """How many are offline and have no log in an open directory."""
        damaged = OfflineCause.LOG_DAMAGED
        return sum(self._partitions[key].cause is not damaged for key in self._not_online[HostedState.OFFLINE])

    def is_settled(self, is_known: Callable[[TopicId], bool]) -> bool:
        """Whether a crash leaves nothing on disk of topics that are not `known`: none is being deleted or created."""
        creating = self._not_online[HostedState.CREATING]
        return not self._not_online[HostedState.DELETING] and all(is_known(key[0]) for key in creating)

    def creation_error(self, topic_id: TopicId, indexes: Container[int]) -> str | None:
        """Why one of these partitions of the topic could not be created; None where each was."""
        for key in self._not_online[HostedState.OFFLINE]:
            if key[0] == topic_id and key[1] in indexes and self._partitions[key].cause is OfflineCause.NOT_CREATED:
                return self._partitions[key].reason
        return None

    def to_retry(self, topic_id: TopicId) -> list[LogKey]:
        """The topic's partitions that are created as soon as there is room."""
        offline = self._not_online[HostedState.OFFLINE]
        return [key for key in offline if key[0] == topic_id and self._partitions[key].retry]

    # ---- changes ---------------------------------------------------------------------------------------------

    def mark_creating(self, key: LogKey) -> None:
        """A log is to be made for the partition, perhaps once more."""
        known = self._partitions.get(key)
        if known is None or known.state is HostedState.OFFLINE:
            self._move(key, HostedPartition(HostedState.CREATING, reason=known.reason if known is not None else None))

    def mark_opening(self, key: LogKey) -> None:
        """A start opens the partition."""
        self._move(key, OPENING)

    def mark_online(self, key: LogKey) -> None:
        """The partition is open on its log."""
        self._move(key, ONLINE)

    def mark_offline(self, key: LogKey, cause: OfflineCause, reason: str, *, retry: bool = False) -> None:
        """The partition cannot be served."""
        self._move(key, HostedPartition(HostedState.OFFLINE, cause, reason, retry))

    def mark_deleting(self, key: LogKey) -> None:
        """The partition's topic is deleted, and its log is here."""
        self._move(key, DELETING)

    def forget(self, key: LogKey) -> None:
        """The partition is not hosted any more."""
        self._move(key, None)

    def _move(self, key: LogKey, after: HostedPartition | None) -> None:
        before = self._partitions.get(key)
        old, new = before and before.state, after and after.state
        check((old, new) in TRANSITIONS, f"partition {key[1]} of a topic is {old}, and cannot become {new}")
        if old is not None and old is not new and old is not HostedState.ONLINE:
            del self._not_online[old][key]
        if after is None:
            del self._partitions[key]
            return
        self._partitions[key] = after
        if after.state is not HostedState.ONLINE:
            self._not_online[after.state][key] = None
