"""The files of a Delta table's log: which there are, what they say, and which of them are of versions that expired."""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from duramen.errors import StorageError

FILES_MAX = 250
"""Of commits, and of files that no commit names: how many go at a time. Few enough that no batch waits long."""
RETENTION = "delta.deletedFileRetentionDuration"
_PARQUET = b"PAR1"
"""How its files end."""
_NUMBERED = re.compile(r"([0-9]{20})\..*")
_COMMIT = re.compile(r"([0-9]{20})\.json")
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.parquet")


def interval(duration: timedelta) -> str:
    """As Delta's settings have it."""
    return f"interval {int(duration.total_seconds())} seconds"


def _numbers(log: Path, kind: re.Pattern[str]) -> list[int]:
    return sorted(int(match[1]) for path in log.iterdir() if (match := kind.fullmatch(path.name)))


def commits(log: Path) -> list[int]:
    """The versions whose commits are there, newest first."""
    return _numbers(log, _COMMIT)[::-1]


def actions(log: Path, number: int) -> list[dict[str, Any]]:
    """What a commit says; nothing where it was removed meanwhile. StorageError where it is torn."""
    try:
        text = (log / f"{number:020}.json").read_text(encoding="utf-8")
        # Values stand in a commit's statistics as they are: to `splitlines` some of their characters end a line, too.
        return [json.loads(line) for line in text.removesuffix("\n").split("\n")] if text else []
    except FileNotFoundError:
        return []
    except ValueError:
        raise torn(log, number) from None


def torn(log: Path, number: int, file: str | None = None) -> StorageError:
    """The error about a commit that is not whole, or a file that it added, with what to do: what was synced is on the
    disk, so of the last one nothing was acknowledged, and Spark gives its batch again."""
    path = log / f"{number:020}.json"
    what, it = (f"{path}", "it") if file is None else (f"{file}, which {path} added,", path.name)
    if commits(log)[:1] != [number]:
        return StorageError(
            f"{what} is damaged, and other commits follow: put it back from a copy, or build the table again with "
            "`duramen spark reprocess`"
        )
    return StorageError(
        f"{what} is torn, as a power cut leaves a commit that was not synced yet: move {it} out of the log and run "
        "again; its batch was not acknowledged and comes again"
    )


def sync_added(table: Path, log: Path, number: int) -> None:
    """The files that a commit added are on stable storage. StorageError where one is torn."""
    for action in actions(log, number):
        if added := action.get("add"):
            name = unquote(added["path"])
            # It may be of an older version, and somebody vacuumed.
            with suppress(FileNotFoundError), (table / name).open("rb") as file:
                size, end = os.fstat(file.fileno()).st_size, added["size"] - len(_PARQUET)
                if size != added["size"] or os.pread(file.fileno(), len(_PARQUET), max(end, 0)) != _PARQUET:
                    raise torn(log, number, name)
                os.fsync(file.fileno())


def check(log: Path) -> None:
    """StorageError where a commit is torn, the newest first."""
    for number in commits(log):
        actions(log, number)


def identity(log: Path, number: int) -> tuple[int, int] | None:
    """Of a commit's file: another one of that number is one of another table. None where it is gone."""
    try:
        found = (log / f"{number:020}.json").stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def undone(log: Path, key: str) -> int | None:
    """The last version whose commit has `key`, where a RESTORE behind it went back before it; else None.

    The log goes on to tell such a commit's batch and offsets, so nothing would bring back what was undone.
    """
    restored: int | None = None
    for number in commits(log):
        for told in (action.get("commitInfo", {}) for action in actions(log, number)):
            if key in told:
                return number if restored is not None and restored < number else None
            if told.get("operation") == "RESTORE" and restored is None:
                to = str(told.get("operationParameters", {}).get("version"))
                restored = int(to) if to.isdigit() else -1
    return None


def expired_end(log: Path, moment: float) -> int:
    """The version before which all were replaced before `moment` (Unix time, seconds); 0 where none was.

    It has a checkpoint, so that it and those behind it can be read without the others. Of several the last one before
    which lie at most FILES_MAX commits, or else the first: what is done at a time has a bound.
    """
    there = commits(log)[::-1]
    found = 0
    for number in _numbers(log, _CHECKPOINT):
        try:
            old = (log / f"{number:020}.json").stat().st_mtime < moment
        except FileNotFoundError:  # somebody else has cleaned the log
            continue
        if not old or (found and bisect_left(there, number) > FILES_MAX):
            break
        found = number
    return found


def files(log: Path, start: int, end: int | None) -> list[Path]:
    """The files of the log that are of versions from `start` on and before `end`, oldest first."""
    numbered = ((match, path) for path in log.iterdir() if (match := _NUMBERED.fullmatch(path.name)))
    return sorted(path for match, path in numbered if start <= int(match[1]) and (end is None or int(match[1]) < end))
