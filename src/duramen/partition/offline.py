"""Partitions that are on disk here and too damaged to be served."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from duramen.model import TopicId
from duramen.storage.directory import LogDirectory
from duramen.storage.opening import Offline


def offline(directories: Iterable[LogDirectory], topic_id: TopicId, partition: int) -> Offline | None:
    """Why a partition that is on disk here is not served; None when that is not so."""
    for directory in directories:
        left = directory.offline.get((topic_id, partition))
        if left is not None:
            return left
    return None


def delete_offline(directories: Iterable[LogDirectory], unwanted: Callable[[TopicId], bool]) -> None:
    """Delete those whose topic is not wanted any more; commit afterwards."""
    for directory in directories:
        for key in [key for key in directory.offline if unwanted(key[0])]:
            directory.delete_offline(key)
