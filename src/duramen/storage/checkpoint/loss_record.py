"""What repairs took out of a data directory, which a start, `log verify` and the metrics ask for."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from typing import Any

from duramen.model import METADATA_TOPIC, TopicPartition, topic_id_text
from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import CLEANER, read_checkpoint, read_offsets
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.files.bad_sectors import read_whole
from duramen.storage.segment.partition_metadata import parse_partition_name

LOST_FOLDER = "duramen-lost"
"""Directory, in the data directory, of what repairs took out; `losses` in it lists it, a JSON object a line."""
LOSS_RECORD = "losses"
METADATA_RECREATED = "the whole log is gone; it was begun anew"
"""What a line says of a metadata log whose disk is gone for good, as somebody has said."""


def read_losses(disk: Disk, directory: str) -> list[dict[str, Any]]:
    """What repairs took out of a data directory, oldest first; unreadable lines are passed over. OSError."""
    return [told for told in _lines(disk, directory) if told is not None]


def unreadable_losses(disk: Disk, directory: str) -> int:
    """How many lines of the list are damaged. OSError."""
    return sum(told is None for told in _lines(disk, directory))


def losses_path(directory: str) -> str:
    """Of the list."""
    return posixpath.join(directory, LOST_FOLDER, LOSS_RECORD)


def lacks_losses(disk: Disk, directory: str) -> bool:
    """Whether the disk cannot read some of the list. OSError."""
    return bool(_what_is_left(disk, directory)[1])


def restore_losses(disk: Disk, directory: str) -> None:
    """Write the list anew with what can be read of it. OSError.

    What it said of the metadata log is not known then: that something was lost there stays told.
    """
    content, gaps = _what_is_left(disk, directory)
    if gaps:
        metadata = str(TopicPartition(METADATA_TOPIC, 0))
        what = "the disk cannot read some of this list: it may have told more of this log, and of others"
        line = {"partition": metadata, "kind": "dropped", "first_offset": -1, "last_offset": -1, "what": what}
        whole = [each for each in content.splitlines() if _decoded(each) is not None]
        whole.append(json.dumps(line).encode())
        replace_file(disk, losses_path(directory), b"".join(each + b"\n" for each in whole))


def _what_is_left(disk: Disk, directory: str) -> tuple[bytes, list[tuple[int, int]]]:
    path = losses_path(directory)
    if not disk.exists(path):
        return b"", []
    file = disk.open(path)
    try:
        return read_whole(file)
    finally:
        file.close()


def _lines(disk: Disk, directory: str) -> Iterator[dict[str, Any] | None]:
    content = read_file(disk, losses_path(directory)) or b""
    yield from map(_decoded, content.splitlines())


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        told = json.loads(line)
    except ValueError:
        return None
    is_whole = isinstance(told, dict) and isinstance(told.get("partition"), str)
    is_whole = is_whole and all(isinstance(told.get(key), int) for key in ("first_offset", "last_offset"))
    return told if is_whole else None


def record_loss(disk: Disk, directory: str, lines: list[dict[str, Any]]) -> None:
    """Add to the list what it has not got; the line end in front may be damaged. OSError."""
    path = posixpath.join(directory, LOST_FOLDER, LOSS_RECORD)
    known = read_file(disk, path)
    if known is None:
        known = b""
        disk.make_directories(posixpath.dirname(path))
        disk.sync_directory(directory)
    there = known.splitlines()
    new = [line for line in (json.dumps(each).encode() for each in lines) if line not in there]
    if new:
        line_end = b"" if not known or known.endswith(b"\n") else b"\n"
        replace_file(disk, path, known + line_end + b"".join(line + b"\n" for line in new))


def loss_owner(disk: Disk, directory: str, name: str) -> dict[str, str]:
    """How a line of the list names a partition: with its topic's id, if the checkpoint has that. OSError.

    The partition's own file may be what is damaged.
    """
    checkpoint = read_checkpoint(disk, directory)
    tp = parse_partition_name(name)
    for (topic_id, _), point in () if checkpoint is None else checkpoint.logs.items():
        if point.tp == tp:
            return {"partition": name, "topic_id": topic_id_text(topic_id)}
    return {"partition": name}


def is_left(disk: Disk, path: str, size: int) -> bool:
    """Whether a repair has left so many bytes of that segment file, however it was cut short behind that. OSError."""
    home, file = posixpath.split(path)
    directory, name = posixpath.split(home)
    whose = loss_owner(disk, directory, name)
    return any(
        all(loss.get(key, value) == value for key, value in whose.items())
        and loss["partition"] == name
        and posixpath.basename(str(loss.get("path"))) == file
        and loss.get("left", size) == size
        for loss in read_losses(disk, directory)
    )


def is_loss_recorded(disk: Disk, directory: str, name: str, first: int, last: int) -> bool:
    """Whether a repair took these offsets out of this partition, in one piece.

    Not out of that of another topic, which had the name before, where line and checkpoint say whose they are. OSError.
    """
    whose = loss_owner(disk, directory, name)
    return any(
        all(loss.get(key, value) == value for key, value in whose.items())
        and loss.get("partition") == name
        and loss["first_offset"] <= first
        and last <= loss["last_offset"]
        for loss in read_losses(disk, directory)
    )


def is_compacted(disk: Disk, directory: str, name: str) -> bool:
    """Whether Kafka's or our compaction has been at work in this partition."""
    return parse_partition_name(name) in read_offsets(disk, posixpath.join(directory, CLEANER))


def gap_behind(disk: Disk, directory: str, name: str, end: int, following: int) -> tuple[int, int] | None:
    """First and last offset missing between a segment that ends at `end` and the following one; None when none is.

    Kafka's compaction may take a segment's last batches, and a repair what was damaged: those are no gaps. Below the
    log start, deletion may have been interrupted.
    """
    tp = parse_partition_name(name)
    if end >= following or is_compacted(disk, directory, name):
        return None
    checkpoint = read_checkpoint(disk, directory)
    logs = () if checkpoint is None else checkpoint.logs.values()
    if any(point.tp == tp and following <= point.start_offset for point in logs):
        return None
    return None if is_loss_recorded(disk, directory, name, end, following - 1) else (end, following - 1)
