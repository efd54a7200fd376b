"""Plans the steps of a pipeline as Spark queries and starts them: what each reads, from where, and what takes its rows.

Each step is one query with one checkpoint. A table's batch is folded into its store by the driver; Spark gives a batch
that was interrupted again under the same number, and the store knows the numbers it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from duramen.errors import ConfigError
from duramen.pipelines.jvm.session import is_connect
from duramen.pipelines.model.declaration import (
    EffectStep,
    Lookup,
    Pipeline,
    Step,
    StreamStep,
    TableChanges,
    TableStep,
    Topic,
)
from duramen.pipelines.model.folders import StepFolder, VersionFolder, batches, query_id
from duramen.pipelines.model.function_fingerprint import form_of, made_as, other_logic, other_sources
from duramen.pipelines.model.late_rows import count, may_drop
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import BatchProgress, progress_of
from duramen.pipelines.model.swap_chain import Reading, only_reading, readings
from duramen.pipelines.run import changes, lookups
from duramen.pipelines.run.columns import (
    LETTER,
    TWO_CAUSES,
    apart,
    carried,
    check_order,
    decode,
    encode,
    is_of_two_causes,
    lacks_others,
    together,
    traced,
)
from duramen.pipelines.run.connector import Connector, cuts_of
from duramen.pipelines.run.dead_letters import Addressee, addressed, corrupt, judged, together_with
from duramen.pipelines.run.failures import Mark, QueryFailedError, nowhere, reason
from duramen.pipelines.run.inputs import frame_of
from duramen.pipelines.run.output_modes import check_mode, mode_of
from duramen.pipelines.run.query_report import QueryReport
from duramen.pipelines.run.server_batches import ServerBatches, Take
from duramen.pipelines.run.state_metrics import dropped_now
from duramen.pipelines.run.step_plan import StepPlan, bounded, generation_of, stops
from duramen.pipelines.run.stores import STORES
from duramen.pipelines.run.table_batches import TableBatches
from duramen.pipelines.tables.changelog import TRACE
from duramen.pipelines.tables.store import TableStore
from duramen.swaps import CutOver

_HEADERS = {"includeHeaders": "true"}


def uncounted(_batch: int) -> None:
    """Spark Connect does not tell what a batch under way has dropped: its report does, after the commit."""


class Running:
    """A started query and what it has told so far."""

    def __init__(self, plan: StepPlan, start: Callable[[], StreamingQuery], said: QueryReport) -> None:
        self.plan = plan
        self.said = said
        self.start = start
        self.query = start()
        self.restarts = 0
        self.told = -1

    def restart(self) -> None:
        """Start the query once more, from its checkpoint."""
        self.query = self.start()
        self.told = -1

    def news(self) -> Iterator[BatchProgress]:
        """Every batch that ended since the last call."""
        step, reads = self.plan.step, self.plan.readings
        pairs = zip(step.sources, reads, strict=True)
        twice = {reading.topic for source, reading in pairs if source.corrupt == "quarantine"}
        reports = self.query.recentProgress
        self.said.fetch()
        for found in reports:
            progress = progress_of(step.name, self.plan.version.name, found, self.said.written, twice)
            if progress.batch > self.told and progress.ended:
                self.told = progress.batch
                self.restarts = 0
                if may_drop(found):
                    progress = self._counted(progress)
                self.plan.version.note_progress(progress.to_json())
                yield progress
        for told in (self.said.written, self.said.late):
            for batch in [batch for batch in told if batch <= self.told]:
                del told[batch]

    def _counted(self, progress: BatchProgress) -> BatchProgress:
        """With the late rows of all batches. Where Spark writes the rows they are noted here, after its commit."""
        found = self.said.late.get(progress.batch) or count(
            self.plan.version, self.plan.generation, progress.batch, progress.late or 0
        )
        return progress._replace(late_total=found.total, late_uncounted=found.uncounted)

    def troubles(self) -> Iterator[str]:
        """What went wrong beside the batches since the last call."""
        while self.said.troubles:
            yield self.said.troubles.popleft()


class Queries:
    """The queries of a pipeline on a session.

    mark: called with the name of each point at which a crash is interesting. doing: with what a person waits for
    now, an empty text once that is over.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        spark: SparkSession,
        connector: Connector,
        mark: Mark = nowhere,
        doing: Callable[[str], None] = nowhere,
    ) -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.connector = connector
        self.mark = mark
        self.doing = doing

    def folder(self, step: str) -> StepFolder:
        return StepFolder(self.pipeline.folder, step)

    def plan(self, name: str, version: str | None = None, upto: Offsets | None = None) -> StepPlan:
        """What would run. Analyses the function; starts nothing and writes nothing. upto: where its reading stops."""
        step = self.pipeline.step(name)
        if isinstance(step, StreamStep) and not step.aggregate and is_connect(self.spark):
            raise ConfigError(
                f"{name} is a stream, and would go on unseen on the server when a client of Spark Connect dies, also "
                "through a swap: run it on a session of its own (`duramen spark run`, spark-submit)"
            )
        folder = self.folder(name)
        place = folder.version(version or folder.current().version)
        reads = self.readings(step, place)
        to = Addressee(f"{self.pipeline.name}.{step.name}", place.name)
        records = [self._records(step, *each) for each in zip(step.sources, reads, stops(reads, upto), strict=True)]
        lookup = self._lookup_at(place.checkpoint(generation_of(reads)))
        several = len(step.sources) > 1
        try:
            rows = self._rows(step, self._frames(step, records, lookup, joins=several), to)
        except AnalysisException as error:
            if several or not lacks_others(error):
                raise
            rows = self._rows(
                step, self._frames(step, records, lookup, joins=True), to
            )  # it joins its source with itself
        if step.quarantines:
            pairs = zip(records, step.sources, strict=True)
            rows = together_with(rows, [corrupt(each, of, to) for each, of in pairs if of.corrupt == "quarantine"])
        if isinstance(step, TableStep):
            try:
                STORES[step.store].check(step.shape, self._own_schema(rows))
            except ConfigError as error:
                raise ConfigError(f"{step.name}: {error}") from None
            check_order(step, rows)
        check_mode(step, rows)
        return StepPlan(step, place, reads, rows)

    def _lookup_at(self, checkpoint: Path) -> Callable[[Lookup], DataFrame]:
        """What gives the rows of a table as they are at each batch of the query of this checkpoint."""
        return lambda each: lookups.frame(self.spark, each, self.looked_up(each), checkpoint)

    def looked_up(self, lookup: Lookup) -> StructType:
        """The columns of a table that is looked up, or whose changes are read. ConfigError where it has never run, and
        over Spark Connect."""
        if is_connect(self.spark):
            raise ConfigError(
                f"{lookup.table} cannot be looked up over Spark Connect, nor its changes be read: run with a "
                "session of your own"
            )
        found = lookups.columns(lookup)
        if found is None:
            raise ConfigError(
                f"{lookup.table} of pipeline {lookup.pipeline.name} is looked up, and holds nothing yet in "
                f"{lookup.pipeline.folder}: run that step first"
            )
        return found

    def _records(self, step: Step, source: Topic, reading: Reading, stop: Offsets | None) -> DataFrame:
        """The records of one of the step's sources."""
        if isinstance(source, TableChanges):
            columns = self.looked_up(Lookup(source.pipeline, source.table))
            return changes.frame(self.spark, source, columns, reading, stop)
        options = bounded(step, source)
        if step.quarantines:  # a dead letter has all of its record
            options = {**{name: each for name, each in options.items() if name.lower() != "includeheaders"}, **_HEADERS}
        topic = replace(source, name=reading.topic, options=options)
        return self.connector.read(self.spark, topic, reading.start, stop, reading.topic_id)

    def _frames(
        self, step: Step, records: Sequence[DataFrame], lookup: Callable[[Lookup], DataFrame], *, joins: bool
    ) -> list[DataFrame]:
        """What the step's function gets; of an effect without the tables that are looked up, which its batches read.

        joins: their `_cause` has a place for the records of other sides.
        """
        whole = step.expectations.quarantines
        pairs = zip(records, step.sources, strict=True)
        topics = {
            source.name: changes.decoded(each, joins=joins)
            if isinstance(source, TableChanges)
            else decode(each, source, joins=joins, whole=whole)
            for each, source in pairs
        }
        of_effect = isinstance(step, EffectStep)
        inputs = [each for each in step.inputs if not (of_effect and isinstance(each, Lookup))]
        return [frame_of(each, topics, lookup) for each in inputs]

    def _rows(self, step: Step, frames: Sequence[DataFrame], to: Addressee) -> DataFrame:
        """What the step's function makes of its sources, as it is written; of an effect the sources."""
        if isinstance(step, EffectStep):
            return together(frames)
        try:
            given = step.function(*frames)
        except AnalysisException as error:
            if is_of_two_causes(error):
                raise ConfigError(TWO_CAUSES.format(step=step.name)) from error
            raise
        if not isinstance(given, DataFrame):
            raise ConfigError(f"{step.name} gives {type(given).__name__}, not a DataFrame")
        given = judged(given, step, to)
        if isinstance(step, StreamStep):
            topics = [source for source in step.sources if not isinstance(source, TableChanges)]
            beside = [name for source in topics for name in carried(source)]
            return encode(given, step.name, step.key, beside)
        return traced(given, step.name)

    def sound_plan(self, name: str) -> StepPlan:
        """The plan. QueryFailedError with the reason in one line where Spark finds the function wrong."""
        try:
            return self.plan(name)
        except PySparkException as failure:
            raise QueryFailedError(f"{name}: {reason(failure)}") from failure

    def cuts(self, topic: Topic) -> Sequence[CutOver]:
        """The swaps of a source, as they are now."""
        return cuts_of(self.pipeline, topic, self.connector)

    def readings(self, step: Step, version: VersionFolder) -> tuple[Reading, ...]:
        """Which topic a version of the step reads now of each source, from where when its checkpoint is new, and up to
        which cut. ConfigError where one of several sources was swapped since the version began."""
        about = version.about() or {}
        if len(step.sources) == 1:
            (source,) = step.sources
            if isinstance(source, TableChanges):
                return (changes.reading(step.name, source, about),)
            return (readings(step.name, source.name, self.cuts(source), about)[0],)
        return tuple(
            changes.reading(step.name, each, about)
            if isinstance(each, TableChanges)
            else only_reading(step.name, each.name, self.cuts(each), about)
            for each in step.sources
        )

    def _own_schema(self, rows: DataFrame) -> pa.Schema:
        found = to_arrow_schema(rows.schema, timezone="UTC")
        return pa.schema([field for field in found if field.name not in (*TRACE.names, LETTER)])

    def store(self, plan: StepPlan) -> TableStore:
        """The table's store; made when it is not there yet."""
        step = cast(TableStep, plan.step)
        return STORES[step.store](plan.version.table, step.shape, self._own_schema(plan.rows))

    def start(self, plan: StepPlan, available_now: bool, trigger: str, accept: bool = False) -> Running:
        """Start the query of a plan. ConfigError when another logic made what is there, QueryFailedError where a batch
        of it lies behind the cut of its topic."""
        plan.check_cut()
        self._check_sink(plan)
        about = self._described(plan, accept)
        if not accept or mode_of(plan.step) == "update":
            plan.check_state(about["first_generation"])
        if plan.version.about() is None:  # by it a table is opened
            plan.version.describe(about)
        said = QueryReport(plan.version.server_report if is_connect(self.spark) else None)
        writer = self._writer(plan, said)
        # Only now, for a table of other columns is refused: the code that made it goes on with it.
        if about != plan.version.about():
            plan.version.describe(about)
        writer = writer.queryName(self.pipeline.in_env(f"{self.pipeline.name}.{plan.step.name}.{plan.version.name}"))
        writer = writer.option("checkpointLocation", str(plan.checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)
        return Running(plan, writer.start, said)

    def _sink(self, plan: StepPlan) -> str:
        """The id under which a stream writes."""
        return self.pipeline.in_env(plan.version.sink(self.pipeline.name, plan.generation))

    def _check_sink(self, plan: StepPlan) -> None:
        """ConfigError where a stream has lost its checkpoint: what its topic holds would be written there again. Where
        an aggregate's was put back, changes of its sums would stay away; Spark's own sink finds that out by itself."""
        is_there = (plan.checkpoint / "metadata").exists()
        if not isinstance(plan.step, StreamStep) or (is_there and not plan.step.aggregate):
            return
        name, version = plan.step.name, plan.version
        last = self.connector.written(self._sink(plan))
        if last is None:
            return
        if is_there and (begun := batches(plan.checkpoint)) <= last:
            raise ConfigError(
                f"{name} {version.name} of pipeline {self.pipeline.name} has written {last + 1} batches to its topic, "
                f"and {plan.checkpoint} has {begun}: it was put back. Put back the newer one, or build the stream "
                "again with `duramen spark reprocess`"
            )
        if not is_there:
            beside = self.output_topic(plan) != plan.step.to
            otherwise = "take another --version" if beside else "give the function, or the pipeline, another name"
            raise ConfigError(
                f"{name} {version.name} of pipeline {self.pipeline.name} has written {last + 1} batches to its topic, "
                f"and there is no {plan.checkpoint}, which tells how far: all would be written again. Put back "
                f"{version.path}; or {otherwise}, and it starts from the beginning"
            )

    def _described(self, plan: StepPlan, accept: bool) -> dict[str, Any]:
        """What the version's folder is to tell. ConfigError when another logic made what is there."""
        about = plan.version.about()
        other, of_others = other_logic(plan.step, about), other_sources(plan.step, about)
        if other is not None and (of_others or not accept):
            changed, goes_on = self._other_columns(plan)
            goes_on &= not (changed and mode_of(plan.step) == "update")  # Spark keeps its sums as they were begun
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} {other}{f' ({changed})' if changed else ''}: "
                "`duramen spark reprocess` builds it again beside the old one"
                + ("; --accept-change goes on with mixed rows" if goes_on and not of_others else "")
            )
        form, made = form_of(plan.step), made_as(plan.step, about)
        if made != form:
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} was made with {_shown(made)}, not {_shown(form)}: "
                "`duramen spark reprocess` builds it again beside the old one"
            )
        first = (about or {}).get("first_generation", plan.generation)
        to = self.output_topic(plan) if isinstance(plan.step, StreamStep) else None
        return {
            **plan.made_of,
            "generation": plan.generation,
            "first_generation": first,
            "to": to,
            "table": form,
        }

    def _other_columns(self, plan: StepPlan) -> tuple[str, bool]:
        """How the columns of the rows differ from those of the table that is there; whether it goes on with them."""
        if not isinstance(plan.step, TableStep) or not plan.version.table.is_dir():
            return "", True
        if made_as(plan.step, plan.version.about()) != form_of(plan.step):
            return "", True  # it is another kind of table, which is refused
        store = STORES[plan.step.store]
        return store.other_columns(plan.version.table, plan.step.shape, self._own_schema(plan.rows))

    def output_topic(self, plan: StepPlan) -> str:
        """Where this version of a stream writes: the first into the topic it names, others beside it."""
        step = cast(StreamStep, plan.step)
        about = plan.version.about() or {}
        others = [name for name in self.folder(step.name).versions() if name != plan.version.name]
        return cast(str, about.get("to")) or (f"{step.to}.{plan.version.name}" if others else step.to)

    def _writer(self, plan: StepPlan, said: QueryReport) -> DataStreamWriter:
        step = plan.step
        if isinstance(step, StreamStep):
            sink = self._sink(plan)
            to = self.output_topic(plan)
            if to == step.to:
                self.connector.create(to, plan.first_topic, compacted=step.aggregate)
            else:
                # A version beside the first has its partitions, so that a key goes on where it was, and its settings.
                self.connector.create(to, step.to, settings=True)
            dead = self._dead_letters(plan)
            if dead is not None:
                plan = plan._replace(rows=addressed(plan.rows, to, dead))
            topic = to if dead is None else None
            if step.aggregate:
                return self._changes(plan, topic, sink, said)
            return self.connector.write(plan.rows, topic, sink)
        if isinstance(step, TableStep):
            dead, connector, late = self._dead_letters(plan), self.connector, self._late_of(plan, said)

            def bury(letters: DataFrame, sink: str, batch: int) -> None:
                connector.write_batch(letters, dead, sink, batch)

            table = TableBatches(self.pipeline, plan, self.store(plan), said, self.mark, late, bury if dead else None)
            return self._each_batch(plan, said, table.apply).outputMode(mode_of(step))
        before, function = plan.batches_before, step.function
        lookup = self._lookup_at(plan.checkpoint)
        tables = {at: lookup(each) for at, each in enumerate(step.inputs) if isinstance(each, Lookup)}
        inputs = len(step.inputs)
        count_late = self._late_of(plan, said)

        def effect(rows: DataFrame, batch: int) -> None:
            parts = iter(apart(rows, inputs - len(tables)))
            given = [tables[at] if at in tables else next(parts) for at in range(inputs)]
            function(*given, before + batch)
            count_late(batch)

        return self._each_batch(plan, said, effect)

    def _dead_letters(self, plan: StepPlan) -> str | None:
        """The topic for them, which is there then; None of a step that has none."""
        if not plan.step.quarantines:
            return None
        self.connector.create(self.pipeline.dead_letters, plan.first_topic)
        return self.pipeline.dead_letters

    def _each_batch(self, plan: StepPlan, said: QueryReport, take: Take) -> DataStreamWriter:
        """What hands each batch to `take`, here, or in a session of Spark Connect on its server, which gets a copy."""
        if is_connect(self.spark):
            take = ServerBatches(take, plan.version, said, plan.version.name_run())
        return plan.rows.writeStream.foreachBatch(take)

    def _changes(self, plan: StepPlan, to: str | None, sink: str, said: QueryReport) -> DataStreamWriter:
        """What writes the changes of an aggregate. Spark refuses output mode update to streaming sinks in Python, so
        each batch is a write of its own, under the number that Spark gives it again when it is repeated."""
        connector, mark, count_late = self.connector, self.mark, self._late_of(plan, said)

        def change(rows: DataFrame, batch: int) -> None:
            mark("batch planned")
            connector.write_batch(rows, to, sink, batch)
            count_late(batch)
            mark("batch applied")

        return self._each_batch(plan, said, change).outputMode(mode_of(plan.step))

    def _late_of(self, plan: StepPlan, said: QueryReport) -> Callable[[int], None]:
        """What notes the rows of a batch that the watermark has dropped, before Spark commits it: a repeated one counts
        once."""

        if is_connect(self.spark):
            return uncounted

        def count_late(batch: int) -> None:
            if not (plan.checkpoint / "state").is_dir():
                return
            if (rows := dropped_now(self.spark, query_id(plan.checkpoint))) is not None:
                said.late[batch] = count(plan.version, plan.generation, batch, rows)

        return count_late

    def move_on(self, plan: StepPlan) -> bool:
        """Note that the step goes on in the next topic; False where this one is not read to its cut.

        For a plan that knows the cut, and while its query stands still: a batch that goes on would not be seen.
        QueryFailedError where one lies behind the cut.
        """
        plan.check_cut()
        if not plan.is_read():
            return False
        about = plan.version.about() or {}
        plan.version.describe({**about, "generation": plan.generation + 1})
        return True


def _shown(form: Mapping[str, Any] | None) -> str:
    """How a table is made, as an error tells it."""
    return (
        "no table and no aggregate" if form is None else ", ".join(f"{name}={value!r}" for name, value in form.items())
    )
