"""What consumer groups wait for. The last field tells keys apart, which are compared as the tuples that they are."""

from __future__ import annotations

from typing import NamedTuple


class SessionTimer(NamedTuple):
    """A member has to beat."""

    group_id: str
    member_id: str
    kind: str = "session"


class RebalanceTimer(NamedTuple):
    """A member has to give up what it was asked to; it runs while it is UNREVOKED."""

    group_id: str
    member_id: str
    kind: str = "rebalance"


class RejoinTimer(NamedTuple):
    """A member of the classic protocol was asked to rejoin."""

    group_id: str
    member_id: str
    kind: str = "rejoin"


class ResyncTimer(NamedTuple):
    """A member of the classic protocol has joined, and has to fetch its assignment."""

    group_id: str
    member_id: str
    kind: str = "resync"


class TargetTimer(NamedTuple):
    """Heartbeats wait for a target that is being computed, and are answered without it."""

    group_id: str
    kind: str = "target"


MemberTimer = SessionTimer | RebalanceTimer | RejoinTimer | ResyncTimer
