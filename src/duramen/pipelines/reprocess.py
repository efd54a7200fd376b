"""Builds a new version of a step by replaying its topic, compares it with the current one, and swaps.

The phases stand in a file that is replaced atomically, and each can be done again: building goes on from Spark's
checkpoint, comparing reads, swapping renames one pointer. So whoever is killed anywhere asks for the same again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from duramen.errors import ConfigError, DuramenError
from duramen.pipelines.cluster import Node
from duramen.pipelines.declaration import EffectStep, Pipeline, StreamStep, TableStep
from duramen.pipelines.difference import Difference, compare_histories, difference
from duramen.pipelines.layout import Current, Cut, StepFolder, committed
from duramen.pipelines.offsets import Offsets
from duramen.pipelines.progress import Progress
from duramen.pipelines.reading import open_table
from duramen.pipelines.runner import Mark, Runner, Say, nowhere

ROUNDS_MAX = 20


class NotReadyError(DuramenError):
    """A swap or a rollback that cannot be done now; says what is missing."""


class Report(NamedTuple):
    """What a reprocessing found. behind: records that the current version contains and the new one does not."""

    step: str
    old: str
    new: str
    behind: int
    difference: Difference | None

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "difference": self.difference._asdict() if self.difference else None}


class Reprocessing:
    """One step of a pipeline on its way to another version."""

    def __init__(self, pipeline: Pipeline, step: str, mark: Mark = nowhere) -> None:
        self.pipeline = pipeline
        self.step = pipeline.step(step)
        self.folder = StepFolder(pipeline.folder, step)
        self.mark = mark

    def build(self, runner: Runner, version: str, tell: Callable[[Progress], None], say: Say) -> Report:
        """Replay everything into `version` and compare. Goes on where an interrupted call with this version stopped.

        ConfigError when the step may not be replayed, or the version is the current one or was made by other logic.
        """
        self._check(version)
        current = self.folder.current()
        self.folder.note_reprocessing({"version": version, "from": current.version, "phase": "building"})
        self.mark("reprocessing noted")
        for _ in range(ROUNDS_MAX):
            runner.run([self.step.name], tell, say, version=version, available_now=True)
            if self.behind(version) == 0:
                break
        self.mark("caught up")
        report = self.report(version)
        self.mark("compared")
        self.folder.note_reprocessing(
            {"version": version, "from": current.version, "phase": "built", "report": report.to_json()}
        )
        return report

    def _check(self, version: str) -> None:
        if isinstance(self.step, EffectStep) and not self.step.replayable:
            raise ConfigError(
                f"{self.step.name} does something outside that a replay would do again; "
                "if that is harmless, declare it with replayable=True"
            )
        current = self.folder.current().version
        if version == current:
            raise ConfigError(f"{version} is the current version of {self.step.name}; choose another name")
        if self.folder.version(current).about() is None:
            raise ConfigError(f"{self.step.name} has never run: `duramen spark run` first")

    def contained(self, version: str) -> Offsets:
        """The records of the source that a version has worked in."""
        place = self.folder.version(version)
        about = place.about() or {}
        return committed(place.checkpoint(about.get("generation", 0)))

    def behind(self, version: str) -> int:
        """How many records the current version contains and this one does not."""
        return self.contained(version).behind(self.contained(self.folder.current().version))

    def report(self, version: str) -> Report:
        """The current version against another."""
        current = self.folder.current().version
        found = None
        if isinstance(self.step, TableStep):
            old = open_table(self.pipeline, self.step.name, current).rows()
            new = open_table(self.pipeline, self.step.name, version).rows()
            keys = self.step.shape.keys
            found = difference(old, new, keys) if keys else compare_histories(old, new)
        return Report(self.step.name, current, version, self.behind(version), found)

    def swap(self, version: str, allow_behind: int = 0) -> float:
        """Make a built version the current one; seconds it took. NotReadyError when it is not built or lags.

        A reader sees the old version or the new one, whole. The old one stays for `rollback`.
        """
        state = self.folder.reprocessing() or {}
        current = self.folder.current()
        if current.version == version:
            return 0.0
        if state.get("version") != version or state.get("phase") not in {"built", "swapped", "rolled back"}:
            raise NotReadyError(
                f"{self.step.name} {version} is not built: `duramen spark reprocess --version {version}` builds it, "
                "and goes on where it was interrupted"
            )
        if (behind := self.behind(version)) > allow_behind:
            raise NotReadyError(
                f"{self.step.name} {version} is {behind:,} records behind {current.version}: stop the run, reprocess "
                f"again to catch up, then swap; or --allow-behind {behind}"
            )
        ahead = self.contained(current.version).behind(self.contained(version))
        if isinstance(self.step, StreamStep) and ahead:
            # Readers go on behind the end of the new topic: what only that one holds, they would never see.
            raise NotReadyError(
                f"{self.step.name} {version} is {ahead:,} records ahead of {current.version}: run that first"
            )
        return self._switch(current, version, {**state, "phase": "swapped"})

    def rollback(self) -> tuple[str, float]:
        """Make the previous version the current one again; its name and the seconds it took."""
        current = self.folder.current()
        if current.previous is None:
            raise NotReadyError(f"{self.step.name} has no version before {current.version}")
        state = self.folder.reprocessing() or {}
        return current.previous, self._switch(current, current.previous, {**state, "phase": "rolled back"})

    def _switch(self, current: Current, version: str, state: dict[str, Any]) -> float:
        began = time.monotonic()
        cuts = current.cuts
        if isinstance(self.step, StreamStep):
            cuts = (*cuts, self._cut(current.version, version))
        self.mark("about to switch")
        self.folder.point(Current(version, current.version, cuts))
        self.mark("switched")
        self.folder.note_reprocessing(state)
        return time.monotonic() - began

    def _cut(self, old: str, new: str) -> Cut:
        """Readers of the old topic read it to its end, then go on behind what the new one holds of the same input."""
        node = Node(self.pipeline.bootstrap)
        names = [(self.folder.version(name).about() or {})["to"] for name in (old, new)]
        return Cut(names[0], node.ends(names[0]), names[1], node.ends(names[1]))
