"""An embedded log whose disk fails: every waiter hears of it, and closing lets go of everything."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import duramen
from duramen.embedded.records import Record
from duramen.errors import DuramenError


def test_closing_after_a_failure_lets_the_directory_go(tmp_path: Path) -> None:
    log = duramen.open(str(tmp_path / "log"))
    topic = log.topic("t")
    topic.append([Record(b"v")])
    with log._turn:
        log._store.directories[0].journal.fail(None, OSError(errno.EIO, "the disk failed"))
    with pytest.raises(DuramenError):
        topic.append([Record(b"v")], timeout=10)
    with pytest.raises(DuramenError):
        log.topic("other")
    log.close()
    with duramen.open(str(tmp_path / "log")) as again:
        assert len(list(again.topic("t").read(0))) == 1
