"""The roles of a replica in its quorum, and how it changes between them.

`TRANSITIONS` is all there is: what happens, in which role, leads to which role. The diagram in the documentation is
drawn from it. Replicas that do not vote (observers) are unattached or followers.
"""

from __future__ import annotations

from enum import Enum
from typing import Final


class Role(Enum):
    UNATTACHED = "unattached"
    """It knows an epoch, but nobody who leads it."""
    FOLLOWER = "follower"
    PROSPECTIVE = "prospective"
    """It asks whether it would be elected, without a new epoch (KIP-996)."""
    CANDIDATE = "candidate"
    LEADER = "leader"
    RESIGNED = "resigned"
    """It led this epoch, and does not any more."""


class Happening(Enum):
    LATER_EPOCH = "a later epoch is heard of"
    LATER_LEADER = "a later epoch's leader is heard of"
    LEADER_FOUND = "the epoch's leader is heard of"
    VOTED = "it voted for another one"
    TIME_OUT = "nothing came for too long"
    LEADER_LOST = "nothing came from the leader for too long, and it may not stand"
    PRE_VOTE_WON = "a majority would vote for it"
    ELECTED = "a majority voted for it"
    RESIGNS = "it stops, cannot write, or no majority fetches"


_ANYWHERE: Final = {Happening.LATER_EPOCH: Role.UNATTACHED, Happening.LATER_LEADER: Role.FOLLOWER}

TRANSITIONS: Final[dict[Role, dict[Happening, Role]]] = {
    Role.UNATTACHED: _ANYWHERE
    | {
        Happening.LEADER_FOUND: Role.FOLLOWER,
        Happening.VOTED: Role.UNATTACHED,
        Happening.TIME_OUT: Role.PROSPECTIVE,
    },
    Role.FOLLOWER: _ANYWHERE
    | {
        Happening.TIME_OUT: Role.PROSPECTIVE,
        Happening.LEADER_LOST: Role.UNATTACHED,
    },
    Role.PROSPECTIVE: _ANYWHERE
    | {
        Happening.LEADER_FOUND: Role.FOLLOWER,
        Happening.VOTED: Role.UNATTACHED,
        Happening.TIME_OUT: Role.PROSPECTIVE,
        Happening.PRE_VOTE_WON: Role.CANDIDATE,
    },
    Role.CANDIDATE: _ANYWHERE
    | {
        Happening.LEADER_FOUND: Role.FOLLOWER,
        Happening.TIME_OUT: Role.PROSPECTIVE,
        Happening.ELECTED: Role.LEADER,
    },
    Role.LEADER: _ANYWHERE | {Happening.RESIGNS: Role.RESIGNED},
    Role.RESIGNED: _ANYWHERE | {Happening.TIME_OUT: Role.PROSPECTIVE},
}


def diagram() -> str:
    """The table as Mermaid draws it; what leads to one role from everywhere is drawn once."""
    everywhere = {what for what in Happening if all(what in row for row in TRANSITIONS.values())}
    lines = ["stateDiagram-v2", f"    [*] --> {Role.UNATTACHED.value}"]
    for role, row in TRANSITIONS.items():
        for what, after in row.items():
            if what not in everywhere:
                lines.append(f"    {role.value} --> {after.value}: {what.value}")
    return "".join(f"{line}\n" for line in lines)
