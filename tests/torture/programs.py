"""Client programs of a torture run: processes that are killed, and start again where they ended as they may."""

from __future__ import annotations

import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path

from tests.torture.copier import FENCED, STUCK
from tests.worlds.served_node import finding_tests


class Program(ABC):
    """One client, started again whenever it was fenced or its library stuck."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.fenced = 0
        self.stuck = 0

    @abstractmethod
    def command(self) -> list[str]:
        """Of the process that is to be started."""

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=finding_tests()
            )

    def look(self) -> str | None:
        """Start it again where it was fenced or its library stuck; what is wrong when it ended otherwise."""
        assert self.process is not None
        status = self.process.poll()
        if status is None:
            return None
        if status not in (FENCED, STUCK):
            return f"{self.name} ended with {status}:\n{self.log.read_text()[-2000:]}"
        self.fenced += status == FENCED
        self.stuck += status == STUCK
        self.start()
        return None

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
