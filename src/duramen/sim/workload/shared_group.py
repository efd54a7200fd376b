"""One consumer group whose members speak the classic protocol, the new one (KIP-848), or first one and then the other.

Members join, consume, commit with their epochs, leave, die without a word, stand still for longer than their session
lasts, and come back; some are static. When the faults are over they stay, and the group has to settle.
"""

from __future__ import annotations

from typing import Any, Final

from duramen.client.loop.node_client import NodeRequest, call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.check.owner_book import OwnerBook
from duramen.sim.workload.admin_workload import produce, until_done
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.transaction_stage import is_offered
from duramen.sim.workload.workload import RETRY_S, Scene, create_topic, fetch, fetched, unexpected
from duramen.wire.records.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription

DEALT: Final = "dealt"
"""The topic that is shared."""
PARTITIONS: Final = 5
SHARED: Final = "shared"
"""The group."""
CONSUMER_GROUP_HEARTBEAT: Final = 68
SETTLES_S: Final = 30.0
"""Virtual seconds behind the last change within which every partition is owned: longer than a session, a rebalance
time-out and two rounds of heartbeats."""
STAYS_S: Final = 1.5
"""Longer than the interval of assignments and two heartbeats."""
SESSION_MS: Final = 1000
SURE: Final = 0.9
"""Share of a session that has not passed by any node's clock."""
BEAT_S: Final = 0.1
GONE: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
"""What tells a member that it has to join anew."""
AGAIN: Final = (
    ErrorCode.STALE_MEMBER_EPOCH,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNRELEASED_INSTANCE_ID,
    ErrorCode.MEMBER_ID_REQUIRED,
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
)
"""What it has to wait for."""


class SharedGroup:
    """The group of one simulation: its topic, its members, and what is known of them."""

    def __init__(self, scene: Scene, run: Any, copies: int = 1) -> None:
        self.scene = scene
        self.run = run
        self.book = OwnerBook(scene.ledger, SHARED)
        self.tps = [TopicPartition(DEALT, number) for number in range(PARTITIONS)]
        self.topic_id = b""
        self.offered: bool | None = None
        self.is_made = False
        self.may_begin: Any = lambda: True
        self.running = 0
        self.stored = 0
        self.is_over = False
        self.changed_at = 0.0
        scene.ledger.stable.add(DEALT)
        if copies > 1:
            scene.copies[DEALT] = copies
            scene.ledger.behind.add(DEALT)
        random = scene.random
        kinds = random.choice(((NewMember,), (NewMember,), (NewMember, ClassicMember), (NewMember, ClassicMember)))
        self.book.is_mixed = len(kinds) > 1
        self.members = [SharedMember(self, f"g{number}", kinds, is_static=random.random() < 0.3) for number in range(3)]
        self.late = SharedMember(self, "late", (NewMember,), is_static=False)

    def begin(self) -> None:
        """Let everybody begin."""
        self._act("the shared topic", self._set_up())
        self._act("dealer", self._deal())
        for member in self.members:
            self._act(member.name, member.script())
        self._act("settling", self._settle())

    def _act(self, name: str, script: Script) -> None:
        self.running += 1

        def counted() -> Script:
            yield from script
            self.running -= 1

        self.run(name, counted())

    def begun(self) -> Steps[bool]:
        """Wait for the topic; whether there is anything to do."""
        while self.offered is None:
            yield RETRY_S
        return self.offered

    def _set_up(self) -> Script:
        while not self.may_begin():
            yield RETRY_S
        offered = yield from is_offered(self.scene, CONSUMER_GROUP_HEARTBEAT, "group.version")
        if offered:
            yield from create_topic(self.scene, DEALT, PARTITIONS, {})
            while not self.topic_id:
                wanted = call("Metadata", 12, allow_auto_topic_creation=False)
                wanted.request.topics = [wanted.api.request.MetadataRequestTopic(name=DEALT)]
                answer = yield wanted
                if answer is not None and answer.topics and not answer.topics[0].error_code:
                    self.topic_id = bytes(answer.topics[0].topic_id)
                else:
                    yield RETRY_S
        self.is_made = True
        self.offered = offered

    def _deal(self) -> Script:
        if not (yield from self.begun()):
            return
        scene = self.scene
        while scene.faults_on:
            partition = scene.random.randrange(PARTITIONS)
            self.stored += 1
            value = b"dealt %d" % self.stored
            yield from until_done(f"produce to {DEALT}", lambda: produce(scene, DEALT, value, partition))  # noqa: B023
            yield scene.random.uniform(0.0, 0.3)

    # ---- settling ----------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """A member has come, gone, or stood still."""
        self.changed_at = self.scene.clock.monotonic()

    def owned(self) -> dict[str, set[TopicPartition]]:
        """What members believe they own."""
        everybody = [*self.members, *([self.late] if self.late.life is not None else [])]
        return {member.owner: set(member.life.owned) for member in everybody if member.life is not None}

    def _heard_at(self) -> float:
        """Since when everybody has had an answer: on a slow disk nobody has one for long."""
        everybody = [*self.members, self.late]
        return min((member.life.heard_at for member in everybody if member.life is not None), default=0.0)

    def _is_settled(self, expected: int) -> bool:
        owned = self.owned()
        epochs = {member.life.epoch for member in [*self.members, self.late] if member.life is not None}
        everything = sorted(tp for mine in owned.values() for tp in mine)
        return len(owned) == expected and len(epochs) == 1 and everything == sorted(self.tps)

    def _settle(self) -> Script:
        """When nothing goes wrong any more: every partition is owned in the bound, and again when one more joins."""
        if not (yield from self.begun()):
            return
        scene = self.scene
        while scene.faults_on:
            yield RETRY_S
        self.changed()
        yield from self._wait(len(self.members))
        before = self.owned()
        only_new = all(isinstance(member.life, NewMember) for member in self.members)
        self.book.check_even(before, self.tps)
        self._act(self.late.name, self.late.script())
        self.changed()
        yield from self._wait(len(self.members) + 1)
        after = self.owned()
        self.book.check_even(after, self.tps)
        if only_new:
            self.book.check_moved(before, after)
            scene.coverage.hit("group settled, and settled again")
        self.is_over = True

    def _wait(self, expected: int) -> Script:
        """Until it stays so: who joins soon after the last assignment is in its epoch and has nothing, at first."""
        clock = self.scene.clock
        since: float | None = None
        while True:
            if not self._is_settled(expected):
                since = None
            elif since is None:
                since = clock.monotonic()
            elif self._heard_at() >= since + STAYS_S:
                return
            if clock.monotonic() > self.changed_at + SETTLES_S:
                shares = {owner: sorted(map(str, mine)) for owner, mine in self.owned().items()}
                raise InvariantViolated("Settles", f"{SHARED}: {SETTLES_S} s behind the last change: {shares}")
            yield 0.05


class SharedMember:
    """A program in the group; its lives may speak either protocol, one after the other."""

    def __init__(self, group: SharedGroup, name: str, kinds: tuple[Any, ...], *, is_static: bool) -> None:
        self.group = group
        self.name = name
        self.kinds = kinds
        self.instance = f"instance of {name}" if is_static else None
        self.life: NewMember | ClassicMember | None = None
        self.lives = 0

    @property
    def owner(self) -> str:
        """By what it is known in the book: a static one stays itself."""
        return self.instance or f"{self.name}:{self.lives}"

    def script(self) -> Script:
        """Live after live, until the group is over."""
        group, scene = self.group, self.group.scene
        if not (yield from group.begun()):
            return
        while not group.is_over:
            self.lives += 1
            self.life = scene.random.choice(self.kinds)(group, self)
            if self.lives > 1 and self.instance is not None:
                scene.coverage.hit("static member of a shared group came back")
            yield from self.life.script()
            self.life.release()
            self.life = None
            group.changed()
            if scene.faults_on:
                yield scene.random.choice((0.0, 0.3, 2.0)) * scene.random.random()


class GroupMember:
    """What members of both protocols do."""

    def __init__(self, group: SharedGroup, member: SharedMember) -> None:
        self.group = group
        self.scene = group.scene
        self.owner = member.owner
        self.name = f"{member.name}:{member.lives}"
        self.instance = member.instance
        self.member_id = ""
        self.epoch = 0
        self.owned: list[TopicPartition] = []
        self.positions: dict[TopicPartition, int] = {}
        self.is_over = False
        self._found = False
        self.heard_at = 0.0
        """When it had an answer last."""

    def script(self) -> Script:
        """Take part, until this life ends: by leaving, without a word, or because the group is over."""
        group, scene, random = self.group, self.scene, self.scene.random
        while not group.is_over and not self.is_over:
            yield from self.find()
            yield from self.beat()
            if self.owned and random.random() < 0.5:
                yield from self.consume()
            yield BEAT_S * random.uniform(0.3, 1.0)
            if not scene.faults_on:
                continue
            drawn = random.random()
            if drawn < 0.01:
                scene.coverage.hit("member of a shared group died")
                return
            if drawn < 0.03:
                yield from self.leave()
                scene.coverage.hit("member of a shared group left")
                return
            if drawn < 0.04:
                scene.note(f"{self.name} stands still")
                yield random.choice((0.5, 1.5, 4.0))
                scene.coverage.hit("member of a shared group stood still")
                if self.owned:  # as a zombie does: it knows nothing of what has happened
                    yield from self.consume()

    def beat(self) -> Script:
        """One heartbeat, or the join."""
        raise NotImplementedError

    def leave(self) -> Script:
        """Tell the group, without waiting for long."""
        raise NotImplementedError

    def find(self) -> Script:
        """Ask for the group's coordinator, unless it is known."""
        while not self._found:
            found = yield call("FindCoordinator", 4, key_type=0, coordinator_keys=[SHARED])
            code = None if found is None else ErrorCode(found.coordinators[0].error_code)
            if code is ErrorCode.NONE:
                self._found = True
                return
            if code is not None and not code.retriable:
                raise unexpected(f"{self.name} finds its coordinator", code)
            yield RETRY_S

    def check(self, what: str, code: int | None) -> bool:
        """Whether it is none; what it says otherwise is taken to heart."""
        self.scene.note(f"{self.name} {what} in {self.epoch}: {code}")
        if code == ErrorCode.NONE:
            self.heard_at = self.scene.clock.monotonic()
            return True
        if code is None or code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._found = False
            return False
        told = ErrorCode(code)
        if told in GONE:
            self.drop()
        elif told not in AGAIN and not told.retriable:
            raise unexpected(f"{self.name} {what}", code)
        return False

    def drop(self) -> None:
        """It is no member any more, and owns nothing."""
        self.release()
        self.epoch = 0
        self.scene.coverage.hit("member of a shared group was fenced")

    def release(self) -> None:
        """It gives up what it owns."""
        self.owned = []
        self.group.book.released(self.owner)

    def own(self, tps: list[TopicPartition], sent_at: float) -> None:
        """It is told to own these in its present epoch; sent_at: when it asked."""
        until = sent_at + SESSION_MS / 1000 * SURE
        self.group.book.claimed(self.owner, self.epoch, tps, self.scene.clock.monotonic(), until)
        self.owned = tps
        self.positions = {tp: at for tp, at in self.positions.items() if tp in tps}

    def consume(self) -> Script:
        """Read from some partition on, and commit."""
        tp = self.scene.random.choice(self.owned)
        if tp not in self.positions and not (yield from self._position(tp)):
            return
        response = yield fetch(tp, self.positions[tp], max_bytes=4000)
        answer = None if response is None else response.responses[0].partitions[0]
        if answer is None or answer.error_code != ErrorCode.NONE:
            if answer is not None and not ErrorCode(answer.error_code).retriable:
                raise unexpected(f"{self.name} fetch {tp}", answer.error_code)
            return
        position = self.positions[tp]
        for _, record in fetched(tp, answer.records, position):
            position = record.offset + 1
        if position > self.positions[tp]:
            yield from self._commit(tp, position)

    def _position(self, tp: TopicPartition) -> Steps[bool]:
        wanted = call("OffsetFetch", 9, require_stable=True)
        kinds = wanted.api.request
        topic = kinds.OffsetFetchRequestTopics(name=tp.topic, partition_indexes=[tp.partition])
        who = {"member_id": self.member_id, "member_epoch": self.epoch} if isinstance(self, NewMember) else {}
        wanted.request.groups.append(kinds.OffsetFetchRequestGroup(group_id=SHARED, topics=[topic], **who))
        asked = self.scene.ledger.facts
        answer = yield wanted
        if not self.check("position", None if answer is None else answer.groups[0].error_code):
            return False
        told = answer.groups[0].topics[0].partitions[0]
        if not self.check("position", told.error_code):
            return False
        self.scene.ledger.position_fetched(SHARED, tp, told.committed_offset, asked)
        self.positions[tp] = max(0, told.committed_offset)
        return True

    def _commit(self, tp: TopicPartition, position: int) -> Script:
        epoch = self.epoch
        wanted = call(
            "OffsetCommit",
            9,
            group_id=SHARED,
            generation_id_or_member_epoch=epoch,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        kinds = wanted.api.request
        part = kinds.OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=position, committed_metadata=self.name
        )
        wanted.request.topics.append(kinds.OffsetCommitRequestTopic(name=tp.topic, partitions=[part]))
        asked = self.scene.ledger.facts
        answer = yield wanted
        code = None if answer is None else answer.topics[0].partitions[0].error_code
        if self.check(f"commit of {tp} {position}", code):
            self.group.book.commit_taken(self.owner, epoch, tp, asked)
            self.scene.ledger.committed(SHARED, tp, position, asked)
            self.positions[tp] = position
        else:
            self.positions.pop(tp, None)
            if code in (ErrorCode.STALE_MEMBER_EPOCH, *GONE):
                self.scene.coverage.hit("commit of a fenced member refused")


class NewMember(GroupMember):
    """Speaks ConsumerGroupHeartbeat: it says what it owns, and is told what it shall own."""

    def __init__(self, group: SharedGroup, member: SharedMember) -> None:
        super().__init__(group, member)
        self.member_id = f"{group.scene.random.getrandbits(64):016x}"
        self._is_full = True

    def beat(self) -> Script:
        joins, asked, sent_at = self.epoch == 0, self.scene.ledger.facts, self.scene.clock.monotonic()
        answer = yield self._request(self.epoch)
        code = None if answer is None else answer.error_code
        if not self.check("heartbeat", code):
            self._is_full = True
            return
        self._is_full = self.scene.random.random() < 0.1
        if joins:
            self.group.book.joined(self.name, answer.member_epoch, asked, self.scene.clock.monotonic())
            self.group.changed()
        elif answer.member_epoch < self.epoch:
            raise InvariantViolated("OneOwner", f"{self.name}: epoch {answer.member_epoch} follows {self.epoch}")
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            self.own(self.owned, sent_at)
            return
        given = [
            TopicPartition(DEALT, number)
            for topic in answer.assignment.topic_partitions
            for number in sorted(topic.partitions)
            if bytes(topic.topic_id) == self.group.topic_id
        ]
        if given != self.owned:
            self.scene.note(f"{self.name} owns {' '.join(map(str, given))} in {self.epoch}")
            self._is_full = True
        self.own(given, sent_at)

    def _request(self, epoch: int) -> NodeRequest:
        full = self._is_full or epoch == 0
        wanted = call(
            "ConsumerGroupHeartbeat",
            1,
            group_id=SHARED,
            member_id=self.member_id,
            member_epoch=epoch,
            instance_id=self.instance,
        )
        if full and epoch >= 0:
            kinds = wanted.api.request
            wanted.request.rebalance_timeout_ms = 2000
            wanted.request.subscribed_topic_names = [DEALT]
            numbers = [tp.partition for tp in self.owned]
            owned = [kinds.TopicPartitions(topic_id=self.group.topic_id, partitions=numbers)] if numbers else []
            wanted.request.topic_partitions = owned
        return wanted

    def leave(self) -> Script:
        owned = self.owned
        self.release()
        yield self._request(-1 if self.instance is None else -2)
        self.scene.note(f"{self.name} left with {len(owned)}")


class ClassicMember(GroupMember):
    """Joins and syncs, as consumers did before; it gives up everything when it joins anew."""

    def __init__(self, group: SharedGroup, member: SharedMember) -> None:
        super().__init__(group, member)
        self._is_in = False

    def drop(self) -> None:
        """See GroupMember; and it asks for another id."""
        super().drop()
        self.member_id = ""
        self._is_in = False

    def beat(self) -> Script:
        if not self._is_in:
            yield from self._join()
            return
        answer = yield call(
            "Heartbeat",
            4,
            group_id=SHARED,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        code = None if answer is None else answer.error_code
        if not self.check("heartbeat", code) and code in AGAIN:
            self._is_in = False

    def _join(self) -> Script:
        self.release()
        self.positions = {}
        asked = self.scene.ledger.facts
        joined = yield self._join_request()
        if joined is not None and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = yield self._join_request()
        if not self.check("join", None if joined is None else joined.error_code):
            return
        self.member_id, self.epoch = joined.member_id, joined.generation_id
        self.group.book.joined(self.name, self.epoch, asked, self.scene.clock.monotonic())
        kinds = call("SyncGroup", 5).api.request
        assignments = []
        if joined.leader == self.member_id:
            ids = sorted(member.member_id for member in joined.members)
            assignments = [
                kinds.SyncGroupRequestAssignment(
                    member_id=member_id, assignment=assignment_of(self.group.tps[place :: len(ids)])
                )
                for place, member_id in enumerate(ids)
            ]
        sent_at = self.scene.clock.monotonic()
        synced = yield call(
            "SyncGroup",
            5,
            group_id=SHARED,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        if not self.check("sync", None if synced is None else synced.error_code):
            return
        self._is_in = True
        self.group.changed()
        given = assigned(bytes(synced.assignment))
        self.scene.note(f"{self.name} owns {' '.join(map(str, given))} in {self.epoch}")
        self.own(given, sent_at)

    def _join_request(self) -> NodeRequest:
        wanted = call(
            "JoinGroup",
            7,
            group_id=SHARED,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=2000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
        )
        subscription = ConsumerProtocolSubscription.new(topics=[DEALT])
        metadata = bytes(2) + ConsumerProtocolSubscription.encode(subscription, 0)
        wanted.request.protocols.append(wanted.api.request.JoinGroupRequestProtocol(name="range", metadata=metadata))
        return wanted

    def leave(self) -> Script:
        self.release()
        if self.instance is not None:
            return  # a static member comes back
        wanted = call("LeaveGroup", 4, group_id=SHARED)
        wanted.request.members.append(wanted.api.request.MemberIdentity(member_id=self.member_id))
        yield wanted
        self.scene.note(f"{self.name} left")


def assignment_of(tps: list[TopicPartition]) -> bytes:
    """As the leader of a classic group hands it out."""
    kinds = ConsumerProtocolAssignment
    parts = [kinds.TopicPartition(topic=DEALT, partitions=[tp.partition for tp in tps])] if tps else []
    return bytes(2) + kinds.encode(kinds.new(assigned_partitions=parts), 0)


def assigned(data: bytes) -> list[TopicPartition]:
    """What a classic member is told to own."""
    if not data:
        return []
    version = int.from_bytes(data[:2], "big")
    told = ConsumerProtocolAssignment.decode(data, min(version, ConsumerProtocolAssignment.max_version), 2)
    return [
        TopicPartition(part.topic, number) for part in told.assigned_partitions for number in sorted(part.partitions)
    ]
