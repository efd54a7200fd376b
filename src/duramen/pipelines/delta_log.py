"""The files of a Delta table's log: which there are, what they say, and which of them are of versions that expired."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

FILES_MAX = 250
"""Of commits, and of files that no commit names: how many go at a time. Few enough that no batch waits long."""
RETENTION = "delta.deletedFileRetentionDuration"
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


def actions(log: Path, number: int) -> Iterator[dict[str, Any]]:
    """What a commit says; nothing where it was removed meanwhile."""
    try:
        text = (log / f"{number:020}.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    yield from (json.loads(line) for line in text.splitlines())


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
