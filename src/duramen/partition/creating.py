"""Making partitions: directories and files off the loop, many to one sync, then the partitions on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duramen.config import TopicConfig
from duramen.errors import DuramenError, StorageError
from duramen.model import TopicId, TopicPartition
from duramen.storage.creation import NewLog

if TYPE_CHECKING:
    from duramen.partition.store import Store


def create_partitions(
    store: Store, new: list[tuple[TopicPartition, TopicId, TopicConfig]], done: Callable[[BaseException | None], None]
) -> None:
    """Make new partitions off the loop, in the directory with the fewest, then open them; `done(error)`.

    One call at a time. An error fences the directory: after a failed sync nothing on it is certain.
    """
    writable = [directory for directory in store.directories if directory.journal.failed is None]
    if not writable:
        done(StorageError("no log directory takes writes"))
        return
    directory = min(writable, key=lambda each: len(each.logs))
    try:
        job = directory.take_creation([NewLog(*each) for each in new])
    except (OSError, StorageError) as error:
        done(error)
        return

    def created(_: Any, error: BaseException | None) -> None:
        if error is not None:
            store.fail(directory, error)
            done(error)
            return
        refused: BaseException | None = None
        logs = job.logs
        try:
            directory.complete_creation(job)
        except DuramenError as problem:  # fenced meanwhile, or the journal has no room for all of them
            refused = problem
        for log, (_, _, config) in zip(logs, new, strict=True):
            if directory.logs.get((log.topic_id, log.tp.partition)) is log:
                store.adopt(directory, log, config)
        done(refused)

    store.submit("creation", job.run, created)
