"""Plans the steps of a pipeline as Spark queries and starts them: what each reads, from where, and what takes its rows.

Each step is one query with one checkpoint. A table's batch is folded into its store by the driver; Spark gives a batch
that was interrupted again under the same number, and the store knows the numbers it has.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from duramen.errors import ConfigError, DeadlineError, DuramenError, KafkaError, NetworkError
from duramen.pipelines.model.declaration import EffectStep, Pipeline, Step, StreamStep, TableStep, Topic
from duramen.pipelines.model.folders import (
    StepFolder,
    VersionFolder,
    batch_end,
    batch_ids,
    batches,
    beginning,
    committed,
    planned,
    query_id,
    unfinished,
)
from duramen.pipelines.model.function_fingerprint import form_of, made_as, noted, other_logic
from duramen.pipelines.model.late_rows import LateRows, count, may_drop
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import BatchProgress, Written, progress_of
from duramen.pipelines.model.swap_chain import Reading, readings
from duramen.pipelines.run.cluster import UnreachableError
from duramen.pipelines.run.columns import carried, decode, encode, traced
from duramen.pipelines.run.connector import Connector, cuts_of
from duramen.pipelines.run.state_metrics import dropped_now
from duramen.pipelines.run.stores import STORES
from duramen.pipelines.tables.changelog import TRACE, cause_of, refuse_held_back
from duramen.pipelines.tables.store import TableCommit, TableStore
from duramen.swaps import CutOver

CAUSES_MAX = 16
RESTART_SECONDS = (0.5, 1, 2, 4, 8)
BATCH_BYTES = "64m"
"""Of stored records, of a batch whose rows the driver takes together: what is there at first may be years."""
Say = Callable[[str], None]
Mark = Callable[[str], None]
_T = TypeVar("_T")
_OURS = ("duramen.", "pyspark.errors.")
"""Errors that speak for themselves, without their names."""
_RAISED = re.compile(r"[A-Za-z_][\w.]*: \S")
_DEEPER, _COLOURS = "↳ ", re.compile("\x1b\\[[0-9;]*m")
"""How Delta's library begins the lines of what lies behind an error, and what it puts around that."""


_TOO_LARGE = (
    ": --conf spark.driver.maxResultSize=4g --conf spark.driver.memory=6g let this batch through, and "
    "maxBytesPerTrigger in the options of its Topic keeps later ones smaller"
)


class QueryFailedError(DuramenError):
    """A step's query ended with an error, also after it was started again. Its cause tells all of it."""


class StepPlan(NamedTuple):
    """One step as it will run: its input, and its rows before they are written."""

    step: Step
    version: VersionFolder
    reading: Reading
    rows: DataFrame

    @property
    def checkpoint(self) -> Path:
        """Spark's, of the topic that is read."""
        return self.version.checkpoint(self.reading.generation)

    @property
    def batches_before(self) -> int:
        """How many batches were of the topics before a cut: Spark counts those of each checkpoint from 0."""
        first: int = (self.version.about() or {}).get("first_generation", self.reading.generation)
        generations = range(first, self.reading.generation)
        return sum(batches(self.version.checkpoint(generation)) for generation in generations)


class QueryReport:
    """What a query's batches tell the run. written, late: of each batch; troubles: what does not end it."""

    def __init__(self) -> None:
        self.written: dict[int, Written] = {}
        self.late: dict[int, LateRows] = {}
        self.troubles: deque[str] = deque()
        self._once = False

    def once(self, trouble: str | None) -> None:
        """A trouble that a run tells the first time."""
        if trouble is not None and not self._once:
            self._once = True
            self.troubles.append(trouble)


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
        for found in self.query.recentProgress:
            progress = progress_of(self.plan.step.name, self.plan.version.name, found, self.said.written)
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
            self.plan.version, self.plan.reading.generation, progress.batch, progress.late or 0
        )
        return progress._replace(late_total=found.total, late_uncounted=found.uncounted)

    def troubles(self) -> Iterator[str]:
        """What went wrong beside the batches since the last call."""
        while self.said.troubles:
            yield self.said.troubles.popleft()


def nowhere(_point: str) -> None:
    """The mark that does nothing; tests pass one that fails at a named point."""


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
        folder = self.folder(name)
        place = folder.version(version or folder.current().version)
        reading = self.reading(step, place)
        topic = replace(step.source, name=reading.topic, options=_bounded(step))
        records = self.connector.read(self.spark, topic, reading.start, reading.end(upto), reading.topic_id)
        rows = decode(records, step.source)
        if not isinstance(step, EffectStep):
            given = step.function(rows)
            if not isinstance(given, DataFrame):
                raise ConfigError(f"{name} gives {type(given).__name__}, not a DataFrame")
            if isinstance(step, StreamStep):
                rows = encode(given, name, step.key, carried(step.source))
            else:
                rows = traced(given, name)
        if isinstance(step, TableStep):
            STORES[step.store].check(step.shape, self._own_schema(rows))
        return StepPlan(step, place, reading, rows)

    def sound_plan(self, name: str) -> StepPlan:
        """The plan. QueryFailedError with the reason in one line where Spark finds the function wrong."""
        try:
            return self.plan(name)
        except PySparkException as failure:
            raise QueryFailedError(f"{name}: {reason(failure)}") from failure

    def cuts(self, topic: Topic) -> Sequence[CutOver]:
        """The swaps of a source, as they are now."""
        return cuts_of(self.pipeline, topic, self.connector)

    def reading(self, step: Step, version: VersionFolder) -> Reading:
        """Which topic a version of the step reads now, from where when its checkpoint is new, and up to which cut."""
        return readings(step.name, step.source.name, self.cuts(step.source), version.about() or {})[0]

    def _own_schema(self, rows: DataFrame) -> pa.Schema:
        found = to_arrow_schema(rows.schema, timezone="UTC")
        return pa.schema([field for field in found if field.name not in TRACE.names])

    def store(self, plan: StepPlan) -> TableStore:
        """The table's store; made when it is not there yet."""
        step = cast(TableStep, plan.step)
        return STORES[step.store](plan.version.table, step.shape, self._own_schema(plan.rows))

    def start(self, plan: StepPlan, available_now: bool, trigger: str, accept: bool = False) -> Running:
        """Start the query of a plan. ConfigError when another logic made what is there, QueryFailedError where a batch
        of it lies behind the cut of its topic."""
        _check_cut(plan)
        self._check_sink(plan)
        about = self._described(plan, accept)
        if not accept:
            _check_state(plan, about["first_generation"])
        if plan.version.about() is None:  # by it a table is opened
            plan.version.describe(about)
        said = QueryReport()
        writer = self._writer(plan, said)
        # Only now, for a table of other columns is refused: the code that made it goes on with it.
        if about != plan.version.about():
            plan.version.describe(about)
        writer = writer.queryName(f"{self.pipeline.name}.{plan.step.name}.{plan.version.name}")
        writer = writer.option("checkpointLocation", str(plan.checkpoint))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)
        return Running(plan, writer.start, said)

    def _check_sink(self, plan: StepPlan) -> None:
        """ConfigError where a stream has lost its checkpoint: what its topic holds would be written there again."""
        if not isinstance(plan.step, StreamStep) or (plan.checkpoint / "metadata").exists():
            return
        name, version = plan.step.name, plan.version
        last = self.connector.written(version.sink(self.pipeline.name, plan.reading.generation))
        if last is not None:
            beside = self.output_topic(plan) != plan.step.to
            otherwise = "take another --version" if beside else "give the function, or the pipeline, another name"
            raise ConfigError(
                f"{name} {version.name} of pipeline {self.pipeline.name} has written {last + 1} batches to its topic, "
                f"and there is no {plan.checkpoint}, which tells how far: all would be written again. Put back "
                f"{version.path}; or {otherwise}, and it begins anew"
            )

    def _described(self, plan: StepPlan, accept: bool) -> dict[str, Any]:
        """What the version's folder is to tell. ConfigError when another logic made what is there."""
        about = plan.version.about()
        if (other := other_logic(plan.step, about)) is not None and not accept:
            changed, goes_on = self._other_columns(plan)
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} {other}{f' ({changed})' if changed else ''}: "
                "`duramen spark reprocess` builds it anew beside the old one"
                + ("; --accept-change goes on with mixed rows" if goes_on else "")
            )
        form, made = form_of(plan.step), made_as(plan.step, about)
        if made != form:
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} was made with {_shown(made)}, not {_shown(form)}: "
                "`duramen spark reprocess` builds it anew beside the old one"
            )
        first = (about or {}).get("first_generation", plan.reading.generation)
        to = self.output_topic(plan) if isinstance(plan.step, StreamStep) else None
        return {
            **noted(plan.step),
            "generation": plan.reading.generation,
            "first_generation": first,
            "reads": plan.reading.topic,
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
            sink = plan.version.sink(self.pipeline.name, plan.reading.generation)
            to = self.output_topic(plan)
            if to == step.to:
                return self.connector.write(plan.rows, to, sink, plan.reading.topic, settings=False)
            # A version beside the first has its partitions, so that a key goes on where it was, and its settings.
            return self.connector.write(plan.rows, to, sink, step.to, settings=True)
        if isinstance(step, TableStep):
            mode = "update" if step.aggregate else "append"
            return plan.rows.writeStream.outputMode(mode).foreachBatch(self._fold(plan, said))
        effect = cast(Callable[[DataFrame, int], None], step.function)
        before = plan.batches_before

        def done(rows: DataFrame, batch: int) -> None:
            effect(rows, before + batch)
            self._count_late(plan, batch, said)

        return plan.rows.writeStream.foreachBatch(done)

    def _count_late(self, plan: StepPlan, batch: int, said: QueryReport) -> None:
        """Note what the watermark has dropped of a batch, before Spark commits it: a repeated one counts once."""
        if not (plan.checkpoint / "state").is_dir():
            return
        if (rows := dropped_now(self.spark, query_id(plan.checkpoint))) is not None:
            said.late[batch] = count(plan.version, plan.reading.generation, batch, rows)

    def _fold(self, plan: StepPlan, said: QueryReport) -> Callable[[DataFrame, int], None]:
        """What the driver does with each batch of a table."""
        store = self.store(plan)
        checkpoint = plan.checkpoint
        aggregate = cast(TableStep, plan.step).aggregate

        def fold(rows: DataFrame, batch: int) -> None:
            self.mark("batch planned")
            sink = f"{self.pipeline.name}.{plan.step.name}.{plan.version.name}.{query_id(checkpoint)}"
            last = store.last()
            if aggregate and batch == 0 and last is not None and last.sink != sink:
                raise ConfigError(
                    f"{plan.step.name} {plan.version.name} sums up, and its checkpoint is gone, or before a swap: "
                    "build it anew with `duramen spark reprocess`"
                )
            self._refuse_gap(plan, last, batch)
            # Also when the table has it: what Spark keeps, sums or keys it has seen, advances only by computing.
            found = rows.toArrow()
            self.mark("batch computed")
            if not aggregate:
                _refuse_anew(plan, batch, last)
                refuse_held_back(found, batch_end(checkpoint, batch - 1) if batch else Offsets())
            commit = store.apply(found, sink, batch, batch_end(checkpoint, batch))
            said.once(_deletions_without_version(plan, found))
            if commit is None:
                self._refuse_other(plan, store.last(), batch)
            said.written[batch] = Written(found.num_rows, found.nbytes)
            self._count_late(plan, batch, said)
            self.mark("batch applied")
            if commit is not None:
                self._keep_up(plan, store, commit, said)

        return fold

    def _refuse_gap(self, plan: StepPlan, last: TableCommit | None, batch: int) -> None:
        """ConfigError when the table lacks records that the batches before this one had, or that lie before the first
        one of a new checkpoint: their rows would stay away."""
        before = batch_end(plan.checkpoint, batch - 1) if batch else Offsets()
        if missing := (last.offsets if last else Offsets()).behind(before):
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} lacks {missing} records that its checkpoint has behind it: its "
                f"folder was deleted or put back. Put back {plan.version.table} and {plan.checkpoint} of one moment, "
                "or build it anew with `duramen spark reprocess`"
            )
        if batch or last is None or plan.reading.start or _goes_on(plan.step.source):
            return
        begun = [(place, at) for place, at in beginning(plan.checkpoint) if last.offsets.of(place[0])]
        if missing := last.offsets.behind(Offsets(dict(begun))):
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} lacks {missing} records: its checkpoint is new, and begins "
                "behind what the table has, where the topic begins by now or startingOffsets says. Build it anew with "
                '`duramen spark reprocess`; or options={"failOnDataLoss": "false"} of its Topic goes on without them'
            )

    def _refuse_other(self, plan: StepPlan, last: TableCommit | None, batch: int) -> None:
        """ConfigError when a batch that the table has, by its number, is another one: its rows would stay away."""
        if missing := (last.offsets if last else Offsets()).behind(batch_end(plan.checkpoint, batch)):
            guarded = cast(TableStep, plan.step).shape.guarded
            other = "remove the checkpoint, for the table passes over what it has; or " if guarded else ""
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} has a batch {batch} that ended {missing} records earlier: its "
                f"checkpoint was put back. Put back {plan.version.table} and {plan.checkpoint} of one moment; or "
                f"{other}build it anew with `duramen spark reprocess`"
            )

    def _keep_up(self, plan: StepPlan, store: TableStore, commit: TableCommit, said: QueryReport) -> None:
        """The store's upkeep behind a batch, here since nobody else writes the table now. The batch stands without."""
        try:
            store.upkeep(commit, self.pipeline.retention)
        except (DuramenError, OSError, ValueError, pa.ArrowException) as error:
            said.troubles.append(f"{plan.step.name} {plan.version.name}: old files stay for now: {error}")

    def is_read(self, plan: StepPlan) -> bool:
        """Whether all up to the topic's cut is worked in."""
        until = plan.reading.until
        return until is not None and not unfinished(plan.checkpoint) and not committed(plan.checkpoint).behind(until)

    def move_on(self, plan: StepPlan) -> bool:
        """Note that the step goes on in the next topic; False where this one is not read to its cut.

        For a plan that knows the cut, and while its query stands still: a batch that goes on would not be seen.
        QueryFailedError where one lies behind the cut.
        """
        _check_cut(plan)
        if not self.is_read(plan):
            return False
        about = plan.version.about() or {}
        plan.version.describe({**about, "generation": plan.reading.generation + 1})
        return True


def _shown(form: Mapping[str, Any] | None) -> str:
    """How a table is made, as an error tells it."""
    return "no table" if form is None else ", ".join(f"{name}={value!r}" for name, value in form.items())


def _refuse_anew(plan: StepPlan, batch: int, last: TableCommit | None) -> None:
    """ConfigError when a topic is another one than that whose records the table has: it would take the new ones for
    those. Only a source that goes on behind losses comes so far, and a new checkpoint."""
    known, now = plan.version.topic_ids(), batch_ids(plan.checkpoint, batch)
    before = known | (batch_ids(plan.checkpoint, batch - 1) if batch else {})
    others = (topic for topic, topic_id in now.items() if before.get(topic, topic_id) != topic_id)
    if found := sorted(topic for topic in others if last is not None and last.offsets.of(topic)):
        raise ConfigError(
            f"topic {found[0]} was deleted and made anew, and {plan.step.name} {plan.version.name} has the records of "
            "the old one, by offsets that the new one has, too: build it anew with `duramen spark reprocess`"
        )
    if known != (now := known | now):
        plan.version.note_topic_ids(now)


def _deletions_without_version(plan: StepPlan, rows: pa.Table) -> str | None:
    """A word about deletions that no row heeds: where a record has no value, a version out of it is null."""
    version = cast(TableStep, plan.step).shape.version
    if version is None:
        return None
    without = rows.filter(pc.and_(rows["_deleted"], pc.is_null(rows[version])))
    if not without.num_rows:
        return None
    record = cause_of(without, 0)
    return (
        f"{plan.step.name} {plan.version.name}: {record} deletes, and has no {version}: a row that has one is later, "
        "and stays (told once). A version that deletions have, too, is _cause.timestamp"
    )


def _told_of(source: Topic) -> dict[str, str]:
    """The source's options by their names in lower case."""
    return {name.lower(): value for name, value in source.options.items()}


def _goes_on(source: Topic) -> bool:
    """Whether the source was told to go on behind records that are gone."""
    return _told_of(source).get("failondataloss", "").strip().lower() == "false"


def _bounded(step: Step) -> Mapping[str, str]:
    """The options of a step's source, with a bound for its batches where the driver takes all of their rows."""
    given = step.source.options
    folded = isinstance(step, TableStep) and step.shape.guarded
    if not folded or {"maxoffsetspertrigger", "maxbytespertrigger"} & _told_of(step.source).keys():
        return given
    return {**given, "maxBytesPerTrigger": BATCH_BYTES}


def _check_cut(plan: StepPlan) -> None:
    """QueryFailedError where a batch was begun that lies behind the cut: its rows may be written or not."""
    if beyond := plan.reading.beyond(planned(plan.checkpoint)):
        raise QueryFailedError(
            f"{plan.step.name} {plan.version.name} has begun to read {beyond} records of {plan.reading.topic} that lie "
            "behind its cut: build it anew with `duramen spark reprocess`"
        )


def _check_state(plan: StepPlan, first_generation: int) -> None:
    """ConfigError where Spark keeps state for the topic before a cut, and would begin without it behind that."""
    generation = plan.reading.generation
    if generation == first_generation or (plan.checkpoint / "metadata").exists():
        return
    if plan.version.checkpoint(generation - 1).joinpath("state").is_dir():
        raise ConfigError(
            f"{plan.step.name} {plan.version.name} remembers (sums, or keys as dropDuplicates does) what it has read "
            f"before the cut to {plan.reading.topic}, and cannot behind it: `duramen spark reprocess` builds it anew "
            "from there; --accept-change goes on without what it remembers"
        )


def patiently(name: str, call: Callable[[], _T], say: Say, until: Callable[[], bool]) -> _T | None:
    """What the call gives; tried again while its failure is of the kind that passes. None when told to stop meanwhile.

    QueryFailedError with the reason in one line where it does not pass.
    """
    for wait in (*RESTART_SECONDS, *RESTART_SECONDS[-1:] * 3, None):
        if until():
            return None
        try:
            return call()
        except (PySparkException, NetworkError, DeadlineError, UnreachableError, KafkaError) as failure:
            if wait is None or not may_pass(failure):
                raise QueryFailedError(f"{name}: {reason(failure)}") from failure
            say(f"{name}: {reason(failure)}; again in {wait} s")
            rest(wait, until)
    return None


def rest(seconds: float, until: Callable[[], bool]) -> None:
    """Sleep, or less when told to stop."""
    end = time.monotonic() + seconds
    while not until() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))


def told(failure: BaseException) -> str:
    """All that Spark's error says, and each of its causes behind it: where Spark gives up a write because its end was
    refused, only a cause says why."""
    texts: list[str] = []
    cause: BaseException | None = failure
    while cause is not None and len(texts) < CAUSES_MAX:
        texts.append(str(cause))
        cause = getattr(cause, "_cause", None)
    return "\n".join(texts)


def may_pass(failure: BaseException) -> bool:
    """Whether a failure is of the kind that a node which is away for a while causes, or a machine too busy to start
    a worker in the ten seconds that Spark gives it."""
    if isinstance(failure, DuramenError):
        return failure.retriable or isinstance(failure, NetworkError | DeadlineError | UnreachableError)
    text = told(failure)
    signs = (
        "NetworkException",
        "NETWORK_EXCEPTION",
        "ConnectionRefused",
        "ConnectionReset",
        "cannot reach",
        "timed out",
    )
    more = ("BrokenPipe", "Connection refused", "Connection reset", "LEADER_NOT_AVAILABLE", "no node answered")
    busy = ("failed to connect back", "CANNOT_OPEN_SOCKET")
    return any(sign in text for sign in (*signs, *more, *busy))


def _ends_a_traceback(lines: Sequence[str], at: int) -> bool:
    """Whether the line is what a Python traceback ends with, the error: its name need not end so."""
    of_a_frame = any(line.startswith('  File "') for line in lines[max(0, at - 3) : at])
    return of_a_frame and _RAISED.match(lines[at]) is not None


def reason(failure: PySparkException | BaseException) -> str:
    """The cause at the bottom of Spark's error, in one line."""
    whole = [line for line in _COLOURS.sub("", told(failure)).splitlines() if line.strip()]
    lines = [line.strip() for line in whole]
    for at, line in reversed(list(enumerate(lines))):
        if "Py4JJavaError: " in line:  # which tells the number of an object
            continue
        if line.startswith(_OURS) or "Error: " in line.split("(")[0] or _ends_a_traceback(whole, at):
            found = line.partition(": ")[2] if line.startswith(_OURS) else line.removeprefix("Caused by: ")
            deeper = takewhile(lambda each: each.startswith(_DEEPER), lines[at + 1 :])
            return ": ".join([found, *(each.removeprefix(_DEEPER) for each in deeper)])[:500]
    for line in reversed(lines):
        if line.startswith("Caused by: "):
            found = line.removeprefix("Caused by: ").partition(": ")[2][:500]
            return found + (_TOO_LARGE if "spark.driver.maxResultSize" in found else "")
    return lines[0][:500] if lines else type(failure).__name__
