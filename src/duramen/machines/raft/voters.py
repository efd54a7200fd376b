"""Who votes: the voters of a quorum as the log's latest VotersRecord names them (KIP-853)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

NO_DIRECTORY: Final = bytes(16)
"""The directory id of a replica that did not say one."""


class ReplicaKey(NamedTuple):
    """A replica of the log on one disk: a wiped disk has another directory id, and is another replica."""

    id: int
    directory_id: bytes


class VoterEndpoint(NamedTuple):
    """Where a voter listens."""

    name: str
    host: str
    port: int


class Voter(NamedTuple):
    """A voter and its addresses."""

    id: int
    directory_id: bytes
    endpoints: tuple[VoterEndpoint, ...] = ()

    @property
    def key(self) -> ReplicaKey:
        return ReplicaKey(self.id, self.directory_id)


class Voters:
    """The voters of a quorum; never changes."""

    __slots__ = ("by_id",)

    def __init__(self, voters: Iterable[Voter] = ()) -> None:
        self.by_id: dict[int, Voter] = {voter.id: voter for voter in voters}

    def __iter__(self) -> Iterator[Voter]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Voters) and other.by_id == self.by_id

    def __hash__(self) -> int:
        return hash(frozenset(self.by_id.values()))

    def __repr__(self) -> str:
        return f"Voters({list(self)})"

    @property
    def keys(self) -> frozenset[ReplicaKey]:
        """Who they are, wherever they listen."""
        return frozenset(voter.key for voter in self)

    def __str__(self) -> str:
        return ",".join(f"{voter.id}" for voter in self)

    @property
    def majority(self) -> int:
        """How many of them decide."""
        return len(self.by_id) // 2 + 1

    def is_voter(self, key: ReplicaKey) -> bool:
        """Whether this replica votes: its id *and* its directory id are those of a voter."""
        voter = self.by_id.get(key.id)
        return voter is not None and voter.directory_id == key.directory_id

    def only(self, key: ReplicaKey) -> bool:
        """Whether it is the one voter there is."""
        return len(self.by_id) == 1 and self.is_voter(key)

    def others(self, id: int) -> list[Voter]:
        return [voter for voter in self if voter.id != id]

    def endpoints(self, id: int) -> tuple[VoterEndpoint, ...]:
        voter = self.by_id.get(id)
        return voter.endpoints if voter is not None else ()
