"""Looks whether a pipeline can run here, and says what to do where it cannot."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from duramen.client import Cluster
from duramen.errors import DuramenError
from duramen.pipelines.jvm import java
from duramen.pipelines.jvm.phases import Phases
from duramen.pipelines.jvm.requirements import Check, java_check, node, packages, storage
from duramen.pipelines.jvm.session import (
    NoMasterError,
    await_executors,
    borrowed,
    check_master,
    chosen_master,
    process_session,
)
from duramen.version import INSTALL_SPARK

ROUNDS = 5
SECONDS_MAX = 5.0


def advertised(bootstrap: str) -> list[str]:
    """The addresses that the cluster gives its clients; those of `bootstrap` while it does not answer."""
    try:
        with Cluster(bootstrap, timeout_s=SECONDS_MAX) as cluster:
            return [node.address for node in cluster.metadata(()).nodes.values()]
    except DuramenError:
        return [address.strip() for address in bootstrap.split(",")]


def workers(spark: SparkSession, folder: Path, bootstrap: str) -> Iterator[Check]:
    """Tasks on every executor tell how it lives: its Python, what it can import, which nodes and folders it reaches."""
    executors = await_executors(spark, lambda _said: None)
    if not executors:
        remedy = "the master's web page shows what is free: --conf spark.executor.memory=512m, or start a worker"
        yield Check("executors", False, f"{spark.sparkContext.master} gave none in a minute", remedy)
        return
    try:
        told, executors = asked(spark, _task(str(folder.resolve()), advertised(bootstrap)), executors)
    except (PySparkException, Py4JError) as error:
        remedy = f"set PYSPARK_PYTHON to a Python that every executor has; here it is {sys.executable}"
        yield Check("workers", False, _cause(error), remedy)
        return
    ours = ".".join(map(str, sys.version_info[:2]))
    hosts = sorted({each.host for each in told})
    yield Check("executors", True, f"{len(told)} of {executors} answered, on {', '.join(hosts)}")
    pythons = sorted({each.python for each in told})
    yield Check(
        "workers' Python",
        pythons == [ours],
        f"{', '.join(pythons)}, the driver has {ours}",
        f"PYSPARK_PYTHON={sys.executable}",
    )
    missing = sorted({f"{name} on {each.host}" for each in told for name in each.missing})
    remedy = f"{INSTALL_SPARK}, with the Python that the executors run; doctor's PYSPARK_PYTHON names it"
    yield Check("workers' imports", not missing, f"missing: {', '.join(missing)}" if missing else "all there", remedy)
    cut_off = sorted({f"{address} from {each.host}" for each in told for address in each.unreached})
    remedy = "executors read and write by themselves: set advertised.listeners to an address that all of them reach"
    yield Check("workers' node", not cut_off, f"no way to {', '.join(cut_off)}" if cut_off else "in reach", remedy)
    blind = sorted({each.host for each in told if not each.sees_folder})
    remedy = (
        "share the folder with the executors: aggregates keep their sums in it, and readFrom=storage reads there; "
        "other tables and streams do without"
    )
    yield Check("workers' storage", not blind, f"not seen on {', '.join(blind)}" if blind else str(folder), remedy)


class ExecutorReport(NamedTuple):
    """What one executor's Python says of itself."""

    host: str
    python: str
    missing: tuple[str, ...]
    unreached: tuple[str, ...]
    sees_folder: bool


_Told = tuple[str, int, str, list[str], list[str], bool]


def asked(spark: SparkSession, task: Callable[[int], _Told], executors: int) -> tuple[list[ExecutorReport], int]:
    """(What every executor says, how many there are by then); of ROUNDS jobs without an answer of each, the others'.

    A session begins with the first executor, and more come while it asks that one.
    """
    context = spark.sparkContext
    told: dict[tuple[str, int], ExecutorReport] = {}
    for _ in range(ROUNDS):
        tasks = max(context.defaultParallelism, executors)
        answers = context.parallelize(range(tasks), tasks).map(task).collect()
        for host, parent, python, missing, unreached, sees in answers:
            told[host, parent] = ExecutorReport(host, python, tuple(missing), tuple(unreached), sees)
        executors = max(executors, await_executors(spark, lambda _said: None))
        if len(told) >= executors:
            break
    return list(told.values()), executors


def _task(folder: str, addresses: list[str]) -> Callable[[int], _Told]:
    """The function of a task. Being a closure it travels whole: where it runs, nothing of ours may be there."""

    def look(_number: int) -> tuple[str, int, str, list[str], list[str], bool]:
        time.sleep(0.2)  # so that no executor takes the tasks of another
        wanted = ("pyspark_duramen", "duramen", "pyarrow", "numpy", "pandas")
        missing = [name for name in wanted if importlib.util.find_spec(name) is None]
        try:
            importlib.import_module("google.protobuf")  # `google` is of many packages
        except ImportError:
            missing.append("protobuf")
        python = ".".join(map(str, sys.version_info[:2]))
        unreached = []
        for address in addresses:
            host, _, port = address.rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), 3).close()
            except OSError:
                unreached.append(address)
        # An executor forks its workers from one process of its own.
        return socket.gethostname(), os.getppid(), python, missing, unreached, os.path.isdir(folder)

    return look


def _cause(error: Exception) -> str:
    """Why a task failed: what Python or the system said, rather than where in Spark it was noticed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line, following in itertools.pairwise([*lines, ""]):
        if line.endswith("Error from python worker:"):
            return following[:300]
        if "Cannot run program" in line:
            return line[line.index("Cannot run program") :][:300]
    told = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (told or lines or [type(error).__name__])[-1][:300]


def examine(
    bootstrap: str, folder: Path, master: str | None = None, config: Mapping[str, str] | None = None
) -> Iterator[Check]:
    """Every check, in an order in which one that fails explains the next."""
    yield from packages()
    found = java.prepare(os.environ)
    yield java_check(found)
    there = process_session()
    where = chosen_master(master) if there is None else str(there.sparkContext.master)
    python = os.environ["PYSPARK_PYTHON"]
    # Other machines may have theirs elsewhere; whether it is the same is asked there.
    good = python == sys.executable or not where.startswith("local")
    yield Check("PYSPARK_PYTHON", good, python, f"export PYSPARK_PYTHON={sys.executable}")
    yield storage(folder)
    yield node(bootstrap)
    try:
        check_master(where)
    except NoMasterError as error:
        yield Check("master", False, str(error), "see the log of the master; its address is the one it logs itself")
        return
    yield Check("master", True, where)
    if found is None:
        return
    with borrowed("duramen-doctor", master, config) as spark, Phases() as phases:
        phases.begin("asking the executors")
        yield from workers(spark, folder, bootstrap)
