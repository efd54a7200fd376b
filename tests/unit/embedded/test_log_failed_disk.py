"""An embedded log whose disk fails: every waiter hears of it, and closing lets go of everything."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest

import duramen
from duramen.embedded.records import Record
from duramen.errors import DuramenError, StorageError
from duramen.storage.files.os_disk import RealDisk
from duramen.storage.log.sync import SyncJob


def await_threads_of(names: set[str]) -> None:
    """Who has said that it is closed may not have ended yet."""
    patience = time.monotonic() + 30
    while time.monotonic() < patience:
        left = {thread.name for thread in threading.enumerate() if thread.name.startswith("duramen-")}
        if left <= names:
            return
        time.sleep(0.01)
    raise AssertionError(left)


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


def test_a_disk_that_fails_while_it_closes_is_told_by_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = duramen.open(str(tmp_path / "log"))
    log.topic("t").append([Record(b"v")])

    def fails(job: SyncJob) -> None:
        raise OSError(errno.EIO, "the disk failed")

    with monkeypatch.context() as broken:
        broken.setattr(SyncJob, "run", fails)
        with pytest.raises(StorageError, match="could not be closed cleanly"):
            log.close()
    log.close()
    await_threads_of({"duramen-main"})  # the one of all logs of the process
    with duramen.open(str(tmp_path / "log")) as again:
        assert len(list(again.topic("t").read(0))) == 1


def test_too_many_open_files_hold_up_neither_an_append_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group that cannot open a directory waits for its next try, and something is queued behind it."""
    log = duramen.open(str(tmp_path / "log"), {"duramen.journal.bypass.bytes": "10000"})
    small = log.topic("small")
    large = log.topic("large")
    tried, behind = threading.Event(), threading.Event()
    found = RealDisk.sync_directory

    def none_left(disk: RealDisk, path: str) -> None:
        if path.endswith("/large-0"):
            tried.set()
            behind.wait(30)
            raise OSError(errno.EMFILE, "Too many open files", path)
        found(disk, path)

    with monkeypatch.context() as scarce:
        scarce.setattr(RealDisk, "sync_directory", none_left)
        first = large.append_async([Record(bytes(30_000))])
        assert tried.wait(30)
        second = small.append_async([Record(b"v")])
        with log._turn:
            assert log._store.directories[0].journal.has_pending
        behind.set()
        closing = threading.Thread(target=log.close, daemon=True)
        closing.start()
        closing.join(60)
        assert not closing.is_alive()
        for told in (first, second):
            with pytest.raises(DuramenError):
                told.result(30)
    with duramen.open(str(tmp_path / "log"), {"duramen.journal.bypass.bytes": "10000"}) as again:
        assert len(list(again.topic("large").read(0))) <= 1
