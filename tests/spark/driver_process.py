"""Drivers in processes of their own, as the tests of several of them start, watch and end them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pyspark
from fault_points import FaultPoints
from spark_processes import descendants, kill_9

from duramen.pipelines.jvm import spark_home

PATIENCE_S = 400.0
HERE = Path(__file__).parent
SHORT_LIVED_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Half the time of a driver that lives for a minute is Java's compiler."""


@cache
def home() -> str:
    """Spark's home without its zipped Python, as `session` would make it."""
    return spark_home.make(Path(pyspark.__file__).parent)


def environment() -> dict[str, str]:
    """In which the modules of this folder and `tests` are found, and Spark's workers run this Python."""
    given = [place for place in os.environ.get("PYTHONPATH", "").split(":") if place.startswith("/")]
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), sys.executable)
    path = {"PYTHONPATH": ":".join([str(HERE), str(HERE.parents[1]), *given])}
    # PySpark gives a worker 15 s to come to the JVM's socket, which a loaded machine needs.
    java_options = f"{SHORT_LIVED_JAVA} -Djava.io.tmpdir={tempfile.gettempdir()}"
    patient = {"JAVA_TOOL_OPTIONS": java_options, "SPARK_AUTH_SOCKET_TIMEOUT": "120"}
    return {**os.environ, **python, **path, **patient, "SPARK_HOME": home()}


def until(there: Callable[[], object], what: str, told: Callable[[], str] = str) -> None:
    """Wait; AssertionError with what is `told` after PATIENCE_S."""
    give_up = time.monotonic() + PATIENCE_S
    while not there():
        assert time.monotonic() < give_up, f"waited for {what}\n{told()}"
        time.sleep(0.02)


class SinkDriver:
    """One `sink_driver`, with points of its own."""

    def __init__(self, folder: Path, bootstrap: str, *arguments: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.points = FaultPoints(folder)
        command = [sys.executable, "-m", "sink_driver", bootstrap, str(folder), *arguments]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, env=environment()
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def progress(self) -> int:
        """The last batch that Spark has finished in this life; -1 before the first."""
        try:
            return int((self.folder / "progress").read_text())
        except FileNotFoundError:
            return -1

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def gets_to(self, what: str, there: Callable[[], object]) -> None:
        """AssertionError when it ends before."""

        def is_there() -> object:
            found = there()
            assert found or self.running, f"the driver ended before {what}\n{self.log()}"
            return found

        until(is_there, what, self.log)

    def ends(self) -> int:
        """Wait for it; the exit code."""
        until(lambda: not self.running, "the end of a driver", self.log)
        return self._process.returncode

    def stop(self) -> int:
        (self.folder / "stop").touch()
        return self.ends()

    def kill(self) -> None:
        """Whatever is left of it."""
        if self.running:
            kill_9([*descendants(self._process.pid), self._process.pid])
            self._process.wait()
