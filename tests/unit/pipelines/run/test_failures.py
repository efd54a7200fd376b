"""What a step's failure is told by, in one line, out of what Spark says of it."""

from __future__ import annotations

import pytest

from duramen.pipelines.run.failures import reason

JAVA = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "queries.py", line 243, in fold
    found = rows.toArrow()
py4j.protocol.Py4JJavaError: An error occurred while calling o281.getResult.
: org.apache.spark.SparkException: Exception thrown in awaitResult:
	at org.apache.spark.util.ThreadUtils$.awaitResult(ThreadUtils.scala:359)
Caused by: org.apache.spark.SparkException: Job aborted due to stage failure: %s
	at org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2935)
	... 1 more
"""


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("Total size of results is bigger than spark.driver.maxResultSize (1024.0 MiB)", "maxBytesPerTrigger"),
        ("Task 0 failed 1 times: ExecutorLostFailure", "ExecutorLostFailure"),
    ],
)
def test_an_error_of_java_is_told_by_its_cause(said: str, told: str) -> None:
    """It was told by the number of an object."""
    found = reason(RuntimeError(JAVA % said))
    assert found.startswith(f"Job aborted due to stage failure: {said}")
    assert told in found


def test_a_state_of_other_types_is_told_with_what_to_do() -> None:
    """Spark advises to force it, by which sums may become wrong."""
    found = reason(
        RuntimeError(
            JAVA % "Task 0 failed 1 times, most recent failure\n"
            "org.apache.spark.sql.execution.streaming.state.StateStoreKeySchemaNotCompatible: "
            "[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match existing state key schema.\n"
            "Existing key_schema=StructType(StructField(n,IntegerType,true)) and new key_schema=StructType().\n"
            "If you want to force running the query without schema validation, please set stateSchemaCheck to false."
        )
    )
    assert "`duramen spark reprocess` builds it again. Existing key_schema=StructType(StructField(n,Int" in found
    assert "force" not in found


def test_an_error_of_ours_is_told_by_its_words() -> None:
    ours = "duramen.spark.source.data_loss.DataLossError: offsets 0 to 3 of t-0 are lost"
    assert reason(RuntimeError(JAVA % f"Lost task\n{ours}")) == "offsets 0 to 3 of t-0 are lost"
    assert reason(RuntimeError(JAVA % "Lost task\nValueError: no number (3)")) == "ValueError: no number (3)"


def test_an_error_of_delta_is_told_with_what_lies_behind_it() -> None:
    """A full disk was told as "Generic LocalFileSystem error"."""
    arrow = "          \x1b[31m↳\x1b[0m"
    said = f"OSError: Generic LocalFileSystem error\n{arrow} Unable to copy data to file\n {arrow} No space left\n"
    told = "OSError: Generic LocalFileSystem error: Unable to copy data to file: No space left"
    assert reason(RuntimeError(f"Traceback\n{said}\tat org.apache.spark.api.python\n")) == told
    assert reason(RuntimeError("x\nCaused by: java.io.IOError: No space left")) == "java.io.IOError: No space left"


PYTHON = """An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "queries.py", line 304, in fold
    found = rows.toArrow()
            ^^^^^^^^^^^^^^
  File "captured.py", line 285, in unwrap_spark_exception
    raise converted from None
{raised}

=== Streaming Query ===
Identifier: tour.aircraft.v1 [id = 4294f25c, runId = bf83ca57]

Logical Plan:
~WriteToMicroBatchDataSourceV1 ForeachBatchSink
+- ~Project [tail#22, carrier#23]
   +- ~StreamingDataSourceV2ScanRelation[key#0, value#1] duramen

py4j.Py4JException: An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "queries.py", line 304, in fold
    found = rows.toArrow()
            ^^^^^^^^^^^^^^
  File "captured.py", line 285, in unwrap_spark_exception
    raise converted from None
{raised}

\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""


WORKER = """pyspark.errors.exceptions.captured.PythonException: An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "tour.py", line 18, in f
    raise Refused("no")
tour.Refused: no"""


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            "pyspark.errors.exceptions.captured.SparkRuntimeException: [USER_RAISED_EXCEPTION] t-0@0: it does not fit",
            "[USER_RAISED_EXCEPTION] t-0@0: it does not fit",
        ),
        (
            WORKER,
            "tour.Refused: no",
        ),
    ],
)
def test_what_a_tables_batch_raises_is_told_by_its_words(raised: str, told: str) -> None:
    """A value that does not fit was told as "An exception was raised by the Python Proxy", without its record."""
    assert reason(RuntimeError(PYTHON.format(raised=raised))) == told
