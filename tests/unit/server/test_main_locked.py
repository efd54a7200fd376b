"""A start whose data directory another process has, for a moment or for good."""

from __future__ import annotations

import time
from typing import Any

import pytest

from duramen.errors import DirectoryLockedError
from duramen.server.main import LOCKED_SECONDS, start_when_unlocked


class Held:
    """A broker whose directory is free after so many seconds of a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.store = self
        self.directories: list[Any] = []
        self.now = 0.0
        self.free_at = seconds
        self.events: list[str] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def start(self, ready: Any) -> None:
        if self.now < self.free_at:
            raise DirectoryLockedError("/data/.lock is locked")
        ready()

    def log(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.events.append(event)

    def run(self) -> list[str]:
        """What is logged, and then that it is ready."""
        broker: Any = self
        start_when_unlocked(broker, lambda: self.events.append("ready"), broker.log)
        return self.events


def test_a_start_waits_for_a_node_that_is_stopping_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Held(monkeypatch, 0.0).run() == ["ready"]
    assert Held(monkeypatch, 3.0).run() == ["waits-for-lock", "ready"]


def test_it_does_not_wait_for_one_that_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, 60.0)
    with pytest.raises(DirectoryLockedError):
        held.run()
    assert LOCKED_SECONDS <= held.now < LOCKED_SECONDS + 1
    assert held.events == ["waits-for-lock"]


def test_it_gives_up_at_once_where_it_has_begun_already(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch, 1.0)
    held.directories.append("the first of two")
    with pytest.raises(DirectoryLockedError):
        held.run()
    assert held.now == 0.0
