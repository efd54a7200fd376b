"""What consumer groups see of topics: ids, partitions, racks; and one number that changes when any of it does."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from struct import Struct
from typing import Final, NamedTuple, Protocol

from duramen.model import TopicId

NO_HASH: Final = 0
_COUNT: Final = Struct(">i")


class TopicSeen(NamedTuple):
    """One topic. racks: of each partition's replicas, ascending; () where no broker has a rack."""

    id: TopicId
    partitions: int
    racks: tuple[tuple[str, ...], ...] = ()


class TopicView(Protocol):
    """The topics there are now."""

    @property
    def version(self) -> int:
        """How far the metadata log is known here; never falls."""

    def topic(self, name: str) -> TopicSeen | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def names(self) -> Iterable[str]: ...


class NoTopics:
    """The view before there is one."""

    version: int = -1

    def topic(self, name: str) -> TopicSeen | None:
        return None

    def name_of(self, topic_id: TopicId) -> str | None:
        return None

    def names(self) -> Iterable[str]:
        return ()


class KnownTopics:
    """A view, and the hashes of its topics, which are computed once per change."""

    def __init__(self) -> None:
        self.view: TopicView = NoTopics()
        self.changes = 0
        """Counts the changes reported; a group that has looked since the last one need not look again."""
        self.appeared_at = -1
        """The view's version when a topic last came to be."""
        self._hashes: dict[str, bytes] = {}

    def changed(self, view: TopicView, names: Iterable[str], *, appeared: bool) -> None:
        """These topics are new, gone, or have other partitions or racks."""
        self.view = view
        self.changes += 1
        if appeared:
            self.appeared_at = view.version
        for name in names:
            self._hashes.pop(name, None)

    def replaced(self, view: TopicView) -> None:
        """Nothing of what was known before counts."""
        self._hashes.clear()
        self.changed(view, (), appeared=True)

    def hash_of(self, names: Iterable[str]) -> int:
        """Of these topics as they are, signed 64 bits; NO_HASH when none of them exists.

        Only equality with an earlier one counts. Kafka's is another function: a group that it has left takes one more
        epoch here.
        """
        digest = blake2b(digest_size=8)
        found = False
        for name in sorted(names):
            if (known := self._hashes.get(name) or self._hash(name)) is not None:
                digest.update(known)
                found = True
        return int.from_bytes(digest.digest(), "big", signed=True) if found else NO_HASH

    def _hash(self, name: str) -> bytes | None:
        topic = self.view.topic(name)
        if topic is None:
            return None
        parts = [topic.id, name.encode(), _COUNT.pack(topic.partitions)]
        for racks in topic.racks:
            parts.append(_COUNT.pack(len(racks)))
            for rack in racks:
                parts += (_COUNT.pack(len(rack)), rack.encode())
        made = self._hashes[name] = blake2b(b"".join(parts), digest_size=16).digest()
        return made

    def ids(self, names: Iterable[str]) -> frozenset[TopicId]:
        """Of those that exist."""
        return frozenset(topic.id for name in names if (topic := self.view.topic(name)) is not None)
