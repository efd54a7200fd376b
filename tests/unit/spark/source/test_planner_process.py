"""The process in which Spark plans a stream, its driver played here: what it says when the driver hangs up."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from typing import IO

import pytest
from pyspark.serializers import CloudPickleSerializer, read_int, write_int, write_with_length
from pyspark.sql.streaming.python_streaming_source_runner import INITIAL_OFFSET_FUNC_ID
from pyspark.sql.types import StructType

from duramen.spark.datasource import DuramenDataSource
from duramen.spark.source.planner_process import RUNNER

SECRET = "secret"
SCHEMA = StructType().add("offset", "long")
PATIENCE_S = 60


def greeted(driver: socket.socket, source: DuramenDataSource) -> IO[bytes]:
    """The planner's connection, when it has made its reader."""
    there, _ = driver.accept()
    with there:
        there.settimeout(PATIENCE_S)
        # Closed with a reset, as one with unread words in it is: the other side fails at its first word then.
        there.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        file: IO[bytes] = there.makefile("rwb")
    assert file.read(read_int(file)).decode() == SECRET
    write_with_length(b"ok", file)
    file.flush()
    read_int(file)  # its process
    write_with_length("{}.{}".format(*sys.version_info).encode(), file)
    write_with_length(b"/", file)  # where Spark's files are,
    write_int(0, file)  # of which there are none
    write_with_length(CloudPickleSerializer().dumps(source), file)
    write_with_length(SCHEMA.json().encode(), file)
    write_int(1000, file)
    file.flush()
    assert read_int(file) == 0
    return file


@pytest.mark.parametrize("asks", [True, False])
def test_a_driver_that_hangs_up_while_a_stream_is_planned_is_not_told_by_tracebacks(asks: bool) -> None:
    """A run whose other step ends by an error printed forty lines of BrokenPipeError beside the reason."""
    with socket.create_server(("127.0.0.1", 0)) as driver, socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        given = {"kafka.bootstrap.servers": address, "subscribe": "t", "kafka.default.api.timeout.ms": "1000"}
        source = DuramenDataSource({**given, "fetchOffset.numRetries": "0"})
        place = {"PYTHON_WORKER_FACTORY_PORT": str(driver.getsockname()[1]), "PYTHON_WORKER_FACTORY_SECRET": SECRET}
        command = [sys.executable, "-m", RUNNER]
        with subprocess.Popen(command, env={**os.environ, **place}, stderr=subprocess.PIPE, text=True) as planner:
            with greeted(driver, source) as file:
                if asks:
                    write_int(INITIAL_OFFSET_FUNC_ID, file)
                    file.flush()
                    silent.accept()[0].close()  # it has begun
            _, said = planner.communicate(timeout=PATIENCE_S)
    assert said == ""


def test_what_else_goes_wrong_there_is_told() -> None:
    ask = (
        "import sys, types; from importlib.machinery import ModuleSpec;"
        "from duramen.spark.source import planner_process;"
        "sys.modules['__main__'].__spec__ = ModuleSpec(planner_process.RUNNER, None);"
        "planner_process.end_quietly_when_hung_up(); raise {}('why')"
    )
    for kind, expected in (("ValueError", "ValueError: why"), ("BrokenPipeError", "")):
        ran = subprocess.run([sys.executable, "-c", ask.format(kind)], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr.strip().splitlines()[-1:]) == (1, [expected] if expected else [])
