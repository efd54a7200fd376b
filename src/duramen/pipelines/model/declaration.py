"""What a pipeline is: topics in, functions from DataFrame to DataFrame, and tables, topics or effects out.

    flights = Topic("flights", key="tailnum", schema="carrier string, dest string")
    pipeline = Pipeline("tour")

    @pipeline.table(flights, keys=["tailnum"])
    def aircraft(flights: DataFrame) -> DataFrame:
        return flights.select("tailnum", "carrier", "dest", "_cause")

A decorator registers the function and gives it back unchanged, so it can be called with any DataFrame. With several
topics the function gets a DataFrame for each.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from duramen.errors import ConfigError
from duramen.pipelines.model.environment import environment
from duramen.pipelines.model.expectations import Expectations, OnViolation, expectations
from duramen.pipelines.model.table_shape import TIMESTAMP, TableShape

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from duramen.pipelines.model.progress import BatchProgress
    from duramen.pipelines.model.run_summary import StepSummary

    Source: TypeAlias = "Topic | Lookup | PipelineView"

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_RETENTION = timedelta(days=7)
"""As Delta's own."""
RETENTION_MIN = timedelta(minutes=1)
"""Whoever reads a table needs its files for as long."""
STORES: Final = ("delta", "parquet")
"""The kinds of tables by name; `run/stores.py` has a class for each."""

CORRUPT_VALUES: Final = ("fail", "keep", "quarantine")
DEAD_LETTERS = "dlq."
"""What the names of dead-letter topics begin with, as in Kafka (errors.deadletterqueue.topic.name.prefix)."""
Emits = Literal["append", "update"]
"""Spark's output modes, as far as there are some for tables and topics."""

_F = TypeVar("_F", bound=Callable[..., object])
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Topic:
    """A topic as a source.

    schema: columns of the JSON values, as DDL text; without it the function gets `key` and `value` as bytes.
    key: the column that the record's key becomes, of the schema's type for a field of that name, else as text. It is
        also there when the value is null: a deletion.
    corrupt: what a value does that is no such JSON: "fail" the batch naming the record, "keep" the row with the text in
        `_corrupt`, or "quarantine" the record as a dead letter.
    options: further options of the data source; `includeHeaders` brings the columns `headers` and `timestamp`.
    stream: the step of the pipeline that writes the topic; its reprocessed output is then followed.
    envelope: "debezium" for values that are Debezium's, with Connect's schema or without. The schema is that of the
        table's rows; columns of it that are called `__op`, `__ts_ms` or `__source_` and a field's name come from the
        envelope. Keys may be objects of any of the columns.
    """

    name: str
    schema: str | None = None
    key: str | None = None
    corrupt: Literal["fail", "keep", "quarantine"] = "fail"
    options: Mapping[str, str] = field(default_factory=dict)
    stream: str | None = None
    envelope: Literal["debezium"] | None = None

    def __post_init__(self) -> None:
        if self.corrupt not in CORRUPT_VALUES:
            raise ConfigError(f"topic {self.name}: corrupt={self.corrupt!r}; there are {', '.join(CORRUPT_VALUES)}")
        if self.corrupt == "quarantine" and self.schema is None:
            raise ConfigError(f"topic {self.name}: without schema= every value fits, and none is quarantined")
        if self.envelope not in (None, "debezium"):
            raise ConfigError(f"topic {self.name}: envelope={self.envelope!r}; there is debezium")
        if self.envelope and self.schema is None:
            raise ConfigError(f"topic {self.name}: an envelope is opened with the schema of the rows within it")

    def option(self, name: str) -> str | None:
        """One of the options, whose names may be written in capitals or not; None where it is not given."""
        return next((value for given, value in self.options.items() if given.lower() == name.lower()), None)


@dataclass(frozen=True)
class TableChanges(Topic):
    """What the batches of a table's step have changed in the table, as a stream; made by `Pipeline.changes`.

    The function gets the table's own columns, `_change` ("upsert" or "delete") and `_cause`. To whoever counts, each
    version of the table is a record of the topic `<pipeline>.<table>@<step version>`, which no node can have.
    """

    pipeline: Pipeline = field(kw_only=True)
    table: str = field(kw_only=True)

    @property
    def prefix(self) -> str:
        """What the names begin with under which its versions are counted."""
        return f"{self.pipeline.name}.{self.table}@"


@dataclass(frozen=True)
class Lookup:
    """The rows of a pipeline's table as they are when a batch runs; a batch that is repeated gets the same ones.

    Made by `Pipeline.lookup`. The function gets the table's own columns, and no `_cause`: a row comes from the records
    of the step's topics.
    """

    pipeline: Pipeline
    table: str

    @property
    def name(self) -> str:
        """Pipeline and table; no two lookups of a step have the same."""
        return f"{self.pipeline.name}.{self.table}"


@dataclass(frozen=True)
class PipelineView:
    """A function from sources to a DataFrame that several steps share: each has it as a part of its own query.

    Made by `Pipeline.view`; it can be called with any DataFrames.
    """

    name: str
    sources: tuple[Source, ...]
    function: Callable[..., Any]

    def __call__(self, *frames: DataFrame) -> Any:
        """What the function gives."""
        return self.function(*frames)

    @cached_property
    def fingerprint(self) -> str:
        """Of the function's text, and of the views that it is made of."""
        return _fingerprint(self.function, self.sources)


@dataclass(frozen=True)
class Step:
    """One function of a pipeline with what it reads; the kinds below say what becomes of its rows.

    inputs: what it was declared with, a topic among it. The function gets a DataFrame for each, in this order.
    """

    name: str
    inputs: tuple[Source, ...]
    function: Callable[..., object]
    expectations: Expectations = field(default=Expectations(), kw_only=True)

    @property
    def quarantines(self) -> bool:
        """Whether records of the step may become dead letters."""
        return self.expectations.quarantines or any(source.corrupt == "quarantine" for source in self.sources)

    @cached_property
    def sources(self) -> tuple[Topic, ...]:
        """The topics that it reads, by itself or by views, each once."""
        return _topics(self.inputs)

    @cached_property
    def lookups(self) -> tuple[Lookup, ...]:
        """The tables that it looks up, by itself or by views, each once."""
        return _lookups(self.inputs)

    @cached_property
    def changes(self) -> tuple[TableChanges, ...]:
        """Those of its sources that are the changes of tables."""
        return tuple(source for source in self.sources if isinstance(source, TableChanges))

    @property
    def kind(self) -> str:
        """What people call it."""
        return type(self).__name__.removesuffix("Step").lower()

    @cached_property
    def fingerprint(self) -> str:
        """Of the function's text when it was declared, and its views': whether a table was made by this logic."""
        return _fingerprint(self.function, self.inputs)


@dataclass(frozen=True)
class TableStep(Step):
    """Its rows become a table: by key, or appended when there are none.

    emits: None where a row comes in the batch of its records; "append" where it comes once and may come later, as Spark
    keeps rows back; "update" where it sums up and comes again whenever it changes.
    """

    shape: TableShape = field(default_factory=TableShape)
    store: str = "delta"
    emits: Emits | None = None

    @property
    def aggregate(self) -> bool:
        return self.emits == "update"

    @property
    def form(self) -> dict[str, Any]:
        """What the step's versions tell of how they were made, for whoever reads them when the code is another."""
        keys, version, guarded, history = self.shape
        form = {"store": self.store, "keys": list(keys), "version": version, "guarded": guarded}
        late = {"emits": "append"} if self.emits == "append" else {}
        return {**form, **late, **({"history": history} if history else {})}


@dataclass(frozen=True)
class StreamStep(Step):
    """Its rows become records of the topic `to`: `key` names the column of the key, the others become JSON.

    aggregate: the function sums up, and a record comes whenever the row of a key changes.
    """

    to: str = ""
    key: str | None = None
    aggregate: bool = False

    @property
    def form(self) -> dict[str, Any] | None:
        """As of a table; None where the rows are written once."""
        return {"aggregate": True, "key": self.key} if self.aggregate else None


@dataclass(frozen=True)
class EffectStep(Step):
    """Its batches are handed to a function that does something outside: (a DataFrame for each source, batch number)."""

    replayable: bool = False


class Pipeline:
    """Named steps that share a node and a folder for tables and checkpoints.

    bootstrap: the node; DURAMEN_BOOTSTRAP, else 127.0.0.1:9092. folder: `<name>-tables` beside where it is run.
    retention: how long the rows of older versions of Delta tables can be read, a minute at least.
    env: an environment, which keeps what the pipeline makes apart: its folder is `env-<env>` in that folder, and its
    output topics end in `.<env>`; DURAMEN_ENV, else none. `--env` of a command comes before both.
    dead_letters: the topic for records that steps quarantine, `dlq.<name>` unless it is named; made when it is needed.
    """

    def __init__(
        self,
        name: str,
        *,
        bootstrap: str | None = None,
        folder: str | Path | None = None,
        retention: timedelta = DEFAULT_RETENTION,
        env: str | None = None,
        dead_letters: str | None = None,
    ) -> None:
        _check_name(name)
        if retention < RETENTION_MIN:
            raise ConfigError(f"a retention of {retention}: readers need older files for {RETENTION_MIN} at least")
        self.name = name
        self.retention = retention
        self.bootstrap = bootstrap or os.environ.get("DURAMEN_BOOTSTRAP", DEFAULT_BOOTSTRAP)
        self.env = environment(env)
        self.dead_letters = self.in_env(dead_letters or f"{DEAD_LETTERS}{name}")
        self.folder = self.place(folder if folder is not None else f"{name}-tables")
        self.steps: dict[str, Step] = {}
        self.views: dict[str, PipelineView] = {}
        self.module: str | None = sys._getframe(1).f_globals.get("__name__")
        """Where it was made: a file that imports another one's pipeline defines its own beside it."""
        self.stopping = False
        """Whether a run in this process is to end."""

    def place(self, folder: str | Path) -> Path:
        """Where tables and checkpoints are in a folder; absolute, for Spark may run in another directory than we."""
        found = Path(folder).absolute()
        return found / f"env-{self.env}" if self.env else found  # no step has a dash in its name

    def in_env(self, name: str) -> str:
        """The name of a topic that the pipeline writes, of a sink or a query, in its environment."""
        return f"{name}.{self.env}" if self.env else name

    def run(
        self,
        steps: Sequence[str] | None = None,
        *,
        once: bool = True,
        spark: SparkSession | None = None,
        trigger: str = "1 second",
        timeout: float | None = None,
        accept_change: bool = False,
        on_batch: Callable[[BatchProgress], None] | None = None,
    ) -> dict[str, StepSummary]:
        """Run the steps (all, or those named) in this process, and give what each has done, by its name.

        once: work off what is there, then return; else until `stop` or the timeout. spark: the session, which is not
        stopped; without it the active one, or one that is made and stopped. timeout: seconds after which the run
        ends, also with work left, which the next run does. accept_change: go on with tables that other logic began.
        on_batch: called with every batch that ended. DuramenError and its kinds: ConfigError, BusyError where another
        process runs a step, QueryFailedError where a query fails. What passes is logged (`duramen.pipelines`).
        """
        # The runner stands above what is declared, and needs Spark.
        found: dict[str, StepSummary] = import_module("duramen.pipelines.run.job").run(
            self,
            steps,
            once=once,
            spark=spark,
            trigger=trigger,
            timeout=timeout,
            accept_change=accept_change,
            on_batch=on_batch,
        )
        return found

    def stop(self) -> None:
        """End the run that goes on in this process, from another thread or from `on_batch`: it then returns."""
        self.stopping = True

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        """The steps named, all when none is. ConfigError for an unknown one, and where there are none."""
        given = [names] if isinstance(names, str) else names or ()
        if not self.steps:
            raise ConfigError(f"pipeline {self.name} has no steps: decorate functions with @{self.name}.table")
        return [self.step(name).name for name in given] or list(self.steps)

    def table(
        self,
        *sources: Source,
        keys: Sequence[str],
        version: str | None = None,
        aggregate: bool = False,
        emits: Emits | None = None,
        history: Literal["scd2"] | None = None,
        store: str = "delta",
        expect: Mapping[str, str] | None = None,
        on_violation: OnViolation = "fail",
    ) -> Callable[[_F], _F]:
        """The latest row of each key. version: the column that orders a key's rows from several partitions.

        history: "scd2" keeps every version of a key (slowly changing dimension, type 2): the rows get `valid_from`,
        the value of the version column, `valid_to`, that of the key's next version or null, and `current`. Versions may
        come in any order.

        Rows of several sources have no other order: without `version` it is `_timestamp`, of the latest record that a
        row comes from. emits: "append" where rows come once and late (closed windows, outer joins); "update" where sums
        come again whenever they change, which `aggregate` says, too.

        expect: conditions of SQL by their names that the function's rows have to meet; null does not. on_violation:
        "fail" the batch, "drop" the row, or "quarantine" its record as a dead letter.
        """
        if not keys:
            raise ConfigError("a table has keys; without any it is a history")
        if isinstance(keys, str):
            raise ConfigError(f'keys= is a list of columns: write keys=["{keys}"]')
        if aggregate and emits == "append":
            raise ConfigError('aggregate=True is emits="update": sums come again whenever they change')
        emits = "update" if aggregate else _emitted(emits)
        if emits == "update" and version:
            raise ConfigError("an aggregate is its own latest state: it has no version column")
        if history not in (None, "scd2"):
            raise ConfigError(f'there is no history={history!r} of a table; there is "scd2"')
        expected = expectations(expect, on_violation, aggregate=emits == "update")

        def made(name: str, function: Callable[..., object]) -> TableStep:
            several = len(_topics(sources)) > 1
            ordered = version or (TIMESTAMP if several and emits != "update" else None)
            if history and (emits == "update" or ordered is None):
                raise ConfigError(
                    "a table with history has version=, the column that orders a key's rows; no aggregate="
                )
            shape = TableShape(tuple(keys), ordered, guarded=emits is None, history=history)
            return TableStep(name, sources, function, shape, _known(store), emits, expectations=expected)

        return self._register(sources, made)

    def history(
        self,
        *sources: Source,
        emits: Emits | None = None,
        store: str = "delta",
        expect: Mapping[str, str] | None = None,
        on_violation: OnViolation = "fail",
    ) -> Callable[[_F], _F]:
        """Every row, appended. emits: as of a table; with "update" every change of a sum. expect, on_violation: as of a
        table."""
        shape = TableShape(guarded=_emitted(emits) is None)
        expected = expectations(expect, on_violation, aggregate=emits == "update")
        return self._register(
            sources, lambda name, f: TableStep(name, sources, f, shape, _known(store), emits, expectations=expected)
        )

    def stream(
        self,
        *sources: Source,
        to: str,
        key: str | None = None,
        aggregate: bool = False,
        expect: Mapping[str, str] | None = None,
        on_violation: OnViolation = "fail",
    ) -> Callable[[_F], _F]:
        """Records of another topic, which has as many partitions as the first source where it is not there yet.

        aggregate: the function sums up, and a sum is written whenever it changes, by its key; the topic is created as a
        compacted one. expect, on_violation: as of a table. ConfigError where `to` is a topic that the step reads.
        """
        if aggregate and key is None:
            raise ConfigError("a stream of an aggregate has key=: by it the latest sum of each group is known")
        expected = expectations(expect, on_violation, aggregate=aggregate)
        topic = self.in_env(to)

        def made(name: str, function: Callable[..., object]) -> StreamStep:
            if {to, topic} & {source.name for source in _topics(sources)}:
                raise ConfigError(f"{name} reads {to} and writes it, which has no end: give to= another topic")
            return StreamStep(name, sources, function, topic, key, aggregate, expectations=expected)

        return self._register(sources, made)

    def effect(self, *sources: Source, replayable: bool = False) -> Callable[[_F], _F]:
        """Something outside of the log and its tables, at least once. replayable: reprocessing may repeat it.

        The function gets a DataFrame for each source, then the number of the batch.
        """

        def made(name: str, function: Callable[..., object]) -> EffectStep:
            if any(source.corrupt == "quarantine" for source in _topics(sources)):
                raise ConfigError('an effect has no dead letters: its Topic has corrupt="keep" or "fail"')
            return EffectStep(name, sources, function, replayable)

        return self._register(sources, made)

    def view(self, *sources: Source) -> Callable[[Callable[..., Any]], PipelineView]:
        """A function from sources to a DataFrame that several steps share: the view is a source of theirs.

        Each step has it as a part of its own query, so nothing is stored.
        """

        def register(function: Callable[..., Any]) -> PipelineView:
            name = function.__name__
            if name in self.views or name in self.steps:
                raise ConfigError(f"pipeline {self.name} has two views or steps called {name}")
            _check_sources(name, sources)
            view = PipelineView(name, sources, function)
            _check_parameters(name, function, [source.name for source in sources])
            self.views[name] = view
            _ = view.fingerprint
            return view

        return register

    def lookup(self, table: str) -> Lookup:
        """A table of this pipeline as a source beside topics: a batch gets its rows as they are when it runs.

        ConfigError where there is no such table, or it is a history, which has no current rows.
        """
        step = self.step(table)
        if not isinstance(step, TableStep) or not step.shape.keys:
            raise ConfigError(f"{table} is no table with keys: rows are looked up in one that has them")
        return Lookup(self, table)

    def changes(self, table: str) -> TableChanges:
        """What the batches of a table or a history of this pipeline have changed in it, as a source like a topic.

        ConfigError where there is no such table, or it has `version=` and no history: there a change that comes late
        takes no effect, and is in the changelog all the same.
        """
        step = self.step(table)
        if not isinstance(step, TableStep):
            raise ConfigError(f"{table} is no table but of the kind {step.kind}: it has no changes to read")
        if step.shape.version is not None and not step.shape.history:
            why = "is of several sources" if step.shape.version == TIMESTAMP else "has version="
            raise ConfigError(
                f"{table} {why}, so rows that come late change nothing and are in its changelog all the same: declare "
                'it with history="scd2" and a version= to have its changes as a source'
            )
        return TableChanges(f"changes({self.name}.{table})", pipeline=self, table=table)

    def output(self, stream: str, *, schema: str | None = None, key: str | None = None) -> Topic:
        """The topic that a stream of this pipeline writes, as a source that follows it when it is reprocessed."""
        step = self.step(stream)
        if not isinstance(step, StreamStep):
            raise ConfigError(f"{stream} is a {step.kind}, not a stream")
        return Topic(step.to, schema, key or step.key, stream=stream)

    def step(self, name: str) -> Step:
        """ConfigError when there is none of this name."""
        if name not in self.steps:
            raise ConfigError(f"pipeline {self.name} has no step {name}; it has {', '.join(self.steps) or 'none'}")
        return self.steps[name]

    def _register(
        self, sources: Sequence[Source], make: Callable[[str, Callable[..., object]], Step]
    ) -> Callable[[_F], _F]:
        def register(function: _F) -> _F:
            name = function.__name__
            if name in self.steps or name in self.views:
                raise ConfigError(f"pipeline {self.name} has two steps called {name}")
            _check_sources(name, sources)
            step = make(name, function)
            if step.quarantines and step.changes:
                raise ConfigError(
                    f"{name} reads changes of a table, which are no records that could be dead letters: "
                    'on_violation="fail" or "drop", and no corrupt="quarantine" beside them'
                )
            last = ["the batch number"] if isinstance(step, EffectStep) else []
            _check_parameters(name, function, [*(source.name for source in sources), *last])
            self.steps[name] = step
            _ = step.fingerprint  # taken now: the file may change while its code runs
            return function

        return register


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r}: a pipeline's name is made of letters, digits, dots, dashes and underscores")


def _check_sources(step: str, sources: Sequence[Source]) -> None:
    """ConfigError unless all are sources, each another one, and a topic is among them."""
    for source in sources:
        if not isinstance(source, Topic | Lookup | PipelineView):
            raise ConfigError(f"a source of {step} is {type(source).__name__}, not a Topic, a view or a lookup")
    seen = list[str]()
    for source in sources:
        if source.name in seen:
            raise ConfigError(
                f"{step} names {_kind(source)} {source.name} twice: name it once, and use its DataFrame twice"
            )
        seen.append(source.name)
    declared: dict[tuple[str, str], Topic | Lookup] = {}
    for each in _leaves(sources):
        if declared.setdefault((kind := _kind(each), each.name), each) != each:
            raise ConfigError(f"{step} has {kind} {each.name} from two declarations that differ: use one of them")
    if not _topics(sources):
        raise ConfigError(f"{step} has no source: name a Topic before its other arguments")


def _kind(source: Source) -> str:
    """What people call it."""
    if isinstance(source, TableChanges):
        return "source"
    return "lookup" if isinstance(source, Lookup) else "view" if isinstance(source, PipelineView) else "topic"


def _check_parameters(name: str, function: Callable[..., object], given: Sequence[str]) -> None:
    """ConfigError unless the function takes what it will be given."""
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        raise ConfigError(f"{name} is called with {', '.join(given)}, which its parameters do not fit") from None


def _emitted(emits: Emits | None) -> Emits | None:
    if emits not in (None, "append", "update"):
        raise ConfigError(f'emits={emits!r}: there are "append" and "update"')
    return emits


def _fingerprint(function: Callable[..., object], sources: Iterable[Source]) -> str:
    """Of a function's source text as it is now, and of the views among its sources."""
    try:
        text = inspect.getsource(function)
    except OSError:  # typed into a shell
        text = function.__code__.co_code.hex()
    views = [source.fingerprint for source in sources if isinstance(source, PipelineView)]
    return hashlib.sha256("".join([text, *views]).encode()).hexdigest()[:16]


def _topics(sources: Iterable[Source]) -> tuple[Topic, ...]:
    """The topics among sources, also those of views, each once, in the order in which they come."""
    return tuple({each.name: each for each in _leaves(sources) if not isinstance(each, Lookup)}.values())


def _lookups(sources: Iterable[Source]) -> tuple[Lookup, ...]:
    """The tables that are looked up among sources, also by views, each once, in the order in which they come."""
    return tuple({each.name: each for each in _leaves(sources) if isinstance(each, Lookup)}.values())


def _leaves(sources: Iterable[Source]) -> Iterator[Topic | Lookup]:
    """What sources read, with what the views among them do."""
    for source in sources:
        if isinstance(source, PipelineView):
            yield from _leaves(source.sources)
        else:
            yield source


def _known(store: str) -> str:
    if store not in STORES:
        raise ConfigError(f"there is no store {store}; there are {', '.join(STORES)}")
    return store
