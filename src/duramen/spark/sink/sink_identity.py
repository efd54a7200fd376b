"""Who writes: what tells one query, one life of its driver and one task from others, as far as Spark tells."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyspark import TaskContext

from duramen.errors import ConfigError
from duramen.spark.options.first_contact import DRIVER_FOLDERS

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"

_ENDS_LINE: Final = 2
"""Of Spark's note of a batch: behind its version and its settings come the ends in all sources, a line each."""
_ENDS_MAX: Final = 16 << 10

_NO_CHECKPOINT: Final = (
    "exactly-once needs a name for the query that outlives its driver: set the option checkpointLocation on this "
    "writer (a location set in Spark's configuration is not told to sinks), or a sinkId of your own"
)


def checkpoint_query_id(checkpoint: str | None) -> str:
    """The id Spark gave the query that keeps its checkpoint there; it survives restarts. ConfigError without one."""
    if checkpoint is None:
        raise ConfigError(_NO_CHECKPOINT)
    try:
        return str(json.loads(_read(checkpoint.rstrip("/") + "/metadata"))["id"])
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise ConfigError(f"the query's id cannot be read from its checkpoint ({error}); set a sinkId") from error


def batch_plan(checkpoint: str | None, batch_id: int) -> dict[str, str]:
    """Where a batch ends in its sources, as Spark wrote it down before it ran, the same whenever it is run again: a
    digest as `plan`, and the text as `ends`, unless that is long. Nothing where it cannot be read."""
    if checkpoint is None:
        return {}
    try:
        lines = _read(f"{checkpoint.rstrip('/')}/offsets/{batch_id}").splitlines()
        ends = b" ".join(lines[_ENDS_LINE:]).decode()
    except (OSError, ValueError, pa.ArrowException):
        return {}
    plan = {"plan": hashlib.sha256(ends.encode()).hexdigest()[:32]}
    return plan | ({"ends": ends} if len(ends) <= _ENDS_MAX else {})


def _read(place: str) -> bytes:
    scheme, colon, path = place.partition(":")
    if not colon or scheme == "file":
        local = path if colon else place
        return Path("/" + local.lstrip("/") if colon else local).read_bytes()
    files, inside = FileSystem.from_uri(place.replace("s3a://", "s3://", 1))
    with files.open_input_stream(inside) as stream:
        content: bytes = stream.read()
    return content


def driver_run_id(scope: str, environment: Mapping[str, str] = os.environ) -> str:
    """A name for this life of the driver: the same in all its Python processes, another one after a restart.

    scope tells queries of one driver apart. ConfigError where Spark did not start this process.
    """
    folders = environment.get(DRIVER_FOLDERS)
    if not folders:
        raise ConfigError(f"{DRIVER_FOLDERS} is not set: the sink is planned by Spark's driver, not outside of it")
    return hashlib.sha256(f"{folders}\n{scope}".encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """The task this process runs. query_id and batch_id are None outside of a streaming query."""

    partition: int
    attempt: int
    query_id: str | None
    batch_id: int | None

    def __str__(self) -> str:
        return f"{self.partition}/{self.attempt}"


def current_task() -> TaskIdentity:
    """As Spark tells the worker; ConfigError outside of a task."""
    context = TaskContext.get()
    if context is None:
        raise ConfigError("rows are written by Spark's tasks")
    batch_id = context.getLocalProperty(BATCH_ID)
    return TaskIdentity(
        context.partitionId(),
        context.attemptNumber(),
        context.getLocalProperty(QUERY_ID),
        None if batch_id is None else int(batch_id),
    )
