"""The node under demonstration: a `duramen serve` process on a free port, started, killed and stopped by its pid."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

SERVE = "{bin}/duramen serve --set listeners=PLAINTEXT://127.0.0.1:{port} --set log.dirs={data}"
READY_SECONDS_MAX = 60
STOP_SECONDS_MAX = 30


def free_port() -> int:
    """A TCP port on loopback that nobody listens on now, and that the system gives to no connection meanwhile."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Node:
    """One server process and the directory it keeps its data in.

    command: a template with {bin}, {port} and {data}; another server that speaks the protocol may stand here.
    """

    def __init__(self, command: str, data: Path, log: Path) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._words = [
            word.format(bin=Path(sys.executable).parent, port=self.port, data=data.resolve())
            for word in command.split()
        ]
        self._log_path = log
        self._log: IO[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> float:
        """Start the process and return after how many seconds it took connections. SystemExit when it does not."""
        began = time.monotonic()
        self._log = self._log_path.open("ab")
        self._process = subprocess.Popen(
            self._words, stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT
        )
        while time.monotonic() - began < READY_SECONDS_MAX:
            if self._process.poll() is not None:
                break
            with socket.socket() as probe:
                probe.settimeout(1)
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return time.monotonic() - began
            time.sleep(0.01)
        tail = self._log_path.read_text(errors="replace").splitlines()[-15:]
        self.kill()
        raise SystemExit("the node does not answer. Its last words:\n  " + "\n  ".join(tail))

    def kill(self) -> None:
        """kill -9: no warning, no clean-up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._forget()

    def stop(self) -> int:
        """SIGTERM, then wait; the exit status. Killed when it does not end in time."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            status = self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._forget()
        return status

    def _forget(self) -> None:
        self._process = None
        if self._log is not None:
            self._log.close()
            self._log = None
