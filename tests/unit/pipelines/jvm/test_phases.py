"""A phase that lasts is told once, and none that is over."""

from __future__ import annotations

import threading

import pytest

from duramen.pipelines.jvm import phases
from duramen.pipelines.jvm.phases import Phases


def test_a_phase_that_lasts_is_told_once_by_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "SECONDS", 0.01)
    said: list[str] = []
    told = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        told.set()

    with Phases(say) as waits:
        for phase in ("starting Java", "planning late"):
            told.clear()
            waits.begin(phase)
            waits.begin(phase)
            assert told.wait(30)
    assert said == ["starting Java ...", "planning late ..."]


def test_a_phase_that_is_over_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phases, "SECONDS", 3600)
    said: list[str] = []
    with Phases(said.append) as waits:
        waits.begin("starting Java")
        waits.begin("planning")
        waits._tell("starting Java")
    waits._tell("planning")
    assert said == []
    assert not [
        thread
        for thread in threading.enumerate()
        if isinstance(thread, threading.Timer) and not thread.finished.is_set()
    ]


def test_where_nobody_says_it_the_line_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    waits = Phases()
    waits.begin("starting Java")
    waits._tell("starting Java")
    waits.begin("")
    assert capsys.readouterr().err == "starting Java ...\n"
