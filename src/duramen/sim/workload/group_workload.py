"""The members of a consumer group in a simulation: classic protocol, manual commits, one assignment per generation."""

from __future__ import annotations

from typing import Any

from duramen.client.loop.node_client import NodeRequest, call
from duramen.errors import ErrorCode
from duramen.model import TopicPartition
from duramen.sim.check.invariants import InvariantViolated
from duramen.sim.workload.scripts import Script, Steps
from duramen.sim.workload.workload import EARLIEST, RETRY_S, Scene, decoded, fetch, list_offset, unexpected

REJOIN = (
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.UNKNOWN_MEMBER_ID,
)


class SimMember:
    """One member: joins, takes its share, reads on from the committed positions, commits, and joins again.

    static: it has an instance id (KIP-345). It does not leave but comes back as the same, with a new member id.
    """

    def __init__(self, scene: Scene, group: str, name: str, tps: list[TopicPartition], *, static: bool = False) -> None:
        self.scene = scene
        self.group = group
        self.name = name
        self.tps = tps
        self.instance = f"instance of {name}" if static else None
        self.member_id = ""
        self.generation = -1
        self.earlier = -1
        """The generation before this one, of the same member."""
        self.starts = 0
        self.positions: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        """Positions this member knows to be committed, by its own commits and by what it was told."""
        self.leaves = scene.random.random() < 0.3

    def script(self) -> Script:
        """Take part until the scene says that reading is over."""
        scene = self.scene
        while any(tp.topic not in scene.created for tp in self.tps):
            yield RETRY_S
        while scene.reading_on:
            share = yield from self._join()
            if share is not None and self.earlier >= 0 and scene.random.random() < 0.2:
                yield from self._commit_late()
            if share is None or not (yield from self._fetch_positions(share)):
                yield RETRY_S * scene.random.uniform(0.5, 1.5)
                continue
            while scene.reading_on and (yield from self._work()):
                yield scene.random.uniform(0.001, 0.02)
            if self.leaves and scene.random.random() < 0.5:
                yield from self._leave()

    def _find(self) -> Script:
        """Ask for the group's coordinator until there is one; the first question creates `__consumer_offsets`."""
        while True:
            found = yield call("FindCoordinator", 4, key_type=0, coordinator_keys=[self.group])
            if found is not None and self._fine("find", found.coordinators[0].error_code):
                return
            yield RETRY_S

    def _join(self) -> Steps[list[TopicPartition] | None]:
        """Find the coordinator, join and sync; the value is this member's share, None when it must try again."""
        yield from self._find()
        joined = yield self._join_request()
        if joined is not None and joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            joined = yield self._join_request()
        if joined is None or not self._fine("join", joined.error_code):
            return None
        if self.generation >= 0 and self.starts != self.scene.starts():
            self.scene.coverage.hit("group rebalance across a restart")
        self.starts = self.scene.starts()
        self.earlier = self.generation if self.member_id == joined.member_id else -1
        self.member_id, self.generation = joined.member_id, joined.generation_id
        assignments: list[Any] = []
        if joined.leader == self.member_id:
            assignments = self._assign(sorted(member.member_id for member in joined.members))
        synced = yield call(
            "SyncGroup",
            5,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocol_name="share",
            assignments=assignments,
        )
        if synced is None or not self._fine("sync", synced.error_code):
            return None
        names = bytes(synced.assignment).decode().split()
        return [tp for tp in self.tps if str(tp) in names]

    def _join_request(self) -> NodeRequest:
        wanted = call(
            "JoinGroup",
            7,
            group_id=self.group,
            session_timeout_ms=1000,
            rebalance_timeout_ms=2000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
        )
        protocol = wanted.api.request.JoinGroupRequestProtocol(name="share", metadata=self.name.encode())
        wanted.request.protocols.append(protocol)
        return wanted

    def _assign(self, members: list[str]) -> list[Any]:
        request = call("SyncGroup", 5).api.request
        return [
            request.SyncGroupRequestAssignment(
                member_id=member,
                assignment=" ".join(str(tp) for tp in self.tps[place :: len(members)]).encode(),
            )
            for place, member in enumerate(members)
        ]

    def _fetch_positions(self, share: list[TopicPartition]) -> Steps[bool]:
        """Learn where to go on; the value is False when the coordinator did not answer."""
        scene = self.scene
        wanted = call("OffsetFetch", 8, require_stable=True)
        kinds = wanted.api.request
        topics = [
            kinds.OffsetFetchRequestTopics(
                name=topic, partition_indexes=[tp.partition for tp in share if tp.topic == topic]
            )
            for topic in sorted({tp.topic for tp in share})
        ]
        wanted.request.groups.append(kinds.OffsetFetchRequestGroup(group_id=self.group, topics=topics))
        asked = scene.ledger.facts
        response = yield wanted
        if response is None or not self._fine("fetch positions", response.groups[0].error_code):
            return False
        self.positions = {}
        for topic in response.groups[0].topics:
            for partition in topic.partitions:
                if not self._fine("fetch positions", partition.error_code):
                    return False
                tp = TopicPartition(topic.name, partition.partition_index)
                scene.ledger.position_fetched(self.group, tp, partition.committed_offset, asked)
                self.positions[tp] = partition.committed_offset
                self.committed[tp] = partition.committed_offset
        scene.note(f"{self.name} generation {self.generation}: " + " ".join(map(str, share)))
        for tp, position in self.positions.items():
            if position < 0:
                self.positions[tp] = yield from list_offset(scene, tp, EARLIEST)
        return True

    def _work(self) -> Steps[bool]:
        """One round: heartbeat, read a little of each partition, commit. The value is False when it must rejoin."""
        beat = yield call(
            "Heartbeat",
            4,
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        if beat is None or not self._fine("heartbeat", beat.error_code):
            return False
        moved = []
        for tp in list(self.positions):
            asked = self.scene.ledger.facts
            response = yield fetch(tp, self.positions[tp], max_bytes=4000)
            if response is None:
                return False
            answer = response.responses[0].partitions[0]
            if answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self.positions[tp] = yield from list_offset(self.scene, tp, EARLIEST)
                continue
            if not self._fine(f"fetch {tp}", answer.error_code):
                return False
            before = self.positions[tp]
            for offset, epoch, value in decoded(tp, answer.records, before):
                self.scene.ledger.read(tp, offset, epoch, value, asked)
                self.positions[tp] = offset + 1
            if self.positions[tp] > before:
                moved.append(tp)
        return (yield from self._commit(moved)) if moved else True

    def _commit(self, tps: list[TopicPartition]) -> Steps[bool]:
        scene = self.scene
        wanted = call(
            "OffsetCommit",
            8,
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        kinds = wanted.api.request
        for topic in sorted({tp.topic for tp in tps}):
            partitions = [
                kinds.OffsetCommitRequestPartition(
                    partition_index=tp.partition, committed_offset=self.positions[tp], committed_metadata=self.name
                )
                for tp in tps
                if tp.topic == topic
            ]
            wanted.request.topics.append(kinds.OffsetCommitRequestTopic(name=topic, partitions=partitions))
        asked = scene.ledger.facts
        response = yield wanted
        if response is None:
            return False
        for topic in response.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                scene.note(f"{self.name} commit {tp} {self.positions[tp]}: {partition.error_code}")
                if not self._fine("commit", partition.error_code):
                    return False
                scene.ledger.committed(self.group, tp, self.positions[tp], asked)
                self.committed[tp] = self.positions[tp]
        return True

    def _commit_late(self) -> Script:
        """A commit that was meant for the generation before, and comes when that is over: it must be refused."""
        if self.earlier == self.generation:
            return
        scene, tp = self.scene, self.tps[0]
        wanted = call(
            "OffsetCommit",
            8,
            group_id=self.group,
            generation_id_or_member_epoch=self.earlier,
            member_id=self.member_id,
        )
        kinds = wanted.api.request
        partition = kinds.OffsetCommitRequestPartition(
            partition_index=tp.partition, committed_offset=0, committed_metadata="too late"
        )
        wanted.request.topics.append(kinds.OffsetCommitRequestTopic(name=tp.topic, partitions=[partition]))
        response = yield wanted
        code = None if response is None else response.topics[0].partitions[0].error_code
        scene.note(f"{self.name} commit of generation {self.earlier} in {self.generation}: {code}")
        if code == ErrorCode.NONE:
            raise InvariantViolated(
                "GroupOffsetsMonotone", f"{tp}: a commit of generation {self.earlier} was taken in {self.generation}"
            )
        if code == ErrorCode.ILLEGAL_GENERATION:
            scene.coverage.hit("commit of an old generation refused")
        elif code is not None:
            self._fine("late commit", code)

    def _leave(self) -> Script:
        if self.instance is not None:
            self.scene.note(f"{self.name} comes back")
            self.scene.coverage.hit("static member came back")
            self.member_id = ""
            return
        wanted = call("LeaveGroup", 4, group_id=self.group)
        wanted.request.members.append(wanted.api.request.MemberIdentity(member_id=self.member_id))
        yield wanted
        self.scene.note(f"{self.name} left")
        self.member_id = ""
        yield self.scene.random.uniform(0.0, 0.3)

    def _fine(self, what: str, code: int) -> bool:
        """Whether the code is none; an error that cannot happen here ends the simulation."""
        if code == ErrorCode.NONE:
            return True
        self.scene.note(f"{self.name} {what}: {code}")
        # A static member that did not hear of its new id is told that its old one is over.
        fenced = code == ErrorCode.FENCED_INSTANCE_ID and self.instance is not None
        if code == ErrorCode.UNKNOWN_MEMBER_ID or fenced:
            self.member_id = ""
        if not fenced and code not in REJOIN and not ErrorCode(code).retriable:
            raise unexpected(f"{self.name} {what}", code)
        return False
