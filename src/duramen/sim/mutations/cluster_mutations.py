"""Guards of the metadata quorum that a simulated cluster can do without for a while: a promise breaks then."""

from __future__ import annotations

from typing import Any

from duramen.machines.contract import Outcome
from duramen.machines.metadata.committed_image import CommittedImage
from duramen.machines.raft import leadership, raft_state
from duramen.machines.raft.effects import CommitAdvanced
from duramen.machines.raft.election import Election
from duramen.machines.raft.log_fetcher import LogFetcher
from duramen.machines.raft.raft_log import SAME, Comparison, OffsetEpoch, RaftLog
from duramen.machines.raft.raft_state import RaftState
from duramen.machines.raft.replica_progress import ReplicaProgress
from duramen.machines.raft.voters import Voters
from duramen.partition.host.host import Host
from duramen.partition.metadata import quorum as quorum_module
from duramen.partition.metadata.metadata_partition import MetadataPartition
from duramen.partition.metadata.quorum import Quorum
from duramen.sim.mutations.mutations import Guard
from duramen.sim.world.plan import ClusterPlan
from duramen.storage import WriteQuorumStateJob

ENDS = ("kill", "power cut", "power cut in a call", "kill in a call", "power cut of all", "away")
LINKS = ("isolated", "cut", "one-way cut")


class ClusterGuard(Guard):
    """One that several nodes need. cluster: the world in which to look for what happens without it."""

    cluster = ClusterPlan(nodes=3)


class SavedFirst(ClusterGuard):
    """Votes are answered before they are on stable storage: behind a power cut the voter votes anew."""

    owner = raft_state
    method = "LEAVING"
    caught_by = "OneVoteAnEpoch"
    also = ("OneLeaderAnEpoch",)
    cluster = ClusterPlan(nodes=3, faults=12, kinds=("power cut in a call", "power cut of all", "kill in a call"))

    def replacement(self, original: Any) -> Any:
        """Nothing waits."""
        return ()


class SyncedVote(ClusterGuard):
    """The file of the vote is never written: a restart knows an older one."""

    owner = WriteQuorumStateJob
    method = "run"
    caught_by = "OneVoteAnEpoch"
    also = ("OneLeaderAnEpoch",)
    cluster = ClusterPlan(nodes=3, kinds=ENDS)

    def replacement(self, original: Any) -> Any:
        """Say that it is done."""
        return lambda job: None


class OneVote(ClusterGuard):
    """A voter gives its vote to whoever asks, again and again in one epoch."""

    owner = Election
    method = "_vote"
    caught_by = "OneVoteAnEpoch"
    also = ("OneLeaderAnEpoch",)
    cluster = ClusterPlan(nodes=3, faults=10, kinds=("kill", "power cut of all", "isolated", "pause"))

    def replacement(self, original: Any) -> Any:
        """Forget the vote first."""

        def vote(election: Election, request: Any) -> bool:
            state = election._state
            if state.voted is not None and state.voted != state.local:
                state.voted = None
            return bool(original(election, request))

        return vote


class LongestLog(ClusterGuard):
    """A candidate gets votes though it lacks what the voter has: it leads without what is committed."""

    owner = Election
    method = "_has_enough"
    caught_by = "CommittedNeverLost"
    also = ("CommittedNeverChanges",)
    cluster = ClusterPlan(nodes=3, faults=12, changes=4, small_snapshots=False, kinds=("away", "isolated", "pause"))

    def replacement(self, original: Any) -> Any:
        """Any log will do."""
        return lambda election, request: True


class MajorityElects(ClusterGuard):
    """One voter elects and commits alone."""

    owner = Voters
    method = "majority"
    caught_by = "CommittedNeverLost"
    also = ("CommittedNeverChanges", "OneLeaderAnEpoch", "OneVoteAnEpoch", "ImagesEqual", "NoHaltWithoutReason")
    cluster = ClusterPlan(nodes=3, kinds=LINKS)

    def replacement(self, original: Any) -> Any:
        """It is one."""
        return property(lambda voters: 1)


class MajorityCommits(ClusterGuard):
    """A leader counts as committed what is on its own disk."""

    owner = ReplicaProgress
    method = "majority_end"
    caught_by = "CommittedNeverLost"
    also = ("CommittedNeverChanges",)
    cluster = ClusterPlan(nodes=3, faults=8, changes=4, small_snapshots=False, kinds=("away", "isolated", "kill"))

    def replacement(self, original: Any) -> Any:
        """Whatever the others have."""
        return lambda progress, voters, durable_end: durable_end


class DurableEnds(ClusterGuard):
    """An end counts that is in the page cache: a power cut of all takes what was committed."""

    owner = quorum_module.QuorumLogView
    method = "durable_end"
    caught_by = "CommittedNeverChanges"
    also = ("CommittedNeverLost", "OneLeaderAnEpoch", "NoHaltWithoutReason")
    cluster = ClusterPlan(nodes=3, faults=10, kinds=("power cut of all", "power cut in a call", "slow disk"))

    def replacement(self, original: Any) -> Any:
        """It is the log's end."""
        return property(lambda view: view.end_offset)


class EpochOfItsOwn(ClusterGuard):
    """A candidate stands in the epoch that it knows."""

    owner = Election
    method = "stand"
    caught_by = "OneLeaderAnEpoch"
    also = ("OneVoteAnEpoch", "NoHaltWithoutReason")

    def replacement(self, original: Any) -> Any:
        """Without a new one."""

        def stand(election: Election) -> None:
            election._state.epoch -= 1
            original(election)

        return stand


class ComparedHistories(ClusterGuard):
    """A leader takes every follower's log for a piece of its own: what a deposed one wrote stays."""

    owner = leadership
    method = "compare"
    caught_by = "CommittedNeverChanges"
    also = ("CommittedNeverLost", "ImagesEqual")
    cluster = ClusterPlan(nodes=3, faults=10, small_snapshots=False, kinds=(*ENDS, *LINKS))

    def replacement(self, original: Any) -> Any:
        """Look only whether a snapshot is needed."""

        def compare(log: RaftLog, offset: int, last_epoch: int) -> Comparison:
            found = original(log, offset, last_epoch)
            return SAME if found.diverging is not None and offset <= log.end_offset else found

        return compare


class ToldCommitted(ClusterGuard):
    """A follower counts as committed what it has got."""

    owner = LogFetcher
    method = "_advance"
    caught_by = "CommittedNeverChanges"
    also = ("CommittedNeverLost", "NoHaltWithoutReason", "ImagesEqual")
    cluster = ClusterPlan(nodes=3, faults=12, kinds=(*ENDS, *LINKS))

    def replacement(self, original: Any) -> Any:
        """Up to its own end."""
        return lambda fetcher: fetcher._state.commit(fetcher._state.log.end_offset)


class NeverBack(ClusterGuard):
    """The commit point is whatever a leader says next, and a new one does not know it yet."""

    owner = RaftState
    method = "commit"
    caught_by = "WatermarkNeverBack"

    def replacement(self, original: Any) -> Any:
        """Also when it falls."""

        def commit(state: RaftState, offset: int) -> None:
            if offset != state.committed:
                state.committed = offset
                state.emit(CommitAdvanced(offset))

        return commit

    def parts(self) -> list[tuple[Any, str, Any]]:
        """The partition takes it, too."""

        def take(partition: MetadataPartition, end: int) -> None:
            partition.replication.high_watermark = end
            partition._settle()

        return [*super().parts(), (MetadataPartition, "commit", take)]


class SnapshotsImage(ClusterGuard):
    """Behind a snapshot that was fetched the log begins anew, and the image stays what it was."""

    owner = CommittedImage
    method = "replace"
    caught_by = "ImagesEqual"
    cluster = ClusterPlan(nodes=3, faults=8, small_snapshots=True, kinds=("away", "isolated"))

    def replacement(self, original: Any) -> Any:
        """Leave it."""
        return lambda committed, image: None


class SnapshotsEpoch(ClusterGuard):
    """A log that begins with a snapshot has no epoch before its first batch: it does not fit the leader's."""

    owner = quorum_module.QuorumLogView
    method = "_snapshot_epoch"
    caught_by = "Progress"
    also = ("NothingLeaks", "NoHaltWithoutReason")
    cluster = ClusterPlan(nodes=3, faults=8, small_snapshots=True, kinds=("away", "isolated"))

    def replacement(self, original: Any) -> Any:
        """It is never known."""
        return lambda view, offset: -1


class AnsweredWhenCommitted(ClusterGuard):
    """A change is answered when it is in the leader's log."""

    owner = Host
    method = "_follow"
    caught_by = "AnsweredChangesInOrder"
    cluster = ClusterPlan(nodes=3, faults=10, kinds=(*ENDS, *LINKS))

    def replacement(self, original: Any) -> Any:
        """At once."""

        def follow(host: Host, outcome: Outcome, now: int) -> None:
            host._answer(outcome.replies)
            outcome.replies = []
            original(host, outcome, now)
            host._deliver()

        return follow


class EpochBeforeTheFirst(ClusterGuard):
    """Of an epoch from before its log a leader says that it ended where the log begins, as if it had that end."""

    owner = quorum_module.QuorumLogView
    method = "_first"
    caught_by = "CommittedNeverChanges"
    also = ("Progress",)
    cluster = ClusterPlan()

    def replacement(self, original: Any) -> Any:
        """As Kafka answers OffsetForLeaderEpoch."""
        return lambda view, epoch: OffsetEpoch(view.start_offset, epoch)


class ReaderFirst(ClusterGuard):
    """Behind a snapshot that was fetched the image hears of its end before it has what the snapshot holds."""

    owner = MetadataPartition
    method = "begin_at"
    caught_by = "Progress"
    cluster = ClusterPlan(nodes=3, faults=8, small_snapshots=True, kinds=("away", "isolated"))

    def replacement(self, original: Any) -> Any:
        """Commit it with the new beginning."""

        def begin_at(partition: MetadataPartition, home: Any, offset: int) -> None:
            original(partition, home, offset)
            partition.commit(offset)

        return begin_at


class OneTimer(ClusterGuard):
    """Every step of the quorum leaves a timer behind."""

    owner = Quorum
    method = "_set_timer"
    caught_by = "NothingLeaks"

    def replacement(self, original: Any) -> Any:
        """Ten minutes long."""

        def set_timer(quorum: Quorum) -> None:
            original(quorum)
            quorum._clock.call_later(600.0, lambda: None)

        return set_timer


class TrueReasons(ClusterGuard):
    """A follower that lacks what its leader has cut away stops, instead of fetching the snapshot."""

    owner = LogFetcher
    method = "_load"
    caught_by = "NoHaltWithoutReason"
    cluster = ClusterPlan(nodes=3, faults=8, small_snapshots=True, kinds=("away", "isolated"))

    def replacement(self, original: Any) -> Any:
        """Give up."""
        return lambda fetcher, snapshot: fetcher._state.halt("a snapshot is needed")


CLUSTER_GUARDS: dict[str, ClusterGuard] = {
    "saved-first": SavedFirst(),
    "synced-vote": SyncedVote(),
    "one-vote": OneVote(),
    "longest-log": LongestLog(),
    "majority-elects": MajorityElects(),
    "majority-commits": MajorityCommits(),
    "durable-ends": DurableEnds(),
    "own-epoch": EpochOfItsOwn(),
    "histories": ComparedHistories(),
    "told-committed": ToldCommitted(),
    "never-back": NeverBack(),
    "snapshot-image": SnapshotsImage(),
    "snapshot-epoch": SnapshotsEpoch(),
    "first-epoch": EpochBeforeTheFirst(),
    "reader-first": ReaderFirst(),
    "answered-committed": AnsweredWhenCommitted(),
    "one-timer": OneTimer(),
    "true-reasons": TrueReasons(),
}
"""Every guard of the quorum by the name that BREAK= takes."""
