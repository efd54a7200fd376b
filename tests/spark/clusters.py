"""Spark on more than one process: a standalone master with workers, and settings for sessions that do not live long."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from driver_process import SHORT_LIVED_JAVA, home

from duramen.pipelines.jvm import java

READY_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 20.0
LOCAL_CLUSTER = "local-cluster[2,1,1024]"
LOOPBACK = "127.0.0.1"

# What Spark's generated code saves in a long query, it costs many times over in these.
BRIEF = {
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_LIVED_JAVA,
    "spark.executor.extraJavaOptions": SHORT_LIVED_JAVA,
    "spark.python.authenticate.socketTimeout": "120s",  # a worker has 15 s to come, which a loaded machine needs
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


class Standalone:
    """A master and its workers, each a process that `spark-class` of the pyspark package runs, on loopback."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        environment: dict[str, str] = {**os.environ}
        java.prepare(environment)
        daemon = f"-Dspark.master.rest.enabled=false {SHORT_LIVED_JAVA}"
        self._environment = environment | {
            "SPARK_HOME": home(),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": daemon,
        }
        self._program = str(Path(home(), "bin", "spark-class"))
        self.processes: list[subprocess.Popen[bytes]] = []
        self._start("master", "master.Master", LOOPBACK, "--port", "0", "--webui-port", "0")
        self.url = self._awaited("master", r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[0]
        """Which port it took is known from its log: one picked before might be another's by then."""

    def work(self, hosts: Sequence[str]) -> None:
        """Start a worker of one core under each of these names of this machine, and wait until the master has them."""
        for number, host in enumerate(hosts):
            place = str(self._folder / f"work-{number}")
            room = ("--cores", "1", "--memory", "600m", "--work-dir", place)
            self._start(f"worker-{number}", "worker.Worker", host, "--port", "0", "--webui-port", "0", *room, self.url)
        self._awaited("master", "Registering worker", len(hosts))

    def _start(self, name: str, kind: str, host: str, *words: str) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [self._program, f"org.apache.spark.deploy.{kind}", "--host", host, *words],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        self._stack.callback(_end, process)

    def _awaited(self, name: str, words: str, times: int = 1) -> list[str]:
        """What a log says, once it has said it so often."""
        give_up = time.monotonic() + READY_SECONDS_MAX
        while len(found := re.findall(words, (self._folder / f"{name}.log").read_text(errors="replace"))) < times:
            ended = [process.args for process in self.processes if process.poll() is not None]
            assert not ended, f"{ended[0]} ended; see the logs in {self._folder}"
            assert time.monotonic() < give_up, f"{name} has not said {words!r}; see the logs in {self._folder}"
            time.sleep(0.05)
        return found


def _end(process: subprocess.Popen[bytes]) -> None:
    """A worker that is asked to ends its executors, too."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextmanager
def standalone(folder: Path, hosts: Sequence[str] = (LOOPBACK, LOOPBACK)) -> Iterator[Standalone]:
    """A master with a worker under each name of this machine; all of them are gone at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        found = Standalone(folder, stack)
        found.work(hosts)
        yield found
