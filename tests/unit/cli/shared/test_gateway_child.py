"""The process beside a node: started again later and later, and ended in time whatever it does."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from duramen.cli.shared import gateway_child
from duramen.cli.shared.gateway_child import GatewayChild

WAIT_SECONDS = 20.0


class Told:
    """What was said, and when the child had ended."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.names: list[str] = []
        self.ended = threading.Event()

    def say(self, level: str, event: str, fields: dict[str, Any]) -> None:
        assert (level, event) in [("warning", "gateway-ended"), ("error", "gateway-not-started")]
        self.names.append(event)
        self.events.append(fields)

    def stop(self, child: GatewayChild) -> float:
        began = time.monotonic()
        child.stop(self.ended.set)
        assert self.ended.wait(WAIT_SECONDS)
        return time.monotonic() - began


def program(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    """What runs in the place of Python."""
    path = folder / "program"
    path.write_text(f'#!/bin/sh\necho "$@" >>{folder}/started\n{text}\n')
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))


def wait_for(path: Path) -> str:
    until = time.monotonic() + WAIT_SECONDS
    while not path.exists() or not path.read_text().endswith("\n"):
        assert time.monotonic() < until
        time.sleep(0.01)
    return path.read_text()


def test_it_is_started_again_later_and_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gateway_child, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(gateway_child, "LONGEST_PAUSE_SECONDS", 0.05)
    program(monkeypatch, tmp_path, "exit 3")
    told = Told()
    child = GatewayChild({"gateway.listener": "http://127.0.0.1:1"})
    child.start("127.0.0.1:9", told.say)
    until = time.monotonic() + WAIT_SECONDS
    while len(told.events) < 5:
        assert time.monotonic() < until
        time.sleep(0.01)
    told.stop(child)
    assert [event["again_in_s"] for event in told.events[:5]] == [0.01, 0.02, 0.04, 0.05, 0.05]
    assert {event["how"] for event in told.events} == {"exit status 3"}
    assert told.names[:5] == ["gateway-not-started", *["gateway-ended"] * 4], "the first says it clearly, and once"
    assert told.events[0]["listener"] == "http://127.0.0.1:1"
    assert (tmp_path / "started").read_text().splitlines()[0] == (
        "-P -m duramen gateway --until-eof --bootstrap 127.0.0.1:9 --set gateway.listener=http://127.0.0.1:1"
    )


def test_what_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/does/not/exist")
    told = Told()
    child = GatewayChild({})
    child.start("127.0.0.1:9", told.say)
    until = time.monotonic() + WAIT_SECONDS
    while not told.events:
        assert time.monotonic() < until
        time.sleep(0.01)
    told.stop(child)
    assert told.events == [{"how": "No such file or directory", "again_in_s": 0.5}]


def test_what_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gateway_child, "STOP_SECONDS", 0.2)
    program(monkeypatch, tmp_path, f"trap '' TERM; echo ready >{tmp_path}/deaf; while :; do sleep 0.05; done")
    told = Told()
    child = GatewayChild({})
    child.start("127.0.0.1:9", told.say)
    wait_for(tmp_path / "deaf")
    assert 0.2 <= told.stop(child) < WAIT_SECONDS
    assert told.events == []


def test_in_a_hurry_it_is_killed_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program(monkeypatch, tmp_path, f"trap '' TERM; echo ready >{tmp_path}/deaf; while :; do sleep 0.05; done")
    told = Told()
    child = GatewayChild({})
    child.start("127.0.0.1:9", told.say)
    wait_for(tmp_path / "deaf")
    child.stop(told.ended.set)
    child.kill()
    assert told.ended.wait(gateway_child.STOP_SECONDS / 2)


def test_a_node_that_was_never_ready_has_nothing_to_end() -> None:
    told = Told()
    assert told.stop(GatewayChild({})) < WAIT_SECONDS
