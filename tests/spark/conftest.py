"""What the tests of Spark share: one session per test process, on two threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest

# The workers must run this interpreter, whatever `python3` on PATH is.
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from driver_process import SHORT_LIVED_JAVA, home
from pyspark.sql import SparkSession

from duramen.pipelines.jvm import java

java.prepare(os.environ)
os.environ.setdefault("SPARK_HOME", home())


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A local session that keeps to loopback and to little memory, and tries a failed task again as a cluster does."""
    session = (
        SparkSession.builder.master("local[2,4]")
        .appName("duramen-tests")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", SHORT_LIVED_JAVA)
        .config("spark.ui.enabled", "false")
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
