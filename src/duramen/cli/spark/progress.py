"""`duramen spark status` and `lag`: what the files of a pipeline and the node tell; Spark is not started."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from duramen.cli.shared.connection import json_option
from duramen.cli.shared.output import human_bytes, note, print_json, print_table, shorter
from duramen.cli.spark.pipeline import pipeline_argument, tell_if_elsewhere
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import of_source, readings
from duramen.pipelines.run.cluster import PipelineNode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from duramen.pipelines.model.declaration import Pipeline, Step, Topic
    from duramen.pipelines.model.swap_chain import Reading
    from duramen.swaps import CutOver


@click.command(
    "status",
    short_help="Show every step, its version and its last batch.",
    epilog="\b\nExample:\n  duramen spark status tour.py\n",
    help="""Show every step: which version is current, which others there are, and what the last batch did.

    The state is "ready", or what of the file a run would stumble over: code, source, table or schema changed.
    """,
)
@pipeline_argument
@json_option
def status_command(pipeline: Pipeline, as_json: bool) -> None:
    tell_if_elsewhere(pipeline)
    rows = [_status(pipeline, name) for name in pipeline.steps]
    if as_json:
        print_json(rows)
        return
    headings = ("step", "kind", "version", "others", "state", "batch", "rows", "last")
    shown = [{**row, "version": row["current"], "last": _ago(row["when"])} for row in rows]
    print_table(headings, [[row[name] for name in headings] for row in shown], right=("batch", "rows"))
    for row in rows:
        if row["late_total"] is not None:
            click.echo(_late(row))
    if pipeline.env:
        click.echo(f"environment {pipeline.env}: {shorter(str(pipeline.folder))}")


def _late(row: dict[str, Any]) -> str:
    """What the watermark of a step has dropped, and where it is, in UTC."""
    least = "at least " if row["late_uncounted"] else ""
    watermark = row["watermark"] and row["watermark"][:19].replace("T", " ")
    return f"{row['step']}: late {least}{row['late_total']:,}, watermark {watermark or 'none yet'}"


def _ago(when: str | None) -> str | None:
    """A moment as people say it."""
    if when is None:
        return None
    seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(when)).total_seconds()))
    for size, unit in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _status(pipeline: Pipeline, name: str) -> dict[str, Any]:
    from duramen.pipelines.model.declaration import TableStep
    from duramen.pipelines.model.folders import StepFolder
    from duramen.pipelines.model.function_fingerprint import at_a_glance
    from duramen.pipelines.model.late_rows import counted
    from duramen.pipelines.run.table_reader import open_table

    folder = StepFolder(pipeline.folder, name)
    step, current = pipeline.steps[name], folder.current().version
    version = folder.version(current)
    progress, about = version.progress() or {}, version.about()
    reprocessing = folder.reprocessing() or {}
    state = at_a_glance(step, about)
    # A swap that was killed behind its point has noted nothing.
    if reprocessing.get("phase") in {"building", "built"} and reprocessing["version"] != current:
        state = f"{reprocessing['version']} {reprocessing['phase']}"
    size = progress.get("size")
    found: dict[str, Any] = {
        "step": name,
        "env": pipeline.env,
        "kind": step.kind,
        "current": current,
        "others": ", ".join(other for other in folder.versions() if other != current) or None,
        "state": state,
        "batch": progress.get("batch"),
        "rows": progress.get("rows"),
        "written": None if size is None else human_bytes(size),
        "ms": progress.get("latency_ms"),
        "when": None,
        "watermark": progress.get("watermark"),
        "late_total": progress.get("late_total"),
        "late_uncounted": 0,
    }
    if (late := counted(version)) is not None:  # of a batch whose report was not heard of, too
        found |= {"late_total": late.total, "late_uncounted": late.uncounted}
    if isinstance(step, TableStep) and version.table.is_dir():
        last = open_table(pipeline, name).last()
        if last is not None:
            when = datetime.fromtimestamp(last.time_ms / 1000, UTC)
            found |= {"when": when.isoformat(" ", "seconds"), "offsets": last.offsets.to_json()}
    return found


@click.command(
    "lag",
    short_help="Show how far each step is behind its topics.",
    epilog="\b\nExamples:\n  duramen spark lag tour.py\n  duramen spark lag tour.py aircraft --json\n",
    help="""Show per step and partition the records that its topics have and the step has not worked in.

    A step that has not read a topic to its cut lags behind that, and behind the topics that took over. Of a source
    whose options choose the topics those are shown. The exit code is 1 where a topic is not there, or was made anew.
    """,
)
@pipeline_argument
@click.argument("steps", nargs=-1, metavar="[STEP]...")
@json_option
def lag_command(pipeline: Pipeline, steps: tuple[str, ...], as_json: bool) -> int:
    from duramen.pipelines.model.declaration import TableChanges
    from duramen.pipelines.model.folders import StepFolder, committed, committed_ids
    from duramen.pipelines.run import changes
    from duramen.pipelines.run.connector import DuramenConnector, chooses_topics, cuts_of

    tell_if_elsewhere(pipeline)
    node, connector = PipelineNode(pipeline.bootstrap), DuramenConnector(pipeline.bootstrap)
    rows = []
    wrong = False

    def cuts(source: Topic) -> Sequence[CutOver]:
        return cuts_of(pipeline, source, connector)

    for name in pipeline.chosen(steps):
        folder = StepFolder(pipeline.folder, name)
        version = folder.version(folder.current().version)
        for source, reading, generation in _readings(pipeline.steps[name], version.about() or {}, cuts):
            topic, checkpoint = reading.topic, version.checkpoint(generation)
            done = committed(checkpoint).joined(reading.start)
            if isinstance(source, TableChanges):
                starts, ends = Offsets(), changes.end(source)
            elif chooses_topics(source):
                starts, ends = connector.chosen(source)
            else:
                starts, ends = node.starts(topic), node.ends(topic)
            if not ends and isinstance(source, TableChanges):
                wrong = True
                note(
                    f"{name}: {source.table} of pipeline {source.pipeline.name} holds nothing yet: run that step first"
                )
            elif not ends:
                wrong = True
                told = "`duramen topic list` shows what is there"
                note(f"{name}: there is no topic {topic} at {pipeline.bootstrap}: {told}")
            known = committed_ids(checkpoint).items()
            ids = {read: each for read, each in known if "@" not in read}  # no topic's name has one: changes of a table
            others = connector.replaced(ids) if ends else []
            for other in others:
                wrong = True
                note(f"{name}: topic {other} was deleted and made anew: what the step has read are other records")
            for (read, partition), there in ends:
                end = there if reading.until is None else reading.until.end(read, partition)
                begun = 0 if read in others else done.end(read, partition)
                at = max(begun, starts.end(read, partition))
                rows.append((name, version.name, read, partition, at, end, max(0, end - at)))
    headings = ("step", "version", "topic", "partition", "at", "end", "lag")
    if as_json:
        print_json([dict(zip(headings, row, strict=True)) for row in rows])
    else:
        print_table(headings, rows, right=headings[3:])
    return 1 if wrong else 0


def _readings(
    step: Step, about: Mapping[str, Any], cuts: Callable[[Topic], Sequence[CutOver]]
) -> Iterator[tuple[Topic, Reading, int]]:
    """What a version reads and will read of each source, with the generation of its checkpoint."""
    from duramen.pipelines.model.declaration import TableChanges
    from duramen.pipelines.run import changes

    several = len(step.sources) > 1
    for source in step.sources:
        if isinstance(source, TableChanges):
            yield source, changes.reading(step.name, source, about), 0
            continue
        for reading in readings(step.name, source.name, cuts(source), of_source(about, source.name)):
            yield source, reading, 0 if several else reading.generation
