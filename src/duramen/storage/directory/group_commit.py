"""The commit cycle of a log directory: appends go to segments, and a group of the journal makes them durable."""

from __future__ import annotations

from contextlib import suppress

from duramen.errors import ErrorCode, KafkaError
from duramen.storage.directory.checkpointer import Checkpointer
from duramen.storage.directory.truncations import Truncations
from duramen.storage.files.ballast import Ballast
from duramen.storage.files.disk_full import NoRoomError, without_traceback
from duramen.storage.files.open_files import OpenFiles
from duramen.storage.journal.journal import Journal, JournalGroup
from duramen.storage.log.log import Log
from duramen.storage.log.sync import FlushQueue


class GroupCommit:
    """Writes what the logs of one directory have queued, and hands out the journal's groups. Loop thread only.

    dirty: bytes in segments that wait for their sync. waits_for_files: some of what is queued was not written, because
    too many files are open that others were written to: it will be when a checkpoint has synced those.
    """

    def __init__(
        self,
        path: str,
        journal: Journal,
        queue: FlushQueue[Log],
        ballast: Ballast,
        files: OpenFiles,
        checkpointer: Checkpointer,
        truncations: Truncations,
    ) -> None:
        self.dirty = 0
        self.waits_for_files = False
        self._path = path
        self._journal = journal
        self._queue = queue
        self._ballast = ballast
        self._files = files
        self._checkpointer = checkpointer
        self._truncations = truncations
        queue.relieve = self._relieve

    def take_group(self) -> JournalGroup | None:
        """`flush`, then the journal's next group; when there is nothing to commit, once, a mark that says so.

        None where not everything could be written.
        """
        self._truncations.carry_out()
        self.flush()
        if self.waits_for_files:
            return None
        group = self._journal.take_group()
        if group is None:
            return self._journal.take_idle_mark()
        self.dirty -= sum(extent.length for extent in group.extents)  # the group itself syncs these
        return group

    def flush(self) -> None:
        """Write what was appended since the last call, one write per log.

        NoRoomError: what is not written waits for the next call, and no more is taken until there is room. Any other
        OSError: the directory is fenced.
        """
        queue = self._queue
        queue.unwritten = 0
        self.waits_for_files = False
        if not queue:
            return
        logs = queue[:]
        queue.clear()
        self._checkpointer.changed.update(dict.fromkeys(logs))
        written = 0
        try:
            for log in logs:
                if not log.active.is_open and self._files.full and self._checkpointer.makes_files_free:
                    self.waits_for_files = True
                    break
                unwritten = log.active.size - log.active.flushed
                log.flush()
                self.dirty += unwritten
                written += 1
            self._put_back(logs[written:])
            self._files.trim()
        except NoRoomError as error:
            self._put_back(logs[written:])
            self.found_no_room(error)
            raise
        except OSError as error:
            self._journal.fail(None, error)
            raise

    def _put_back(self, logs: list[Log]) -> None:
        """They stay queued, before what comes."""
        queue = self._queue
        queue[:0] = logs
        queue.unwritten = sum(log.active.size - log.active.flushed for log in queue)

    def _relieve(self, size: int) -> None:
        """Before so much waits for being written that the reserve would not hold it: write it, or take no more.

        What makes room is journaled after all that waits: where a disk is full and the reserve is less, nothing can.
        KafkaError for a batch that is alone too much.
        """
        journal = self._journal
        if journal.failed is not None or journal.no_room is not None:
            return
        fits = True
        with suppress(OSError):  # found none, or failed: the journal says so now, and refuses
            self.flush()
            fits = size <= self._queue.limit or self._ballast.fits(beside=size)
        if not fits:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"{self._path} has no room for {size} bytes and its reserve"
            )

    def found_no_room(self, error: NoRoomError) -> None:
        """No writes are taken; files that were synced meanwhile may be what is in the way."""
        self._journal.no_room = without_traceback(error)
        self._files.trim(again=True)
