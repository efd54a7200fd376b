"""A sign in a log directory that its cluster has, had or may have other voters or brokers.

Outside the metadata log, which may be what is damaged. Where it is, nothing may be made up from this disk alone: the
committed metadata, and records that are missing here, are on the others.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Final

from duramen.errors import StorageError
from duramen.ports import Disk
from duramen.storage.files.atomic import remove_file, replace_file

SHARED_CLUSTER: Final = "duramen-cluster"

_CONTENT = (
    b"# This directory belongs to a cluster of several nodes. While this file is here, no repair cuts a log or begins\n"
    b"# one anew, for the other nodes may have what is missing.\n"
)


def is_shared(disk: Disk, path: str) -> bool:
    """Whether the sign is there; whatever is in the file, it counts. OSError."""
    return disk.exists(posixpath.join(path, SHARED_CLUSTER))


def mark_shared(disk: Disk, path: str) -> None:
    """Put it there, durably: before anything can come from another node, or go to one. OSError."""
    if not is_shared(disk, path):
        replace_file(disk, posixpath.join(path, SHARED_CLUSTER), _CONTENT)


def spread_sign(disk: Disk, paths: Sequence[str]) -> None:
    """Where one of a node's directories has the sign, all of them get it: one may have been added. OSError."""
    if any(is_shared(disk, path) for path in paths):
        for path in paths:
            mark_shared(disk, path)


def unmark_shared(disk: Disk, path: str) -> None:
    """Take it away from a directory that is being formatted, and that nothing has started on. OSError."""
    if remove_file(disk, posixpath.join(path, SHARED_CLUSTER)):
        disk.sync_directory(path)


def refuse_shared(disk: Disk, path: str, what: str) -> None:
    """StorageError where the sign is there. what: is not to be done to such a directory. OSError."""
    if is_shared(disk, path):
        raise StorageError(
            f"{path} belongs to a cluster of several nodes: {what}, for a voter without committed records would vote, "
            "and a replica with a hole would lead. The other nodes have what is lost here: move the directory away and "
            "start the node; a metadata directory is formatted first, by `duramen cluster init` with "
            "--no-initial-controllers"
        )
