"""What a node does where a repair took records out of the metadata log: it serves, and makes nothing worse.

A setting that is lost may have kept a topic's records from being deleted or compacted, a registration the leader
epochs from being used twice, a block of producer ids its ids. While the list of losses names the metadata log, or the
journal, nothing expires and nothing is compacted, producer ids begin where none was given out, leader epochs after all
that were begun (that at each start: a log may have been away). A topic that is lost has its name and id in its
partitions' directories: it is known again, and keeps its records for ever until somebody says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from duramen.errors import DuramenError
from duramen.machines.metadata.commands import LostTopic, NewTopic, RaiseEpochs, RegainTopics, SkipProducerIds
from duramen.machines.metadata.committed_image import CommittedImage
from duramen.machines.metadata.image import MetadataImage
from duramen.machines.metadata.producer_ids import PRODUCER_ID_BLOCK
from duramen.machines.metadata.snapshot import Restoration
from duramen.model import (
    METADATA_TOPIC,
    OFFSETS_TOPIC,
    STATE_TOPICS,
    TopicId,
    TopicPartition,
    topic_id_text,
)
from duramen.partition.host.replay import ReadableLog, Replay
from duramen.partition.metadata.directory_checks import ClosedDirectories
from duramen.ports import Disk
from duramen.storage import (
    DROPPED,
    JOURNAL,
    LARGEST_EPOCH,
    LOSS_RECORD,
    LOST_FOLDER,
    METADATA_RECREATED,
    is_loss_recorded,
    latest_epoch,
    loss_owner,
    read_losses,
    record_loss,
)

if TYPE_CHECKING:
    from duramen.partition.host.host import Host
    from duramen.partition.replica.partition import Partition
    from duramen.partition.store.store import Store

Settings = tuple[tuple[str, str | None], ...]

KEPT: Final[Settings] = (("cleanup.policy", "delete"), ("retention.ms", "-1"), ("retention.bytes", "-1"))
"""Settings of a topic whose own are lost: no record goes, whatever the broker's own settings say."""

_IDS_PER_MS: Final = 19
_WALL_MS: Final = 42
"""Bits: of a millisecond's share of the producer ids, and of the wall clock that counts (to the year 2109)."""
_SEEN_BELOW: Final = 1 << (_IDS_PER_MS + _WALL_MS)
"""No id that a node gave out is above; clients may write with any."""
_BEHIND_SEEN: Final = 1 << 32

_WITH_METADATA = (str(TopicPartition(METADATA_TOPIC, 0)), JOURNAL)


def least_producer_id(now_ms: int, recorded: int, known: Iterable[int], end: int) -> int:
    """The first producer id to give out where the metadata log's records of those that were given out are lost.

    Nothing else has them all: a producer may have written nothing yet, or have been forgotten, or its records are gone
    or in a partition that is offline. So the ids begin at the time: each millisecond has a share of 2^19, more than
    anybody could be given in it. A loss later on begins after all that were given out until then, and the ids of a
    log without a loss, which begin at 0, are below. Where the clock was set back:

    * the log's end counts, a block for every record. Each block that is given out is one, so that two losses at one
      time have different ids as long as the end of the log is known;
    * what is seen is 2^32 below. recorded: the next id by what is left of the metadata log. known: in the logs of
      open partitions; those above 2^61 their clients made up, or they are sinks'.
    """
    time = (now_ms & ((1 << _WALL_MS) - 1)) << _IDS_PER_MS
    seen = max((each + 1 for each in known if each < _SEEN_BELOW), default=0)
    return max(time, max(seen, recorded) + _BEHIND_SEEN) + PRODUCER_ID_BLOCK * end


def _all_removed(log: ReadableLog) -> frozenset[TopicId]:
    """Topics that were deleted by all of the log, also by what of it a snapshot stands for."""
    whole = CommittedImage()
    whole.forgive()
    whole.restore(Restoration().finish(log.log_start_offset))
    replay = Replay(log, whole)
    with suppress(DuramenError):  # damage below a snapshot: what was read counts
        while not replay.step():
            pass
    return whole.removed


class MetadataRepair:
    """Of one store. Without such a loss it only sees to it that no leader epoch is used twice.

    readopted: gets the topics that are about to be known again.
    """

    def __init__(self, store: Store, closed_directories: ClosedDirectories, readopted: set[TopicId]) -> None:
        self._store = store
        self._closed_directories = closed_directories
        self.found = False
        """Whether there is such a loss."""
        self.readopted = readopted
        """Topics that are about to be known again."""
        self._was_recreated = False
        self._removed: frozenset[TopicId] = frozenset()

    def find_losses(self, disk: Disk, committed: CommittedImage, report: Callable[..., None]) -> None:
        """Before the metadata log is replayed: is such a loss on the list of a directory? OSError."""
        self._disk, self._committed, self._report = disk, committed, report
        losses = [loss for directory in self._store.directories for loss in read_losses(disk, directory.path)]
        self.found = any(loss.get("partition") in _WITH_METADATA for loss in losses)
        self._was_recreated = any(loss.get("what") == METADATA_RECREATED for loss in losses)
        if self.found:
            self._forgive()

    def _forgive(self) -> None:
        self._report(
            "metadata-incomplete", remedy=f"look at the topics' settings, then remove {LOST_FOLDER}/{LOSS_RECORD}"
        )
        self._committed.forgive()
        for directory in self._store.directories:
            directory.suspend_retention()

    def note_gap(self, first: int, last: int) -> None:
        """The replay of the metadata log has come to records that are missing. OSError.

        Where the list does not name a loss any more, the snapshot that was taken after it is lost, too: it is on the
        list again.
        """
        tp = TopicPartition(METADATA_TOPIC, 0)
        home = self._store.home(tp).path
        known = [loss for loss in read_losses(self._disk, home) if loss["partition"] == str(tp)]
        missing = first
        for loss in sorted(known, key=lambda each: int(each["first_offset"])):
            if loss["first_offset"] <= missing:
                missing = max(missing, loss["last_offset"] + 1)
        if missing > last:
            return
        what = "lost earlier; a snapshot that stood for it is lost, too"
        line = {
            **loss_owner(self._disk, home, str(tp)),
            "kind": DROPPED,
            "first_offset": first,
            "last_offset": last,
        }
        record_loss(self._disk, home, [{**line, "what": what}])
        self._report("records-lost", **line, what=what)
        if not self.found:
            self.found = True
            self._forgive()

    def is_beginning_recorded(self, partition: Partition) -> bool:
        """Whether the list of losses has what came before the metadata log's first offset. OSError."""
        home, end = self._store.home(partition.tp).path, partition.log_start_offset
        return self.found and end > 0 and is_loss_recorded(self._disk, home, str(partition.tp), 0, end - 1)

    def record_again(
        self, host: Host, committed: CommittedImage, node_id: int, now_ms: int, born: Callable[[str], NewTopic]
    ) -> None:
        """Have recorded what the logs show and the machine, which is loaded, does not know.

        It is committed before anything that is submitted later is answered. born: as topics are that the node makes
        itself. OSError.
        """
        # A leader epoch takes a record of its own, so that none is above the log's end.
        least_epoch = min(host.partition.log_end_offset, LARGEST_EPOCH) if self.found else 0
        if self.found:
            self._removed = committed.removed | _all_removed(host.partition)
            self._skip_producer_ids(host, committed.image, node_id, now_ms)
            self._readopt(host, committed.image, self._topics(committed, least_epoch, born), node_id, born)
        # Last: the first change of a topic that is readopted is what the publisher waits for.
        self._raise_epochs(host, committed.image, node_id, least_epoch)

    def _raise_epochs(self, host: Host, image: MetadataImage, node_id: int, least: int) -> None:
        """At each start: a partition may have been offline as long as a loss was on the list."""
        lower = []
        for topic_id, tp, latest in self._epochs():
            topic = image.topic_by_id(topic_id)
            if topic is not None and tp.partition < len(topic.partitions):
                epoch = max(latest, least)
                if topic.partitions[tp.partition].leader_epoch < epoch:
                    lower.append((topic_id, tp.partition, epoch))
        if lower:
            self._submit(host, RaiseEpochs(node_id, tuple(lower)))

    def _skip_producer_ids(self, host: Host, image: MetadataImage, node_id: int, now_ms: int) -> None:
        """At each start after a loss: what was given out since begins after the last one, too."""
        logs = [log for directory in self._store.directories for log in directory.logs.values()]
        known = (producer.id for log in logs for producer in log.producers.active())
        least = least_producer_id(now_ms, image.next_producer_id, known, host.partition.log_end_offset)
        self._submit(host, SkipProducerIds(node_id, least))

    def _submit(self, host: Host, command: RaiseEpochs | SkipProducerIds) -> None:
        """Without this nothing may be served."""

        def answered(answer: Any) -> None:
            if isinstance(answer, DuramenError):
                host.fail(answer)

        host.submit(command, answered)

    def _readopt(
        self,
        host: Host,
        image: MetadataImage,
        lost: list[LostTopic],
        node_id: int,
        born: Callable[[str], NewTopic],
    ) -> None:
        """Topics, or partitions of them, that logs on disk name."""
        if not lost:
            return
        wanted = [
            each._replace(configs=born(each.name).configs if each.name in STATE_TOPICS else KEPT) for each in lost
        ]
        self.readopted.update(each.topic_id for each in lost)
        remedies = {each.topic_id: self._remedy(image, each, node_id) for each in lost}

        def answered(answer: Any) -> None:
            for each in lost:
                if isinstance(answer, DuramenError) or each.topic_id not in answer:
                    self.readopted.discard(each.topic_id)
                    fields = {"topic": each.name, "id": topic_id_text(each.topic_id)}
                    self._report("log-of-unknown-topic", **fields, remedy=remedies[each.topic_id])

        host.submit(RegainTopics(node_id, tuple(wanted)), answered)

    def _remedy(self, image: MetadataImage, lost: LostTopic, node_id: int) -> str:
        """What somebody can do where the topic is refused its name.

        Which of two topics was deleted cannot be told: the other one's logs may be in a directory that is not named,
        or this one's deletion be what is lost. Both stay as they are, and no partition is made beside the logs here.
        """
        other = image.topics.get(lost.name)
        if other is None or other.id == lost.topic_id:
            return "if another topic of this name is told, too, move the directories of one out of log.dirs"
        why = f"it has no log here, and another topic of this name has, with id {topic_id_text(lost.topic_id)}"
        self._closed_directories.leave_out(other, why)
        return (
            f"the metadata log has another topic of this name, with id {topic_id_text(other.id)}: if nothing of that "
            f"one is wanted, `duramen topic delete {lost.name}` and a restart give this one the name; else move the "
            f"directories of this one out of log.dirs"
        )

    def _topics(self, committed: CommittedImage, least_epoch: int, born: Callable[[str], NewTopic]) -> list[LostTopic]:
        """Not what the log says was deleted. OSError.

        Where the whole log was begun anew since a disk is gone, the last partitions of our own topics may be gone with
        it: whose they are follows from how many there are, so that they are as many as the node makes. Groups whose
        partition of `__consumer_offsets` is gone begin anew in an empty one; what sinks had committed is not made up.
        """
        logs: dict[TopicId, dict[TopicPartition, int]] = {}
        for topic_id, tp, epoch in self._epochs() if self.found else ():
            logs.setdefault(topic_id, {})[tp] = epoch
        lost = []
        here = {topic_id for directory in self._store.directories for topic_id, _ in directory.logs}
        for directory in self._store.directories:
            here |= {left.topic_id for left in directory.offline.values() if not left.absent}
        taken = {tp.topic for topic_id in here & logs.keys() for tp in logs[topic_id]} | committed.image.topics.keys()
        for topic_id, partitions in logs.items():
            topic = committed.image.topic_by_id(topic_id)
            name, count = max((tp.topic, tp.partition + 1) for tp in partitions)
            if (
                self._was_recreated and topic is None and name in STATE_TOPICS
            ):  # once: the setting may be another one later
                count = max(count, born(name).partitions)
            if name == METADATA_TOPIC or topic_id in self._removed:
                continue
            if topic is None and topic_id not in here and name in taken:
                continue  # of two of one name this one's directories were moved away, as `_remedy` says
            if topic is None or len(topic.partitions) < count:
                epochs = (max(partitions.get(TopicPartition(name, index), 0), least_epoch) for index in range(count))
                missing = frozenset(range(count)) - {tp.partition for tp in partitions}
                if self._was_recreated and name == OFFSETS_TOPIC:
                    missing = frozenset()
                lost.append(LostTopic(name, topic_id, tuple(epochs), missing))
        return lost

    def _epochs(self) -> Iterator[tuple[TopicId, TopicPartition, int]]:
        """Each log here with the latest leader epoch that it has records of, -1 without. OSError."""
        for directory in self._store.directories:
            for (topic_id, _), log in directory.logs.items():
                yield topic_id, log.tp, log.epochs.latest
            for (topic_id, _), left in directory.offline.items():
                yield topic_id, left.tp, latest_epoch(self._disk, left.path)
