"""What a step's failure is told by, in one line, out of what Spark says of it."""

from __future__ import annotations

import pytest

from duramen.pipelines.queries import reason

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


def test_an_error_of_ours_is_told_by_its_words() -> None:
    ours = "duramen.spark.data_loss.DataLossError: offsets 0 to 3 of t-0 are lost"
    assert reason(RuntimeError(JAVA % f"Lost task\n{ours}")) == "offsets 0 to 3 of t-0 are lost"
    assert reason(RuntimeError(JAVA % "Lost task\nValueError: no number (3)")) == "ValueError: no number (3)"


def test_an_error_of_delta_is_told_with_what_lies_behind_it() -> None:
    """A full disk was told as "Generic LocalFileSystem error"."""
    arrow = "          \x1b[31m↳\x1b[0m"
    said = f"OSError: Generic LocalFileSystem error\n{arrow} Unable to copy data to file\n {arrow} No space left\n"
    told = "OSError: Generic LocalFileSystem error: Unable to copy data to file: No space left"
    assert reason(RuntimeError(f"Traceback\n{said}\tat org.apache.spark.api.python\n")) == told
    assert reason(RuntimeError("x\nCaused by: java.io.IOError: No space left")) == "java.io.IOError: No space left"
