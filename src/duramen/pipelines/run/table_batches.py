"""The batches of a table on their way from Spark to the store: what is refused, what is applied, what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from duramen.errors import ConfigError, DuramenError
from duramen.pipelines.model.declaration import Pipeline, TableStep
from duramen.pipelines.model.folders import batch_end, batch_ids, beginning, query_id
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import Written
from duramen.pipelines.run.connector import chooses_topics
from duramen.pipelines.run.dead_letters import apart, as_records
from duramen.pipelines.run.failures import Mark, nowhere
from duramen.pipelines.run.query_report import QueryReport
from duramen.pipelines.run.step_plan import StepPlan
from duramen.pipelines.tables.changelog import cause_of, fresh, refuse_held_back
from duramen.pipelines.tables.store import TableCommit, TableStore

_LETTERS = ".dead-letters"
"""What the name of a table's sink of dead letters ends with."""


class TableBatches:
    """What the driver does with each batch of a table; `apply` is for Spark's foreachBatch.

    mark: called with the name of each point at which a crash is interesting. count_late: called with the number of each
    batch that was applied, to count what a watermark has dropped of it. bury: called with the dead letters of a batch,
    the name of their sink and the batch's number; None of a step that has none.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        plan: StepPlan,
        store: TableStore,
        said: QueryReport,
        mark: Mark,
        count_late: Callable[[int], None],
        bury: Callable[[DataFrame, str, int], None] | None = None,
    ) -> None:
        self._pipeline = pipeline.name
        self._retention = pipeline.retention
        self._plan = plan
        self._step = cast(TableStep, plan.step)
        self._name = f"{plan.step.name} {plan.version.name}"
        self._store = store
        self._said = said
        self._mark = mark
        self._count_late = count_late
        self._bury = bury

    def __getstate__(self) -> dict[str, Any]:
        """For Spark's server, which calls `apply` over Spark Connect. The DataFrame and the function stay here."""
        step = replace(self._step, function=nowhere)
        plan = self._plan._replace(step=step, rows=cast(DataFrame, None))
        return {**self.__dict__, "_step": step, "_plan": plan}

    def apply(self, rows: DataFrame, batch: int) -> None:
        """Fold one batch in, once. ConfigError or ChangelogError where its rows, or others, would stay away."""
        self._mark("batch planned")
        plan, store, guarded = self._plan, self._store, self._step.shape.guarded
        version = f"{plan.step.name}.{plan.version.name}"
        sink = f"{self._pipeline}.{version}.{query_id(plan.checkpoint)}"
        last = store.last()
        if not guarded and batch == 0 and last is not None and last.sink != sink:
            raise ConfigError(
                f"{self._name} {'sums up' if self._step.aggregate else 'holds rows back'}, and its checkpoint is gone, "
                "or before a swap: "
                "build it again with `duramen spark reprocess`"
            )
        self._refuse_gap(last, batch)
        # Also when the table has it: what Spark keeps, sums or keys it has seen, advances only by computing.
        found, letters = apart(rows.toArrow())
        self._mark("batch computed")
        if guarded:
            self._refuse_anew(last, batch)
        if self._bury and letters is not None and (letters := self._new_letters(letters, last)).num_rows:
            self._bury(rows.sparkSession.createDataFrame(as_records(letters)), f"{sink}{_LETTERS}", batch)
            self._mark("dead letters written")
        if guarded:
            refuse_held_back(found, batch_end(plan.checkpoint, batch - 1) if batch else Offsets())
        commit = store.apply(found, sink, batch, batch_end(plan.checkpoint, batch))
        self._said.once(self._deletions_without_version(found))
        if commit is None:
            self._refuse_other(store.last(), batch)
        self._said.written[batch] = Written(found.num_rows, found.nbytes)
        self._count_late(batch)
        self._mark("batch applied")
        if commit is not None:
            self._keep_up(commit)

    def _new_letters(self, letters: pa.Table, last: TableCommit | None) -> pa.Table:
        """The batch's dead letters without those of records that the table contains, which were written before it took
        their batch.

        They are written first: a driver that dies behind that does the batch again, of the same number, by which the
        node passes over them.
        """
        return fresh(letters, last.offsets) if last is not None and self._step.shape.guarded else letters

    def _refuse_gap(self, last: TableCommit | None, batch: int) -> None:
        """ConfigError when the table lacks records that the batches before this one had, or that lie before the first
        one of a new checkpoint: their rows would stay away."""
        plan = self._plan
        before = batch_end(plan.checkpoint, batch - 1) if batch else Offsets()
        if missing := (last.offsets if last else Offsets()).behind(before):
            raise ConfigError(
                f"{self._name} lacks {missing} records that its checkpoint has behind it: its "
                f"folder was deleted or put back. Put back {plan.version.table} and {plan.checkpoint} of one moment, "
                "or build it again with `duramen spark reprocess`"
            )
        if batch or last is None or any(reading.start for reading in plan.readings):
            return
        begun = [(place, at) for place, at in beginning(plan.checkpoint) if last.offsets.of(place[0])]
        if missing := last.offsets.behind(Offsets({place: at for place, at in begun if not self._goes_on(place[0])})):
            raise ConfigError(
                f"{self._name} lacks {missing} records: its checkpoint is new, and begins "
                "after what the table has, where the topic begins by now or startingOffsets says. Build it again with "
                '`duramen spark reprocess`; or options={"failOnDataLoss": "false"} of its Topic goes on without them'
            )

    def _goes_on(self, topic: str) -> bool:
        """Whether the source that reads the topic was told to go on behind records that are gone."""
        for source, reading in zip(self._step.sources, self._plan.readings, strict=True):
            is_it = reading.topic == topic or chooses_topics(source) or len(self._step.sources) == 1
            if is_it and (source.option("failOnDataLoss") or "").strip().lower() == "false":
                return True
        return False

    def _refuse_other(self, last: TableCommit | None, batch: int) -> None:
        """ConfigError when a batch that the table has, by its number, is another one: its rows would stay away."""
        plan = self._plan
        if missing := (last.offsets if last else Offsets()).behind(batch_end(plan.checkpoint, batch)):
            guarded = self._step.shape.guarded
            other = "remove the checkpoint, for the table passes over what it has; or " if guarded else ""
            raise ConfigError(
                f"{self._name} has a batch {batch} that ended {missing} records earlier: its "
                f"checkpoint was put back. Put back {plan.version.table} and {plan.checkpoint} of one moment; or "
                f"{other}build it again with `duramen spark reprocess`"
            )

    def _refuse_anew(self, last: TableCommit | None, batch: int) -> None:
        """ConfigError when a topic is another one than that whose records the table has: it would take the new ones
        for those. Only a source that goes on behind losses comes so far, and a new checkpoint."""
        version, checkpoint = self._plan.version, self._plan.checkpoint
        known, now = version.topic_ids(), batch_ids(checkpoint, batch)
        before = known | (batch_ids(checkpoint, batch - 1) if batch else {})
        others = (topic for topic, topic_id in now.items() if before.get(topic, topic_id) != topic_id)
        if found := sorted(topic for topic in others if last is not None and last.offsets.of(topic)):
            raise ConfigError(
                f"topic {found[0]} was deleted and made anew, and {self._name} has the records of "
                "the old one, by offsets that the new one has, too: build it again with `duramen spark reprocess`"
            )
        if known != (now := known | now):
            version.note_topic_ids(now)

    def _deletions_without_version(self, rows: pa.Table) -> str | None:
        """A word about deletions that no row heeds: where a record has no value, a version out of it is null."""
        version = self._step.shape.version
        if version is None:
            return None
        without = rows.filter(pc.and_(rows["_deleted"], pc.is_null(rows[version])))
        if not without.num_rows:
            return None
        record = cause_of(without, 0)
        return (
            f"{self._name}: {record} deletes, and has no {version}: a row that has one is later, "
            "and stays (told once). A version that deletions have, too, is _cause.timestamp"
        )

    def _keep_up(self, commit: TableCommit) -> None:
        """The store's upkeep behind a batch, here since nobody else writes the table now. The batch stands without."""
        try:
            self._store.upkeep(commit, self._retention)
        except (DuramenError, OSError, ValueError, pa.ArrowException) as error:
            self._said.troubles.append(f"{self._name}: old files stay for now: {error}")
