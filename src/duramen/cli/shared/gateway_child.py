"""The gateway that a node runs beside itself: a process that is started again when it dies, and ends with the node."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

Say = Callable[[str, str, dict[str, Any]], None]
"""Writes an event: its level, its name and its fields. Called on any thread."""

STOP_SECONDS: Final = 10.0
"""From SIGTERM to SIGKILL."""
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 30.0


class GatewayChild:
    """One for each node. A thread waits for the process; nothing here keeps the node's loop waiting.

    settings: `gateway.*`, checked. The process ends by itself when the node is killed, for then its stdin ends.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = settings
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, bootstrap: str, say: Say) -> None:
        """Run it from now on. bootstrap: the node, as host:port."""
        words = [word for name, text in self._settings.items() for word in ("--set", f"{name}={text}")]
        command = [sys.executable, "-P", "-m", "duramen", "gateway", "--until-eof", "--bootstrap", bootstrap, *words]
        self._thread = threading.Thread(target=self._run, args=(command, say), name="gateway", daemon=True)
        self._thread.start()

    def stop(self, then: Callable[[], None]) -> None:
        """End it, within STOP_SECONDS; `then` is called on another thread, or at once where nothing runs."""
        self._stopping.set()
        if self._thread is None:
            then()
            return
        threading.Thread(target=self._end, args=(self._thread, then), name="gateway-end", daemon=True).start()

    def kill(self) -> None:
        """End it at once."""
        self._stopping.set()
        self._send(signal.SIGKILL)

    def _end(self, thread: threading.Thread, then: Callable[[], None]) -> None:
        self._send(signal.SIGTERM)
        thread.join(STOP_SECONDS)
        self._send(signal.SIGKILL)
        thread.join()
        then()

    def _send(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process is not None:
                self._process.send_signal(number)  # which asks first whether it is there

    def _run(self, command: list[str], say: Say) -> None:
        pause, is_first = FIRST_PAUSE_SECONDS, True
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                how = self._run_once(command)
            except OSError as error:  # no memory, no more processes
                how = error.strerror or str(error)
            if self._stopping.is_set():
                return
            is_young = time.monotonic() - began < LONGEST_PAUSE_SECONDS
            if not is_young:
                pause = FIRST_PAUSE_SECONDS
            if is_first and is_young and how.startswith("exit status"):  # a setting or an address: it may never come up
                say(
                    "error",
                    "gateway-not-started",
                    {
                        "listener": self._settings.get("gateway.listener", ""),
                        "how": how,
                        "again_in_s": pause,
                        "remedy": "its own line above says why; the node goes on without HTTP until then",
                    },
                )
            else:
                say("warning", "gateway-ended", {"how": how, "again_in_s": pause})
            is_first = False
            self._stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)

    def _run_once(self, command: list[str]) -> str:
        """From its start to its end, and how it ended."""
        with self._lock:
            if self._stopping.is_set():
                return "not started"
            # A session of its own: a Ctrl-C of the terminal is the node's alone, which ends it in order.
            process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            self._process = process
        try:
            status = process.wait()
        finally:
            assert process.stdin is not None
            process.stdin.close()
        return f"exit status {status}" if status >= 0 else signal.Signals(-status).name
