"""Owns one broker running as a child process: start, readiness, CPU and memory readings, and its certain end."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

LOOPBACK = "127.0.0.1"
CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
API_VERSIONS_V0 = struct.pack(">hhih", 18, 0, 1, -1)
PR_SET_PDEATHSIG = 1
CPUCLOCK_SCHED = 2
CHANCE = random.SystemRandom()
_GIVEN: set[int] = set()
"""The ports that this process had from here."""


class BrokerFailedError(Exception):
    """A broker did not start, or ended by itself; the message holds the end of its log."""


def free_port() -> int:
    """A TCP port on loopback that nobody listens on right now, and none that the system hands out to others soon.

    Each call gives another one: a Kafka whose two listeners share a port does not start.
    """
    while True:
        port = CHANCE.randrange(10_000, 15_000)
        if port in _GIVEN:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            _GIVEN.add(port)
            return port


def answers_api_versions(port: int, timeout: float = 5.0) -> bool:
    """True when whatever listens on `port` answers an ApiVersions request within `timeout` seconds."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=timeout) as connection:
            connection.sendall(struct.pack(">i", len(API_VERSIONS_V0)) + API_VERSIONS_V0)
            return len(connection.recv(4)) == 4
    except OSError:
        return False


def _die_with_parent() -> None:
    """In the child before exec: ask Linux to kill it when this process is killed without a chance to clean up."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class BrokerProcess:
    """A broker as a child process on loopback, in a session of its own so that Ctrl-C reaches only the benchmark."""

    name = "broker"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self.log_path = directory / "broker.log"
        self.start_seconds = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise BrokerFailedError(f"{self.name} is not running")
        return self._process.pid

    def command(self) -> Sequence[str]:
        """The command line; subclasses say."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Whatever has to happen once before the first start; not part of the start-up time."""
        self.directory.mkdir(parents=True, exist_ok=True)

    def start(self, timeout: float = 60.0) -> float:
        """Start it and return the seconds until its first ApiVersions reply."""
        began = time.perf_counter()
        self.launch()
        self.await_reply(timeout, began)
        return self.start_seconds

    def launch(self) -> None:
        """Start it and wait for nothing."""
        self._log = self.log_path.open("ab")
        self._process = subprocess.Popen(
            list(self.command()),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            start_new_session=True,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
        )

    def await_reply(self, timeout: float, began: float) -> None:
        """Wait for its first ApiVersions reply; `began`: when it was started."""
        while not answers_api_versions(self.port):
            self.check_alive()
            if time.perf_counter() - began > timeout:
                self.stop()
                raise BrokerFailedError(f"{self.name} did not answer within {timeout:.0f} s:\n{self.log_tail()}")
            time.sleep(0.002)
        self.start_seconds = time.perf_counter() - began

    def ask_to_stop(self) -> None:
        """SIGTERM, and wait for nothing."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def stop(self, grace: float = 15.0) -> None:
        """Ask it to end, wait `grace` seconds, then kill it; safe to call twice."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(10)
        if self._log is not None:
            self._log.close()
            self._log = None

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
        self.stop()

    def check_alive(self) -> None:
        if self._process is None or self._process.poll() is not None:
            raise BrokerFailedError(f"{self.name} is no longer running:\n{self.log_tail()}")

    def cpu_seconds(self) -> float:
        """User and system time of all its threads, ended ones included, since it started.

        Linux gives another process's CPU clock in nanoseconds; the fallback, /proc/PID/stat, counts the same in
        clock ticks of usually 10 ms.
        """
        if sys.platform == "linux":
            with contextlib.suppress(OSError):
                return time.clock_gettime((~self.pid << 3) | CPUCLOCK_SCHED)
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS

    def memory_mib(self) -> dict[str, float]:
        """Resident memory now, its share that is not file-backed, and the highest value so far, in MiB."""
        wanted = {"VmRSS": "rss", "RssAnon": "anonymous", "VmHWM": "peak"}
        found: dict[str, float] = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            key, _, rest = line.partition(":")
            if key in wanted:
                found[wanted[key]] = int(rest.split()[0]) / 1024
        return found

    def log_tail(self, lines: int = 15) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])
        return "(no log)"
