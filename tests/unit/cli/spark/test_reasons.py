"""What Spark wraps around an error is for who asks: people get the reason in one line."""

from __future__ import annotations

import sys

import click
import pytest
from click.testing import CliRunner
from pyspark.errors import PySparkException

from duramen.cli.main import main
from duramen.cli.spark.reasons import in_one_line
from duramen.pipelines.run.failures import QueryFailedError

WRAPPED = (
    "[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):\n"
    '  File "/tour.py", line 7, in aircraft\n    raise ValueError("no such aircraft")\n'
    "ValueError: no such aircraft\n\tat org.apache.spark.Task.run(Task.scala:1)\n" * 3
)


@pytest.mark.parametrize(
    "error", [PySparkException(WRAPPED), QueryFailedError("aircraft: ValueError: no such aircraft")]
)
@pytest.mark.parametrize("words", [[], ["-v"]])
def test_an_error_is_its_reason_and_all_of_it_is_shown_to_who_asks(error: Exception, words: list[str]) -> None:
    @click.command()
    @in_one_line
    def command() -> None:
        if isinstance(error, QueryFailedError):
            raise error from PySparkException(WRAPPED)
        raise error

    done = CliRunner().invoke(command, words)
    assert isinstance(done.exception, QueryFailedError)
    assert str(done.exception).endswith("ValueError: no such aircraft")
    assert "\n" not in str(done.exception)
    assert done.stderr == (f"{WRAPPED}\n" if words else "")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (r"no session\n== plan ==", "no session"),
        (r"calling o39.sql.\n: org.apache.spark.SparkException: x\n\tat a.b(C.scala:1)\nCaused by: x.Y: gone", "gone"),
    ],
)
def test_an_error_of_sparks_in_the_file_itself_is_its_reason(
    said: str, told: str, tmp_path: object, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = f"{tmp_path}/broken.py"
    monkeypatch.setattr("sys.path", sys.path.copy())
    with open(file, "w") as written:
        written.write(f"from pyspark.errors import PySparkException\nraise PySparkException('{said}')\n")
    assert main(["spark", "status", file]) == 2
    assert capsys.readouterr().err == f"duramen: {file}, line 2: PySparkException: {told}\n"
