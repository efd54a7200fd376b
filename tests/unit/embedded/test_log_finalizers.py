"""Python collects garbage in any thread, in the middle of anything: a finalizer must not wait for its own thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import duramen

SECONDS = 60.0

OPENED = """
import gc, sys, threading, time, duramen
gc.disable()
log = duramen.open(sys.argv[1])
topic = log.topic("events")
turn = log._turn

class Garbage:
    def __init__(self, end):
        self.me, self.end = self, end
    def __del__(self):
        self.end()

def in_a_turn_of_the_main_thread():
    turn.take(gc.collect)

def in_a_turn_of_another_thread():
    thread = threading.Thread(target=turn.take, args=(gc.collect,))
    thread.start()
    thread.join()

def beside_turns():
    done = threading.Event()
    turn.take(lambda: turn.submit("lane", gc.collect, lambda *_: done.set()))
    done.wait()

def while_it_closes():
    real = log._close
    def close():
        gc.collect()
        real()
    log._close = close
    log.close()
"""
MOMENTS = ["in_a_turn_of_the_main_thread", "in_a_turn_of_another_thread", "beside_turns"]


def _run(code: str, path: Path) -> str:
    command = [sys.executable, "-c", OPENED + code, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True).stdout


@pytest.mark.parametrize("moment", [*MOMENTS, "while_it_closes"])
def test_a_finalizer_may_close_the_log(tmp_path: Path, moment: str) -> None:
    """It waited for the thread in which it ran: that thread, and everybody behind it, waited for ever."""
    code = f"""
topic.append([duramen.Record(value=b"v")])
Garbage(log.close)
{moment}()
while True:
    try:
        duramen.open(sys.argv[1]).close()
    except duramen.DirectoryLockedError:
        time.sleep(0.05)
    else:
        break
print("closed")
"""
    assert _run(code, tmp_path) == "closed\n"
    with duramen.open(tmp_path) as log:
        assert len(list(log.topic("events").read(0))) == 1


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_finalizer_appends_without_waiting_and_is_refused_what_it_would_wait_for(tmp_path: Path, moment: str) -> None:
    """An append was placed in the middle of another one's turn."""
    code = f"""
refused, futures = [], []
sys.unraisablehook = lambda args: refused.append(type(args.exc_value).__name__)
last = [duramen.Record(value=b"last")]
Garbage(lambda: futures.append(topic.append_async(last)))
Garbage(lambda: topic.append(last))
Garbage(lambda: next(topic.read(0)))
{moment}()
print(futures[0].result(), refused, topic.append([duramen.Record(value=b"v")]), topic.end_offset(0))
log.close()
"""
    assert _run(code, tmp_path) == "[0] ['RuntimeError', 'RuntimeError'] [1] 2\n"
