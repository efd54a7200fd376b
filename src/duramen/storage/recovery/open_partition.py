"""Opens the partitions that a start found, in parallel: recovery, then the log. A damaged one is left offline alone.

What is left offline stays on disk as it is, but for what the journal had of it: that is written to its place before the
journal goes. Every later start finds the same damage, until `duramen log repair` has put it aside.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable
from dataclasses import dataclass

from duramen.errors import CorruptLogError, StorageError
from duramen.model import TopicId
from duramen.ports import Disk
from duramen.storage.journal.point import Point
from duramen.storage.log.log import Log
from duramen.storage.log.offline import Offline
from duramen.storage.recovery.replay import filter_bases
from duramen.storage.recovery.startup import MissingLog, PartitionStartup, home_of
from duramen.storage.segment.recovery_point import LogPoint
from duramen.storage.segment.segment import log_name

DIRECTORY_IN_PLACE = "is a directory where a file belongs: `duramen log repair` moves it to duramen-lost"


def missing_log_offline(path: str, topic_id: TopicId, known: MissingLog) -> Offline:
    """A log whose directory is gone: made anew, its next records would get offsets that others had."""
    point, segments = known
    home = home_of(path, point.tp)
    what = (
        f"{home} is missing, and the log went up to offset {point.recovery_point}: put it back from a copy, or go on "
        f"without it by `duramen log repair {path}`"
    )
    return Offline(point.tp, topic_id, home, StorageError(what), point._replace(state=None), segments, absent=True)


@dataclass(slots=True)
class PartitionOpening:
    """The opening of one partition: `run` on any thread. make: `open_log` with all that does not differ."""

    disk: Disk
    ready: PartitionStartup
    clean: bool
    make: Callable[..., Log]
    log: Log | None = None
    offline: Offline | None = None

    def run(self) -> PartitionOpening:
        """Recover, then open. OSError, and StorageError for what no other partition would survive."""
        ready = self.ready
        end: Point | None = None
        expected = ready.sound_below
        if ready.recovery is not None:
            expected = ready.recovery.synced or 0
        try:
            if ready.recovery is not None:
                end = ready.recovery.run()
                expected = end.offset
                ready.start_offset = min(ready.start_offset, end.offset)
                ready.sound_below = end.offset
                if ready.recovery.sound_below is not None:
                    ready.sound_below = ready.recovery.sound_below
            names = self.disk.list_directory(ready.found.path)
            listed = ready.wanted.bases
            if ready.recovery is not None:
                ready.wanted = ready.wanted.and_unmerged(self.disk, ready.found.path, settled=True)
                if ready.recovery.damage is not None:
                    raise ready.recovery.damage
            ready.wanted = ready.wanted.and_sealed(names, start_known=ready.known is not None)
            ready.wanted.check(ready.found.path, filter_bases(names), ready.start_offset, ready.sound_below)
            self.log = self.make(
                path=ready.found.path,
                tp=ready.found.tp,
                topic_id=ready.found.topic_id,
                clean=self.clean,
                start_offset=ready.start_offset,
                recovery_point=ready.sound_below,
                known=ready.known,
                listed=listed,
                end_offset=None if end is None or self._is_least else end.offset,
            )
            self._is_whole(self.log, expected)
        except CorruptLogError as error:
            self._leave(error, end, expected)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EISDIR) or (ready.recovery is not None and end is None):
                raise
            why: Exception = error  # a sector that cannot be read any more
            if error.errno == errno.EISDIR:
                why = StorageError(f"{error.filename} {DIRECTORY_IN_PLACE}")
            self._leave(why, end, expected)
        return self

    @property
    def _is_least(self) -> bool:
        """Whether nobody knew where the log ends when it was left offline."""
        known, recovery = self.ready.known, self.ready.recovery
        return (known is not None and known.is_least) or (recovery is not None and recovery.is_least)

    def _is_whole(self, log: Log, expected: int) -> None:
        """CorruptLogError when the log ends before it may: its next records would get offsets that others had."""
        if log.end_offset >= expected:
            return
        self.log = None
        for segment in log.segments:
            segment.close()
        what = f"the log ends at offset {log.end_offset}, it went up to {expected}"
        path = posixpath.join(log.path, log_name(log.active.base_offset))
        raise CorruptLogError(path, log.active.size, log.active.size, what, log.end_offset)

    def _leave(self, error: Exception, end: Point | None, expected: int) -> None:
        ready = self.ready
        found = ready.found
        point = ready.known
        if end is None and point is not None:
            end = Point(point.recovery_point, point.segment_base, point.position)
        is_least = end is None or self._is_least
        at = end if end is not None else self._end_of_files()
        # Without a state the next start reads it all, and so comes to the same end.
        kept = LogPoint(
            found.tp, ready.start_offset, max(at.offset, expected), at.segment_base, at.position, is_least=is_least
        )
        self.offline = Offline(found.tp, found.topic_id, found.path, error, kept, ready.wanted.lasting())

    def _end_of_files(self) -> Point:
        """Where the files end, for a log of which nobody knows how far it goes: a later start must cut nothing off.

        The offset is one that is surely there. OSError.
        """
        path = self.ready.found.path
        base = max(filter_bases(self.disk.list_directory(path)), default=-1)
        if base < 0:
            return Point(0, 0, 0)
        file = self.disk.open(posixpath.join(path, log_name(base)))
        try:
            return Point(base, base, file.size())
        finally:
            file.close()
