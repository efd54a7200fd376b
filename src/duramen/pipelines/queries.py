"""Plans the steps of a pipeline as Spark queries and starts them: what each reads, from where, and what takes its rows.

Each step is one query with one checkpoint. A table's batch is folded into its store by the driver; Spark gives a batch
that was interrupted again under the same number, and the store knows the numbers it has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from duramen.errors import ConfigError, DeadlineError, DuramenError, NetworkError
from duramen.pipelines.changelog import TRACE
from duramen.pipelines.columns import decode, encode, traced
from duramen.pipelines.connector import Connector
from duramen.pipelines.declaration import STORES, EffectStep, Pipeline, Step, StreamStep, TableStep, Topic
from duramen.pipelines.layout import StepFolder, VersionFolder, batch_end, committed, query_id
from duramen.pipelines.offsets import Offsets
from duramen.pipelines.progress import Progress, Written, progress_of
from duramen.pipelines.store import Store
from duramen.swaps import Cut
from duramen.swaps.cuts import topics_of

CHOOSES_TOPICS = {"assign", "subscribe", "subscribepattern"}
"""Options that name other topics than the source's own: its swaps are not theirs."""
CAUSES_MAX = 16
RESTART_SECONDS = (0.5, 1, 2, 4, 8)
Say = Callable[[str], None]
Mark = Callable[[str], None]


class QueryFailedError(DuramenError):
    """A step's query ended with an error, also after it was started again."""


class Plan(NamedTuple):
    """One step as it will run: its input, its rows before they are written, where it begins."""

    step: Step
    version: VersionFolder
    generation: int
    topic: Topic
    rows: DataFrame


class Running:
    """A started query and what it has told so far."""

    def __init__(self, plan: Plan, start: Callable[[], StreamingQuery], written: dict[int, Written]) -> None:
        self.plan = plan
        self.written = written
        self.start = start
        self.query = start()
        self.restarts = 0
        self.told = -1

    def restart(self) -> None:
        """Start the query once more, from its checkpoint."""
        self.query = self.start()
        self.told = -1

    def news(self) -> Iterator[Progress]:
        """Every batch that ended since the last call."""
        for found in self.query.recentProgress:
            progress = progress_of(self.plan.step.name, self.plan.version.name, found, self.written)
            if progress.batch > self.told and progress.ended:
                self.told = progress.batch
                self.restarts = 0
                self.plan.version.note_progress(progress.to_json())
                yield progress


def nowhere(_point: str) -> None:
    """The mark that does nothing; tests pass one that fails at a named point."""


class Queries:
    """The queries of a pipeline on a session.

    mark: called with the name of each point at which a crash is interesting.
    """

    def __init__(self, pipeline: Pipeline, spark: SparkSession, connector: Connector, mark: Mark = nowhere) -> None:
        self.pipeline = pipeline
        self.spark = spark
        self.connector = connector
        self.mark = mark

    def folder(self, step: str) -> StepFolder:
        return StepFolder(self.pipeline.folder, step)

    def plan(self, name: str, version: str | None = None) -> Plan:
        """What would run. Analyses the function; starts nothing and writes nothing."""
        step = self.pipeline.step(name)
        folder = self.folder(name)
        place = folder.version(version or folder.current().version)
        about = place.about() or {}
        generation, topic, start = self._source(step, about)
        records = self.connector.read(self.spark, topic, start)
        rows = decode(records, step.source)
        if not isinstance(step, EffectStep):
            given = step.function(rows)
            if not isinstance(given, DataFrame):
                raise ConfigError(f"{name} gives {type(given).__name__}, not a DataFrame")
            rows = traced(given, name) if isinstance(step, TableStep) else encode(given, name, step.key)  # type: ignore[attr-defined]
        if isinstance(step, TableStep):
            step.shape.check(self._own_schema(rows))
        return Plan(step, place, generation, topic, rows)

    def sound_plan(self, name: str) -> Plan:
        """The plan. QueryFailedError with the reason in one line where Spark finds the function wrong."""
        try:
            return self.plan(name)
        except PySparkException as failure:
            raise QueryFailedError(f"{name}: {reason(failure)}") from None

    def patient_plan(self, name: str, version: str | None, say: Say, until: Callable[[], bool]) -> Plan | None:
        """The plan; tried again while the failure is of the kind that passes. None when told to stop meanwhile."""
        for wait in (*RESTART_SECONDS, *RESTART_SECONDS[-1:] * 3):
            if until():
                return None
            try:
                return self.plan(name, version)
            except (PySparkException, NetworkError, DeadlineError) as failure:
                if isinstance(failure, PySparkException) and not may_pass(failure):
                    raise QueryFailedError(f"{name}: {reason(failure)}") from None
                say(f"{name}: {reason(failure)}; again in {wait} s")
                rest(wait, until)
        return None if until() else self.plan(name, version)

    def cuts(self, topic: Topic) -> Sequence[Cut]:
        """The swaps of a source: of a stream of this pipeline from its folder, of any other topic from the node."""
        if topic.stream is not None:
            return self.folder(topic.stream).current().cuts
        if CHOOSES_TOPICS & {name.lower() for name in topic.options}:
            return ()
        return self.connector.cuts(topic.name)

    def _source(self, step: Step, about: dict[str, object]) -> tuple[int, Topic, Offsets]:
        """Which topic the step reads now, after how many cuts, and from where when its checkpoint is new."""
        topic = step.source
        cuts = self.cuts(topic)
        generation = cast(int, about.get("generation", len(cuts)))
        if generation > len(cuts):
            raise ConfigError(
                f"{step.name} goes on behind {generation} swaps of {topic.name}, and the node knows {len(cuts)}: is it "
                "another node? --bootstrap names the right one"
            )
        if not cuts:
            return 0, topic, Offsets()
        # A version that began before the cut goes on behind it; one that begins after it reads all there is.
        continued = generation > cast(int, about.get("first_generation", generation))
        start = Offsets()
        if continued:
            cut = cuts[generation - 1]
            start = Offsets({(cut.new, partition): at for partition, at in cut.start.items()})
        name = topics_of(topic.name, cuts)[generation]
        return generation, Topic(**{**topic.__dict__, "name": name}), start

    def _own_schema(self, rows: DataFrame) -> pa.Schema:
        found = to_arrow_schema(rows.schema)
        return pa.schema([field for field in found if field.name not in TRACE.names])

    def store(self, plan: Plan) -> Store:
        """The table's store; made when it is not there yet."""
        step = cast(TableStep, plan.step)
        return STORES[step.store](plan.version.table, step.shape, self._own_schema(plan.rows))

    def start(self, plan: Plan, available_now: bool, trigger: str, accept: bool = False) -> Running:
        """Start the query of a plan. ConfigError when another logic made what is there."""
        self._describe(plan, accept)
        written: dict[int, Written] = {}
        writer = self._writer(plan, written)
        writer = writer.queryName(f"{self.pipeline.name}.{plan.step.name}.{plan.version.name}")
        writer = writer.option("checkpointLocation", str(plan.version.checkpoint(plan.generation)))
        writer = writer.trigger(availableNow=True) if available_now else writer.trigger(processingTime=trigger)
        return Running(plan, writer.start, written)

    def _describe(self, plan: Plan, accept: bool) -> None:
        about = plan.version.about()
        made_by = about["fingerprint"] if about else plan.step.fingerprint
        if made_by != plan.step.fingerprint and not accept:
            raise ConfigError(
                f"{plan.step.name} {plan.version.name} was made by other logic than the code has now: "
                "`duramen spark reprocess` builds it anew beside the old one; --accept-change goes on with mixed rows"
            )
        first = (about or {}).get("first_generation", plan.generation)
        to = self.output_topic(plan) if isinstance(plan.step, StreamStep) else None
        told = {
            "fingerprint": plan.step.fingerprint,
            "generation": plan.generation,
            "first_generation": first,
            "to": to,
        }
        if told != about:
            plan.version.describe(told)

    def output_topic(self, plan: Plan) -> str:
        """Where this version of a stream writes: the first into the topic it names, others beside it."""
        step = cast(StreamStep, plan.step)
        about = plan.version.about() or {}
        others = [name for name in self.folder(step.name).versions() if name != plan.version.name]
        return cast(str, about.get("to")) or (f"{step.to}.{plan.version.name}" if others else step.to)

    def _writer(self, plan: Plan, written: dict[int, Written]) -> DataStreamWriter:
        step = plan.step
        if isinstance(step, StreamStep):
            sink = f"{self.pipeline.name}.{step.name}.{plan.version.name}.{plan.generation}"
            to = self.output_topic(plan)
            # A version beside the first has its partitions, so that a key goes on where it was.
            return self.connector.write(plan.rows, to, sink, plan.topic.name if to == step.to else step.to)
        if isinstance(step, TableStep):
            mode = "update" if step.aggregate else "append"
            return plan.rows.writeStream.outputMode(mode).foreachBatch(self._fold(plan, written))
        return plan.rows.writeStream.foreachBatch(cast(Callable[[DataFrame, int], None], step.function))

    def _fold(self, plan: Plan, written: dict[int, Written]) -> Callable[[DataFrame, int], None]:
        """What the driver does with each batch of a table."""
        store = self.store(plan)
        checkpoint = plan.version.checkpoint(plan.generation)
        aggregate = cast(TableStep, plan.step).aggregate

        def fold(rows: DataFrame, batch: int) -> None:
            self.mark("batch planned")
            sink = f"{self.pipeline.name}.{plan.step.name}.{plan.version.name}.{query_id(checkpoint)}"
            last = store.last()
            if aggregate and batch == 0 and last is not None and last.sink != sink:
                raise ConfigError(
                    f"{plan.step.name} {plan.version.name} sums up, and its checkpoint is gone: "
                    "build it anew with `duramen spark reprocess`"
                )
            if aggregate or store.applied(sink) < batch:
                # Also when the table has the batch: Spark's own sums advance only by computing it.
                found = rows.toArrow()
                self.mark("batch computed")
                store.apply(found, sink, batch, batch_end(checkpoint, batch))
                written[batch] = Written(found.num_rows, found.nbytes)
            self.mark("batch applied")

        return fold

    def behind_cut(self, plan: Plan) -> Plan | None:
        """The plan in the next topic, when all up to the cut of this one is done. QueryFailedError beyond it."""
        cuts = self.cuts(plan.step.source)
        if plan.generation >= len(cuts):
            return None
        cut = cuts[plan.generation]
        done = committed(plan.version.checkpoint(plan.generation))
        until = Offsets({(cut.old, partition): at for partition, at in cut.until.items()})
        if done.behind(until):
            return None
        if beyond := until.behind(done.of(cut.old)):
            raise QueryFailedError(
                f"{plan.step.name} {plan.version.name} has read {beyond} records of {cut.old} that lie behind its cut: "
                "build it anew with `duramen spark reprocess`"
            )
        about = plan.version.about() or {}
        plan.version.describe({**about, "generation": plan.generation + 1})
        return self.plan(plan.step.name, plan.version.name)


def rest(seconds: float, until: Callable[[], bool]) -> None:
    """Sleep, or less when told to stop."""
    end = time.monotonic() + seconds
    while not until() and (left := end - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))


def _told(failure: BaseException) -> str:
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
    text = _told(failure)
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


def reason(failure: PySparkException | BaseException) -> str:
    """The cause at the bottom of Spark's error, in one line."""
    lines = [line.strip() for line in _told(failure).splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith("duramen.") or "Error: " in line.split("(")[0]:
            return line.partition(": ")[2][:500] if line.startswith("duramen.") else line[:500]
    return lines[0][:500] if lines else type(failure).__name__
