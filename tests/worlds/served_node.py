"""A real server process for the tests: started on a free port, killed or stopped by its pid.

DURAMEN_CONFORMANCE_SERVER may name another server's command with {port} and {data} in it; running these tests against
Apache Kafka is how we know that they ask for Kafka's behaviour and not for ours.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

FOREIGN = os.environ.get("DURAMEN_CONFORMANCE_SERVER", "")
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
only_duramen = pytest.mark.skipif(bool(FOREIGN), reason="this is about Duramen's own process or files")
ROOT = Path(__file__).resolve().parents[2]
DURAMEN = str(Path(sys.executable).parent / "duramen")
_CHANCE = random.SystemRandom()


def free_port() -> int:
    """A port that nobody else is given while this process lives, also while the server on it is down.

    It is none of those that the system hands out to connections and to listeners that name none (Linux: from 32768 on);
    a name in Linux's abstract namespace, held until the end, keeps other test processes off it.
    """
    while True:
        port = _CHANCE.randrange(15_000, 32_000)
        with socket.socket() as probe, socket.socket(socket.AF_UNIX) as claim:
            try:
                probe.bind(("127.0.0.1", port))
                if sys.platform == "linux":
                    claim.bind(f"\0duramen-test-port-{port}")
            except OSError:
                continue
            claim.detach()
            return port


def has_ipv6() -> bool:
    """Whether a program of this machine can talk to another one by IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def finding_tests() -> dict[str, str]:
    """An environment in which a process finds `tests`, whatever folder it runs in."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, given)])}


class Served:
    """One data directory and the process that serves it; the process may be started again after a kill."""

    def __init__(self, folder: Path, settings: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.settings = settings or {}
        self.port = free_port()
        self.bootstrap = f"127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        if FOREIGN:
            return [word.format(port=self.port, data=self.data) for word in FOREIGN.split()]
        address = f"PLAINTEXT://{self.bootstrap}"
        own = {"listeners": address, "advertised.listeners": address, "log.dirs": str(self.data)}
        settings = {**own, **self.settings}
        return [DURAMEN, "serve", *(word for k, v in settings.items() for word in ("--set", f"{k}={v}"))]

    def start(self) -> float:
        """Start and wait until the port takes connections; seconds from start to then."""
        began = time.monotonic()
        self.launch()
        assert self.process is not None
        while time.monotonic() - began < READY_SECONDS_MAX:
            assert self.process.poll() is None, f"the server ended by itself:\n{self.log()}"
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return time.monotonic() - began
            time.sleep(0.005)
        self.kill()
        raise AssertionError(f"the server did not answer in {READY_SECONDS_MAX} s:\n{self.log()}")

    def environment(self) -> dict[str, str]:
        """A copy: what another thread sets meanwhile moves C's own (EFAULT)."""
        return dict(os.environ)

    def launch(self) -> None:
        """Start the process and wait for nothing."""
        assert self.process is None
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.environment(),
            )

    def kill(self) -> None:
        """SIGKILL: nothing in the process gets to run again."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self, with_signal: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop and return its exit status; killed when it does not."""
        assert self.process is not None
        self.process.send_signal(with_signal)
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        finally:
            self.kill()

    def log(self) -> str:
        path = self.folder / "server.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""
