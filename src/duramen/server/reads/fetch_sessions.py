"""Fetch sessions: consumers name their partitions once and are told only what changed (KIP-227)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from duramen.errors import ErrorCode, KafkaError
from duramen.machines.metadata.topics import MAX_NAME_LENGTH
from duramen.model import NO_TOPIC_ID, TopicId
from duramen.ports import Entropy, Part
from duramen.server.net.steps import STEP, Steps
from duramen.storage import Pending

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_SESSION = 0
MIN_EVICTION_SECONDS = 120.0
"""A session used within this time is not pushed out by a new one (min.incremental.fetch.session.eviction.ms)."""

MAX_PARTITIONS_PER_SESSION = 100_000
MAX_PARTITIONS = 1_000_000
"""Of all sessions together; some 350 bytes each."""


class Key(NamedTuple):
    """A partition as the client names it: by id from Fetch v13 on (name ""), by name before."""

    topic_id: TopicId
    name: str
    partition: int


NO_KEYS: set[Key] = set()


class Records:
    """A partition's record bytes as the encoder takes them: their size, and parts that are sent as they are."""

    __slots__ = ("parts", "size")

    def __init__(self, parts: list[Part | Pending], size: int) -> None:
        self.parts = parts
        self.size = size


class FetchTarget:
    """One partition a client fetches: where from, how much, and what it was last told."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "key",
        "last_fetched_epoch",
        "max_bytes",
        "name",
        "told_high_watermark",
        "told_log_start",
    )

    def __init__(self, key: Key, wanted: Any) -> None:
        self.key = key
        self.name = key.name
        """The topic's name; for one asked for by id the name it had when it was first found."""
        self.told_high_watermark = -1
        self.told_log_start = -1
        self.update(wanted)

    def update(self, wanted: Any) -> None:
        """Take over what the request says of this partition."""
        self.fetch_offset: int = wanted.fetch_offset
        self.max_bytes: int = wanted.partition_max_bytes
        self.current_leader_epoch: int = wanted.current_leader_epoch
        self.last_fetched_epoch: int = wanted.last_fetched_epoch


class FetchSession:
    """A client's partitions, in the order they are served."""

    __slots__ = ("epoch", "id", "last_used", "targets", "uses_topic_ids")

    def __init__(self, session_id: int, uses_topic_ids: bool, targets: dict[Key, FetchTarget], now: float) -> None:
        self.id = session_id
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.targets = targets
        self.last_used = now

    def rotate(self, key: Key) -> None:
        """Serve this partition last next time: it just had data, others may be starving."""
        target = self.targets.pop(key, None)
        if target is not None:
            self.targets[key] = target


class FetchPlan(NamedTuple):
    """What one Fetch request asks for. session None: no session, every partition is answered."""

    targets: list[FetchTarget]
    session: FetchSession | None
    session_id: int
    incremental: bool


class FetchSessions:
    """The sessions of one broker, bounded by `max.incremental.fetch.session.cache.slots` and MAX_PARTITIONS."""

    def __init__(self, slots: int, entropy: Entropy) -> None:
        self._slots = slots
        self._entropy = entropy
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0
        """Of all sessions."""
        self.evictions = 0
        self.of_replicas: Any = None
        """The ReplicaSessions, which count neither here nor there; made with the first: a node alone has none."""

    def __len__(self) -> int:
        return len(self._sessions)

    def plan(self, body: Any, version: int, now: float) -> FetchPlan:
        """Resolve a request to partitions; KafkaError with a session's error code when it does not fit."""
        by_id = version >= 13
        if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            targets = {key: FetchTarget(key, wanted) for key, wanted in _wanted(body.topics, by_id)}
            return self._plan_full(body, by_id, targets, now)
        session = self._session(body, by_id)
        forgotten = set(_forgotten(body, by_id)) if body.forgotten_topics_data else NO_KEYS
        self._forget(session, forgotten)
        self._update(session, _wanted(body.topics, by_id), forgotten)
        return self._plan_incremental(session, now)

    def plan_in_steps(self, body: Any, version: int, now: float) -> Steps:
        """The same for a request of many partitions."""
        by_id = version >= 13
        wanted = _wanted(body.topics, by_id)
        if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            targets: dict[Key, FetchTarget] = {}
            for number, (key, each) in enumerate(wanted, 1):
                targets[key] = FetchTarget(key, each)
                if number % STEP == 0:
                    yield
            return self._plan_full(body, by_id, targets, now)
        session = self._session(body, by_id)
        forgotten: set[Key] = set()
        leaving = _forgotten(body, by_id)
        while keys := list(islice(leaving, STEP)):
            self._forget(session, keys)
            forgotten.update(keys)
            yield
            self._check_that_it_goes_on(session, body, by_id)
        while some := list(islice(wanted, STEP)):
            self._update(session, some, forgotten)
            yield
            self._check_that_it_goes_on(session, body, by_id)
        return self._plan_incremental(session, now)

    def _plan_full(self, body: Any, by_id: bool, targets: dict[Key, FetchTarget], now: float) -> FetchPlan:
        self._end(body.session_id)
        session = None if body.session_epoch == FINAL_EPOCH else self._create(targets, by_id, now)
        return FetchPlan(list(targets.values()), session, session.id if session else NO_SESSION, False)

    def _session(self, body: Any, by_id: bool) -> FetchSession:
        session = self._sessions.get(body.session_id)
        if session is None:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != body.session_epoch:
            raise KafkaError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids != by_id:
            raise KafkaError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return session

    def _check_that_it_goes_on(self, session: FetchSession, body: Any, by_id: bool) -> None:
        """Behind a step: others may have ended the session, or gone on with it."""
        if self._session(body, by_id) is not session:
            raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)

    def _plan_incremental(self, session: FetchSession, now: float) -> FetchPlan:
        if not session.targets:
            # Everything was forgotten: so is the session.
            self._end(session.id)
            return FetchPlan([], None, NO_SESSION, False)
        session.epoch = 1 if session.epoch >= 2**31 - 1 else session.epoch + 1
        session.last_used = now
        return FetchPlan(list(session.targets.values()), session, session.id, True)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.targets)

    def _forget(self, session: FetchSession, keys: Iterable[Key]) -> None:
        for key in keys:
            if session.targets.pop(key, None) is not None:
                self._partitions -= 1

    def _update(self, session: FetchSession, partitions: Iterable[tuple[Key, Any]], forgotten: set[Key]) -> None:
        for key, wanted in partitions:
            if _is_long(key):
                self._end(session.id)
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "no topic has such a name")
            known = session.targets.get(key)
            if known is not None:
                known.update(wanted)
            elif key in forgotten:
                continue  # wanted, too: Kafka forgets last
            elif len(session.targets) < MAX_PARTITIONS_PER_SESSION and self._partitions < MAX_PARTITIONS:
                session.targets[key] = FetchTarget(key, wanted)
                self._partitions += 1
            else:
                self._end(session.id)
                raise KafkaError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "too many partitions for a session")

    def _create(self, targets: dict[Key, FetchTarget], by_id: bool, now: float) -> FetchSession | None:
        """A new session, or None (the client then sends full requests) while no slot can be freed."""
        if not targets or len(targets) > MAX_PARTITIONS_PER_SESSION or self._slots <= 0 or any(map(_is_long, targets)):
            return None
        while len(self._sessions) >= self._slots or self._partitions + len(targets) > MAX_PARTITIONS:
            oldest = min(self._sessions.values(), key=lambda session: session.last_used)
            if now - oldest.last_used < MIN_EVICTION_SECONDS:
                return None
            self._end(oldest.id)
            self.evictions += 1
        session_id = NO_SESSION
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = int.from_bytes(self._entropy.random_bytes(4), "big") & 0x7FFFFFFF
        session = FetchSession(session_id, by_id, targets, now)
        self._sessions[session_id] = session
        self._partitions += len(targets)
        return session


def _is_long(key: Key) -> bool:
    """Whether no topic can have the name, which may be of 32 KB: sessions outlive their connections."""
    return len(key.name) > MAX_NAME_LENGTH or not key.name.isascii()


def _key(topic: Any, partition: int, by_id: bool) -> Key:
    return Key(topic.topic_id, "", partition) if by_id else Key(NO_TOPIC_ID, topic.topic, partition)


def _wanted(topics: Iterable[Any], by_id: bool) -> Iterator[tuple[Key, Any]]:
    for topic in topics:
        for wanted in topic.partitions:
            yield _key(topic, wanted.partition, by_id), wanted


def _forgotten(body: Any, by_id: bool) -> Iterator[Key]:
    for topic in body.forgotten_topics_data:
        for partition in topic.partitions:
            yield _key(topic, partition, by_id)
