"""`duramen spark reprocess`, `swap` and `rollback`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from duramen.cli.shared.connection import json_option
from duramen.cli.shared.output import note, print_json
from duramen.cli.spark.pipeline import pipeline_argument, repeated
from duramen.cli.spark.reasons import in_one_line
from duramen.cli.spark.run import session_options, tell_if_away
from duramen.pipelines.jvm.phases import Phases

if TYPE_CHECKING:
    from duramen.pipelines.model.declaration import Pipeline
    from duramen.pipelines.model.progress import BatchProgress
    from duramen.pipelines.run.reprocess import Report


@click.command(
    "reprocess",
    short_help="Build a new version of a step by replay, and compare.",
    epilog="\b\nExamples:\n  duramen spark reprocess tour.py delays --version v2\n"
    "  duramen spark reprocess tour.py delays --version v2 --swap\n",
    help="""Run a step's code as it is now from the earliest record into a new version beside the current one.

    Readers go on reading the current version. At the end the two are compared. When interrupted, the same command
    goes on where it was.
    """,
)
@pipeline_argument
@click.argument("step")
@click.option("--version", required=True, help="The name of the new version.")
@click.option("--swap", is_flag=True, help="Make it current when it is built, also beside a run: no record is missing.")
@session_options
@in_one_line
@json_option
def reprocess_command(
    pipeline: Pipeline, step: str, version: str, swap: bool, master: str | None, conf: dict[str, str], as_json: bool
) -> None:
    from duramen.pipelines.jvm.session import await_executors, borrowed
    from duramen.pipelines.run.connector import DuramenConnector
    from duramen.pipelines.run.reprocess import Reprocessing
    from duramen.pipelines.run.runner import Runner

    work = Reprocessing(pipeline, step)
    tell_if_away(pipeline.bootstrap)
    with borrowed(pipeline.name, master, conf) as spark, Phases(note) as phases:
        await_executors(spark, note)
        runner = Runner(pipeline, spark, DuramenConnector(pipeline.bootstrap), doing=phases.begin)

        def tell(progress: BatchProgress) -> None:
            note(progress.line())

        report = work.build(runner, version, tell, note)
        if not as_json:
            for line in lines(report):
                click.echo(line)
        took = None
        if swap:
            # The old version stands still meanwhile, so that this ends, however fast records come.
            took = work.swap(version, catch_up=lambda: work.catch_up(runner, version, tell, note))
    if as_json:
        click.echo(json.dumps({**report.to_json(), "swapped": swap}, default=str))
    elif took is not None:
        _switched(pipeline, step, version, took, as_json)
    else:
        click.echo(f"To make it the current version: {repeated(f'swap {step} {version}')}")


def lines(report: Report) -> list[str]:
    """The report for people."""
    found = [f"{report.step}: {report.new} against {report.old}"]
    if report.behind:
        found.append(f"  {report.behind:,} records that {report.old} contains are not in {report.new} yet")
    if report.difference is None:
        return [*found, "  a stream's versions are topics: compare what reads them"]
    diff = report.difference
    found.append(f"  rows        {diff.old_rows:,} → {diff.new_rows:,}")
    found.append(f"  equal       {diff.same:,}")
    columns = ", ".join(f"{name} {count:,}" for name, count in diff.changed_columns.items())
    found.append(f"  differing   {diff.differing:,}" + (f" ({columns})" if columns else ""))
    found.append(f"  only in {report.old}  {diff.only_old:,}")
    found.append(f"  only in {report.new}  {diff.only_new:,}")
    for version, names in ((report.old, diff.columns_only_old), (report.new, diff.columns_only_new)):
        found += [f"  columns only in {version}  {', '.join(names)}"] if names else []
    for name, sign in (("only_old", "-"), ("only_new", "+")):
        found += [f"    {sign} {_row(row)}" for row in diff.samples[name]]
    found += [f"    ~ {_row(row, changed=True)}" for row in diff.samples["differing"]]
    return found


def _row(row: dict[str, Any], *, changed: bool = False) -> str:
    """A sample in a line. changed: what is no key of it is a pair, old and new."""

    def shown(value: Any) -> str:
        return f"{value[0]} → {value[1]}" if changed and isinstance(value, list) else str(value)

    return "  ".join(f"{name}={shown(value)}" for name, value in row.items() if not name.startswith("_"))


@click.command(
    "swap",
    short_help="Make a built version the current one.",
    epilog="\b\nExample:\n  duramen spark swap tour.py delays v2\n",
    help="""Make a version the current one, at once for every reader. The old one stays for `rollback`.

    A run lets go of the step meanwhile and goes on in the new version. Where the new version lags behind a run that
    never rests, `reprocess --swap` does both in one.
    """,
)
@pipeline_argument
@click.argument("step")
@click.argument("version")
@click.option("--allow-behind", type=click.IntRange(0), default=0, metavar="RECORDS", help="Swap although it lags.")
@json_option
def swap_command(pipeline: Pipeline, step: str, version: str, allow_behind: int, as_json: bool) -> None:
    from duramen.pipelines.run.reprocess import Reprocessing

    work = Reprocessing(pipeline, step)
    work.folder.version(version)  # refuses what is no version's name
    took = work.swap(version, allow_behind)
    _switched(pipeline, step, version, took, as_json)


@click.command(
    "rollback",
    short_help="Go back to the previous version.",
    epilog="\b\nExample:\n  duramen spark rollback tour.py delays\n",
    help="Make the previous version the current one again.",
)
@pipeline_argument
@click.argument("step")
@click.option(
    "--allow-behind",
    type=click.IntRange(0),
    default=0,
    metavar="RECORDS",
    help="Of a stream: although the previous version lags, and its readers get so many records again.",
)
@json_option
def rollback_command(pipeline: Pipeline, step: str, allow_behind: int, as_json: bool) -> None:
    from duramen.pipelines.run.reprocess import Reprocessing

    version, took = Reprocessing(pipeline, step).rollback(allow_behind)
    _switched(pipeline, step, version, took, as_json)


def _switched(pipeline: Pipeline, step: str, version: str, took: float, as_json: bool) -> None:
    from duramen.pipelines.model.declaration import StreamStep

    if as_json:
        print_json({"step": step, "current": version, "seconds": round(took, 4)})
        return
    click.echo(f"{step} is {version} now ({took * 1000:.0f} ms)")
    if isinstance(pipeline.step(step), StreamStep):
        click.echo(
            "Pipelines, and groups of `duramen consume` and duramen.swaps.GroupReader, go on behind\n"
            "the recorded cut. Other consumers of the old topic are not moved: they have to\n"
            "subscribe to the new one themselves."
        )
