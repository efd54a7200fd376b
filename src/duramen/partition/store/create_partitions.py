"""Making partitions: directories and files off the loop, many to one sync, then the partitions on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING, Any

from duramen.config import TopicConfig
from duramen.errors import DuramenError, StorageError
from duramen.model import LogKey, TopicId, TopicPartition
from duramen.storage import NewLog, NoRoomError

if TYPE_CHECKING:
    from duramen.partition.store.store import Store
    from duramen.storage import LogDirectory

Wanted = tuple[TopicPartition, TopicId, TopicConfig]
"""A partition to be made."""

Created = Callable[[Mapping[LogKey, BaseException]], None]
"""Told which partitions were not made, and why."""


def create_partitions(store: Store, wanted: list[Wanted], done: Created) -> None:
    """Make new partitions off the loop, each where the fewest are and there is room, then open them; `done(unmade)`.

    One call at a time. A failing disk fences the directory: after a failed sync nothing on it is certain. A full one
    has none of its share afterwards.
    """
    new = [NewLog(*each) for each in wanted]
    configs = {log.key: config for log, (_, _, config) in zip(new, wanted, strict=True)}
    shares = _spread(store, new)
    if not shares:
        _refuse(store, new, StorageError("no log directory takes writes"), done)
    waiting = len(shares)
    all_unmade: dict[LogKey, BaseException] = {}

    def finished(unmade: Mapping[LogKey, BaseException]) -> None:
        nonlocal waiting
        all_unmade.update(unmade)
        waiting -= 1
        if not waiting:
            done(all_unmade)

    for directory, share in shares:
        _create(store, directory, share, configs, finished)


def _spread(store: Store, new: list[NewLog]) -> list[tuple[LogDirectory, list[NewLog]]]:
    """Which directory gets which: none while another has room and fewer logs. Those that take no writes get none."""
    writable = [directory for directory in store.data_directories if directory.journal.failed is None]
    counts = [
        (store.disk_full.lacking(each) is not None, len(each.logs), number) for number, each in enumerate(writable)
    ]
    shares: list[list[NewLog]] = [[] for _ in writable]
    heapify(counts)
    for log in new if counts else ():
        lacking, count, number = counts[0]
        shares[number].append(log)
        heapreplace(counts, (lacking, count + 1, number))
    return [(directory, share) for directory, share in zip(writable, shares, strict=True) if share]


def _create(
    store: Store, directory: LogDirectory, new: list[NewLog], configs: Mapping[LogKey, TopicConfig], done: Created
) -> None:
    try:
        job = directory.take_creation(new, store.deletions.refused_paths())
    except (OSError, StorageError) as error:
        _refuse(store, new, error, done)
        return

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

    # After all syncs of segments: one may be under way for a log that is deleted by now, and it writes files by the
    # name that the log had. A new log of that name would get them.
    store.submit("checkpoint", job.run, created)


def _refuse(store: Store, new: list[NewLog], error: Exception, done: Created) -> None:
    """None of them is made. Not told from here: the next partitions are asked for, and refused, and so on."""
    unmade = dict.fromkeys((each.key for each in new), error)
    store.submit("checkpoint", _nothing, lambda result, failure: done(unmade))


def _nothing() -> None:
    """A job that only takes its turn."""
