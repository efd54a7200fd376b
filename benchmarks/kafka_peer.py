"""Owns the real Apache Kafka next to us: its jars (from Maven), its command-line tools and a one-node broker.

Also used by conformance tests, which run Kafka's own tools from the same jars:

    from benchmarks.kafka_peer import TOPICS, PeerUnavailableError, tool
    tool(TOPICS, "--bootstrap-server", "127.0.0.1:9092", "--list", timeout=60).stdout

Nothing here knows the address of a registry: `mvn` from PATH uses whatever the machine is set up with. Where Java or
Maven cannot be had, `PeerUnavailableError` says so in one line.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.broker_process import LOOPBACK, BrokerProcess, free_port

ROOT = Path(__file__).resolve().parent.parent
POM = Path(__file__).resolve().parent / "pom.xml"
LIBS = ROOT / ".cache" / "kafka-libs"
HEAP = "1G"
MINIMUM_JAVA = 17

BROKER = "kafka.Kafka"
STORAGE = "kafka.tools.StorageTool"
CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
CONSUMER_GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
GET_OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
DUMP_LOG = "org.apache.kafka.tools.DumpLogSegments"
PRODUCER_PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERFORMANCE = "org.apache.kafka.tools.ConsumerPerformance"
END_TO_END_LATENCY = "org.apache.kafka.tools.EndToEndLatency"

# The JVM flags of Kafka's own start script, with its default heap.
SERVER_FLAGS = (
    f"-Xms{HEAP}",
    f"-Xmx{HEAP}",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
# A command that lives for a second gains nothing from what a server's JVM does to get fast.
TOOL_FLAGS = ("-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
QUIET = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")


class PeerUnavailableError(Exception):
    """Kafka cannot be run on this machine; the message is the one-line reason."""


def kafka_version() -> str:
    """The version that the pom names."""
    found = re.search(r"<kafka\.version>([^<]+)<", POM.read_text())
    if found is None:
        raise PeerUnavailableError("benchmarks/pom.xml names no kafka.version")
    return found.group(1)


def java() -> str:
    """The path of a Java that runs Kafka's broker (17 or newer)."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is None:
        raise PeerUnavailableError("no `java` on PATH (Kafka needs Java 17 or newer)")
    if _java_major(found) < MINIMUM_JAVA:
        raise PeerUnavailableError(f"{found} is older than Java {MINIMUM_JAVA}, which Kafka's broker needs")
    return found


def java_version() -> str:
    """The first line of `java -version`."""
    ran = subprocess.run([java(), "-version"], capture_output=True, text=True, timeout=30, check=False)
    return (ran.stderr or ran.stdout).splitlines()[0]


@functools.cache
def _java_major(path: str) -> int:
    """Asked once: it takes a tenth of what a command takes."""
    ran = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    found = re.search(r'version "(\d+)(?:\.(\d+))?', ran.stderr + ran.stdout)
    if found is None:
        return 0
    return int(found.group(2) or 0) if found.group(1) == "1" else int(found.group(1))


def jars(timeout: float = 300.0) -> Path:
    """The directory with Kafka's jars, fetched through Maven the first time (about 90 files, 110 MB)."""
    return collected(POM, LIBS, kafka_version(), timeout)


def collected(pom: Path, folder: Path, version: str, timeout: float) -> Path:
    """`folder`, with the jars that `pom` names in it: fetched through Maven when it has not got them yet.

    Processes that want them at one moment each fetch their own copy, and one of these becomes the folder.
    """
    stamp = folder / f"complete-{version}"
    if stamp.exists() and stamp.read_text() == pom.read_text():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerUnavailableError(f"no `mvn` on PATH, and the jars of {pom.name} have not been fetched before")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as place:
        _fetch(maven, pom, Path(place) / "jars", timeout)
        (Path(place) / "jars" / stamp.name).write_text(pom.read_text())
        with contextlib.suppress(FileNotFoundError):
            folder.rename(Path(place) / "old")
        with contextlib.suppress(OSError):  # another process was quicker, with the same
            (Path(place) / "jars").rename(folder)
    return folder


def _fetch(maven: str, pom: Path, folder: Path, timeout: float) -> None:
    command = [
        maven,
        "--quiet",
        "--batch-mode",
        f"--file={pom}",
        "dependency:copy-dependencies",
        "-DincludeScope=runtime",
        f"-DoutputDirectory={folder}",
    ]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise PeerUnavailableError(f"Maven did not deliver the jars of {pom.name} within {timeout:.0f} s") from None
    if ran.returncode != 0:
        errors = [line for line in (ran.stdout + ran.stderr).splitlines() if "ERROR" in line]
        raise PeerUnavailableError(
            f"Maven could not fetch the jars of {pom.name}: {(errors or ['no reason given'])[0]}"
        )


def java_command(classname: str, *args: str, flags: Sequence[str] = ("-Xmx512M",)) -> list[str]:
    """The command line that runs one class out of Kafka's jars."""
    return [java(), *flags, *QUIET, "-cp", f"{jars()}{os.sep}*", classname, *args]


def tool(
    classname: str, *args: str, timeout: float = 60.0, stdin: str | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one of Kafka's command-line tools and return its output as text.

    Raises PeerUnavailableError where Kafka cannot be run, subprocess.TimeoutExpired after `timeout` seconds and, with
    `check`, subprocess.CalledProcessError when the tool fails, with what it said as a note.
    """
    ran = subprocess.run(
        java_command(classname, *args, flags=TOOL_FLAGS),
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if check and ran.returncode != 0:
        failed = subprocess.CalledProcessError(ran.returncode, ran.args, ran.stdout, ran.stderr)
        failed.add_note(f"it said: {(ran.stdout + ran.stderr)[-4000:]}")
        raise failed
    return ran


def cluster_id() -> str:
    """A new one, as Kafka writes it: URL-safe base64 that no command line takes for an option."""
    return base64.urlsafe_b64encode(b"\0" + os.urandom(15)).decode().rstrip("=")


class KafkaPeer(BrokerProcess):
    """One Kafka node in combined KRaft mode: broker and controller in one JVM with a 1 GiB heap, as Kafka ships."""

    name = "Kafka"

    def prepare(self) -> None:
        self.configure()
        self.format()

    def format(self) -> None:
        """Make its data directory, once it is configured."""
        tool(STORAGE, "format", "-t", cluster_id(), "-c", str(self._properties), timeout=60)

    def configure(self) -> None:
        """Write its properties; whoever has a data directory for it needs no more."""
        super().prepare()
        controller = free_port()
        self._properties = self.directory / "server.properties"
        self._properties.write_text(
            "process.roles=broker,controller\n"
            "node.id=1\n"
            f"controller.quorum.voters=1@{LOOPBACK}:{controller}\n"
            f"listeners=PLAINTEXT://{self.bootstrap},CONTROLLER://{LOOPBACK}:{controller}\n"
            f"advertised.listeners=PLAINTEXT://{self.bootstrap}\n"
            "controller.listener.names=CONTROLLER\n"
            "listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT\n"
            f"log.dirs={self.directory / 'data'}\n"
            "offsets.topic.replication.factor=1\n"
            "transaction.state.log.replication.factor=1\n"
            "transaction.state.log.min.isr=1\n"
            "share.coordinator.state.topic.replication.factor=1\n"
            "share.coordinator.state.topic.min.isr=1\n"
            "group.initial.rebalance.delay.ms=0\n"
        )

    def command(self) -> Sequence[str]:
        return java_command(BROKER, str(self._properties), flags=SERVER_FLAGS)
