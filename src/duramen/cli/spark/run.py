"""`duramen spark run` and `dry-run`."""

from __future__ import annotations

import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from duramen.cli.shared.connection import json_option
from duramen.cli.shared.output import note, pairs, print_field, print_json, shorter
from duramen.cli.shared.signals import ending_signals
from duramen.cli.spark.pipeline import pipeline_argument, read_again
from duramen.cli.spark.reasons import in_one_line
from duramen.pipelines.jvm.phases import Phases

if TYPE_CHECKING:
    from duramen.pipelines.model.declaration import Pipeline
    from duramen.pipelines.model.progress import BatchProgress
    from duramen.pipelines.run.runner import Watch

REACH_SECONDS = 2.0
METRICS_HOST = "127.0.0.1"
_MASTER = re.compile(
    r"local(\[(0*[1-9]\d*|\*)(\s*,\s*\d+)?\])?|local-cluster\[\s*\d+\s*,\s*\d+\s*,\s*\d+\s*\]|yarn|\w+://\S+"
)
_INTERVAL = re.compile(
    r"(interval\s+)?(\d+(\.\d+)?\s+(microsecond|millisecond|second|minute|hour|day|week)s?\b\s*)+", re.I
)
_Command = TypeVar("_Command", bound=Callable[..., Any])


def _settings(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    return pairs("--conf", given)


def taken_master(url: str) -> bool:
    """Whether Spark may know such a master; those of cluster managers of its own it finds by the part before ://."""
    return _MASTER.fullmatch(url) is not None


def taken_trigger(interval: str) -> bool:
    """Whether it is a length of time as Spark writes them."""
    return _INTERVAL.fullmatch(interval.strip()) is not None


def _master(_context: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    if given is not None and not taken_master(given):
        raise click.BadParameter(f"{given!r} is none of spark://HOST:PORT, local[4], local[*], yarn, k8s://HOST:PORT")
    return given


def _trigger(_context: click.Context, _option: click.Parameter, given: str) -> str:
    if not taken_trigger(given):
        raise click.BadParameter(f"{given!r} is no length of time, such as '10 seconds' or '1 minute'")
    return given


def session_options(command: _Command) -> _Command:
    """Adds --master and --conf; the command gets them as `master` and `conf`."""
    master = click.option(
        "--master",
        metavar="URL",
        callback=_master,
        help="Spark's master: spark://HOST:PORT, local[4]; else SPARK_MASTER, spark-defaults.conf, every core of here.",
    )
    conf = click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        callback=_settings,
        help="A setting of Spark, such as spark.executor.memory=4g; repeatable.",
    )
    return master(conf(command))


def tell_if_away(bootstrap: str) -> None:
    """A word before a long silence: a run waits for a node that is away, a minute at a time."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), REACH_SECONDS).close()
        except (OSError, ValueError):
            continue
        return
    note(f"nothing listens at {bootstrap} now (`duramen serve` starts a node); waiting for it")


def printer(as_json: bool) -> Callable[[BatchProgress], None]:
    """What is called with every batch."""

    def tell(progress: BatchProgress) -> None:
        if as_json:
            print_json(progress.to_json())
        else:
            click.echo(progress.line())

    return tell


@contextmanager
def _metrics(pipeline: Pipeline, host: str | None, port: int | None) -> Iterator[Watch | None]:
    """Serves the run's numbers meanwhile, and says where; None without a port."""
    if port is None:
        if host is not None:
            raise click.UsageError("--metrics-host needs --metrics-port.")
        yield None
        return
    host = host or METRICS_HOST
    from duramen.pipelines.run.metrics import PipelineMetrics, served

    metrics = PipelineMetrics(pipeline.name, pipeline.env)
    with served(metrics, host, port) as taken:
        note(f"metrics at http://{f'[{host}]' if ':' in host else host}:{taken}/metrics")
        yield metrics


@click.command(
    "run",
    short_help="Run a pipeline's steps.",
    epilog="\b\nExamples:\n  duramen spark run tour.py\n  duramen spark run tour.py aircraft --once\n",
    help="""Run the steps of a pipeline (all, or those named) until Ctrl-C, one line a batch.

    A batch is in its table once, however often it is interrupted; the same command goes on where it was.
    """,
)
@pipeline_argument
@click.argument("steps", nargs=-1, metavar="[STEP]...")
@click.option("--once", is_flag=True, help="Work off what is there, then end.")
@click.option(
    "--trigger",
    default="1 second",
    show_default=True,
    metavar="TIME",
    callback=_trigger,
    help="How long a batch collects, at least.",
)
@click.option("--accept-change", is_flag=True, help="Go on with a table that other logic began.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Serve the run's numbers for Prometheus; 0 takes a free port.",
)
@click.option("--metrics-host", metavar="HOST", help=f"The address for that, instead of {METRICS_HOST}.")
@session_options
@in_one_line
@json_option
def run_command(
    pipeline: Pipeline,
    steps: tuple[str, ...],
    once: bool,
    trigger: str,
    accept_change: bool,
    metrics_port: int | None,
    metrics_host: str | None,
    master: str | None,
    conf: dict[str, str],
    as_json: bool,
) -> None:
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    from duramen.pipelines.jvm.session import borrowed
    from duramen.pipelines.run.job import work
    from duramen.pipelines.run.runner import QueryFailedError

    names = pipeline.chosen(steps)
    tell_if_away(pipeline.bootstrap)
    stop = threading.Event()

    def asked(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    try:
        with (
            _metrics(pipeline, metrics_host, metrics_port) as watch,
            borrowed(pipeline.name, master, conf) as spark,
            Phases(note) as phases,
        ):
            before = [(number, signal.signal(number, asked)) for number in (signal.SIGINT, *ending_signals())]
            try:
                work(
                    pipeline,
                    names,
                    spark,
                    printer(as_json),
                    note,
                    once=once,
                    trigger=trigger,
                    accept=accept_change,
                    until=stop.is_set,
                    reload=read_again,
                    doing=phases.begin,
                    watch=watch,
                )
            finally:
                for number, handler in before:
                    signal.signal(number, handler)
    except (Py4JError, PySparkException, QueryFailedError, ConnectionError):
        # Who ends a whole group of processes ends Spark's JVM too, which then fails what is asked of it.
        if not stop.is_set():
            raise


@click.command(
    "dry-run",
    short_help="Analyse a pipeline without running it.",
    epilog="\b\nExample:\n  duramen spark dry-run tour.py\n",
    help="Plan every step: its functions are called on its columns, nothing is read or written.",
)
@pipeline_argument
@click.argument("steps", nargs=-1, metavar="[STEP]...")
@session_options
@in_one_line
@json_option
def dry_run_command(
    pipeline: Pipeline, steps: tuple[str, ...], master: str | None, conf: dict[str, str], as_json: bool
) -> None:
    from duramen.pipelines.jvm.session import borrowed
    from duramen.pipelines.model.declaration import StreamStep
    from duramen.pipelines.run.connector import DuramenConnector
    from duramen.pipelines.run.dry_runner import DryRunner

    with borrowed(pipeline.name, master, conf) as spark, Phases(note) as phases:
        runner = DryRunner(pipeline, spark, DuramenConnector(pipeline.bootstrap, REACH_SECONDS))
        found = []
        for name in pipeline.chosen(steps):
            phases.begin(f"planning {name}")
            plan = runner.sound_plan(name)
            to = plan.step.to if isinstance(plan.step, StreamStep) else str(plan.version.table)
            columns = [f"{field.name} {field.dataType.simpleString()}" for field in plan.rows.schema]
            tables = [f"{each.name} (lookup)" for each in plan.step.lookups]
            reads = ", ".join([*(reading.topic for reading in plan.readings), *tables])
            listed = ", ".join(column for column in columns if not column.startswith("_"))
            found.append((name, plan.step.kind, plan.version.name, reads, to, listed))
    headings = ("step", "kind", "version", "reads", "writes", "columns")
    if as_json:
        print_json([dict(zip(headings, row, strict=True)) for row in found])
        return
    for number, (name, kind, version, reads, to, shown) in enumerate(found):
        click.echo(("\n" if number else "") + f"{name}: {kind} {version}")
        for what, said in (("reads", reads), ("writes", shorter(to)), ("columns", shown)):
            print_field(what, said)
