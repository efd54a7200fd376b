"""A step as it will run: what it reads of each source, its checkpoint, and its rows before they are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import Step, StreamStep, TableChanges, TableStep, Topic
from duramen.pipelines.model.folders import VersionFolder, batches, committed, planned, unfinished
from duramen.pipelines.model.function_fingerprint import noted
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import Reading
from duramen.pipelines.run.failures import QueryFailedError

BATCH_BYTES = "64m"
"""Of stored records, of a batch whose rows the driver takes together: what is there at first may be years."""


class StepPlan(NamedTuple):
    """readings: what it reads of each of the step's sources, in their order."""

    step: Step
    version: VersionFolder
    readings: tuple[Reading, ...]
    rows: DataFrame

    @property
    def generation(self) -> int:
        """How many cuts of its source the step has gone over, each with a checkpoint of its own; none where it has
        several sources."""
        return generation_of(self.readings)

    @property
    def first_topic(self) -> str | None:
        """The first topic that is read; None where only changes of tables are."""
        pairs = zip(self.step.sources, self.readings, strict=True)
        return next((reading.topic for source, reading in pairs if not isinstance(source, TableChanges)), None)

    @property
    def checkpoint(self) -> Path:
        """Spark's, of the topics that are read."""
        return self.version.checkpoint(self.generation)

    @property
    def batches_before(self) -> int:
        """How many batches were of the topics before a cut: Spark counts those of each checkpoint from 0."""
        first: int = (self.version.about() or {}).get("first_generation", self.generation)
        return sum(batches(self.version.checkpoint(generation)) for generation in range(first, self.generation))

    @property
    def made_of(self) -> dict[str, Any]:
        """What the version's folder keeps of function and sources, with the topics that are read."""
        found = noted(self.step)
        reads = [{"reads": reading.topic, "generation": reading.generation} for reading in self.readings]
        if len(reads) == 1:
            return {**found, "reads": reads[0]["reads"]}
        return {**found, "sources": [{**told, **read} for told, read in zip(found["sources"], reads, strict=True)]}

    def is_read(self) -> bool:
        """Whether all up to the cut of the topic is worked in; False where it has none."""
        cuts = [reading.until for reading in self.readings]
        if unfinished(self.checkpoint):
            return False
        done = committed(self.checkpoint)
        return all(until is not None and not done.behind(until) for until in cuts)

    def check_cut(self) -> None:
        """QueryFailedError where a batch was begun that lies behind a cut: its rows may be written or not."""
        for reading in self.readings:
            if beyond := reading.beyond(planned(self.checkpoint)):
                raise QueryFailedError(
                    f"{self.step.name} {self.version.name} has begun to read {beyond} records of {reading.topic} that "
                    "lie after its cut: build it again with `duramen spark reprocess`"
                )

    def check_state(self, first_generation: int) -> None:
        """ConfigError where Spark keeps state for the topic before a cut, and would begin without it behind that."""
        if self.generation == first_generation or (self.checkpoint / "metadata").exists():
            return
        if self.version.checkpoint(self.generation - 1).joinpath("state").is_dir():
            sums = isinstance(self.step, TableStep | StreamStep) and self.step.aggregate
            hint = "" if sums else "; --accept-change goes on without what it remembers"
            raise ConfigError(
                f"{self.step.name} {self.version.name} remembers (sums, or keys as dropDuplicates does) what it has "
                f"read before the cut to {self.readings[0].topic}, and cannot after it: `duramen spark reprocess` "
                "builds it again from there" + hint
            )


def generation_of(readings: Sequence[Reading]) -> int:
    """See StepPlan.generation."""
    return readings[0].generation if len(readings) == 1 else 0


def bounded(step: Step, source: Topic) -> Mapping[str, str]:
    """The options of a step's source, with a bound for its batches where the driver takes all of their rows."""
    folded = isinstance(step, TableStep) and not step.aggregate
    if not folded or source.option("maxOffsetsPerTrigger") or source.option("maxBytesPerTrigger"):
        return source.options
    return {**source.options, "maxBytesPerTrigger": BATCH_BYTES}


def stops(readings: tuple[Reading, ...], upto: Offsets | None) -> list[Offsets | None]:
    """Where the reading of each source stops, given where the step's does; None where it does not.

    A source whose options choose its topics has all of those that no other source is named by.
    """
    names = {reading.topic for reading in readings}
    found = []
    for reading in readings:
        others = names - {reading.topic}
        own = None if upto is None else Offsets({place: end for place, end in upto if place[0] not in others})
        found.append(reading.end(own))
    return found
