"""Making partitions: directories and files off the loop, many to one sync, then the partitions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from duramen.config import TopicConfig
from duramen.errors import DuramenError, StorageError
from duramen.model import TopicId, TopicPartition
from duramen.storage.creation import NewLog
from duramen.storage.no_room import NoRoomError
from duramen.storage.recovery_plan import LogKey

if TYPE_CHECKING:
    from duramen.partition.store import Store

Wanted = tuple[TopicPartition, TopicId, TopicConfig]
"""A partition to be made."""

Created = Callable[[Mapping[LogKey, BaseException]], None]
"""Told which partitions were not made, and why."""


def create_partitions(store: Store, wanted: list[Wanted], done: Created) -> None:
    """Make new partitions off the loop, where the fewest are and there is room, then open them; `done(unmade)`.

    One call at a time. A failing disk fences the directory: after a failed sync nothing on it is certain. A full one
    has none of them afterwards.
    """
    new = [NewLog(*each) for each in wanted]
    writable = [directory for directory in store.directories if directory.journal.failed is None]
    try:
        if not writable:
            raise StorageError("no log directory takes writes")
        directory = min(writable, key=lambda each: (store.room.lacking(each) is not None, len(each.logs)))
        job = directory.take_creation(new)
    except (OSError, StorageError) as error:
        none = dict.fromkeys((each.key for each in new), error)
        # Not from here: the next partitions are asked for, and refused, and so on.
        store.submit("checkpoint", _nothing, lambda result, failure: done(none))
        return
    configs = {log.key: config for log, (_, _, config) in zip(new, wanted, strict=True)}

    def created(_: Any, error: BaseException | None) -> None:
        unmade: dict[LogKey, BaseException] = dict(job.refused)
        if error is not None:
            if not isinstance(error, NoRoomError):
                store.fail(directory, error)
            done(unmade | dict.fromkeys((each.key for each in job.new), error))
            return
        problem: BaseException | None = None
        try:
            directory.complete_creation(job)
        except DuramenError as refused:  # fenced meanwhile, or the journal has no room for all of them
            problem = refused
        for each, log in zip(job.new, job.logs, strict=True):
            if directory.logs.get(each.key) is log:
                store.adopt(directory, log, configs[each.key])
            elif problem is not None:
                unmade[each.key] = problem
        done(unmade)

    # Behind all syncs of segments: one may be under way for a log that is deleted by now, and it writes files by the
    # name that the log had. A new log of that name would get them.
    store.submit("checkpoint", job.run, created)


def _nothing() -> None:
    """A job that only takes its turn."""
