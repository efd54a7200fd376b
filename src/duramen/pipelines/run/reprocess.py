"""Builds a new version of a step by replaying its topic, compares it with the current one, and swaps.

The phases stand in a file that is replaced atomically, and each can be done again: building goes on from Spark's
checkpoint, comparing reads, swapping renames one pointer. So whoever is killed anywhere asks for the same again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

from duramen.client import Cluster
from duramen.errors import ConfigError, DuramenError
from duramen.model import TopicId
from duramen.pipelines.model.declaration import EffectStep, Pipeline, StreamStep, TableChanges, TableStep
from duramen.pipelines.model.folders import Current, StepFolder, VersionFolder, committed, committed_ids, unfinished
from duramen.pipelines.model.function_fingerprint import other_logic
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.progress import BatchProgress
from duramen.pipelines.model.swap_chain import of_source
from duramen.pipelines.run.cluster import SECONDS_MAX, PipelineNode
from duramen.pipelines.run.connector import DuramenConnector, cuts_of
from duramen.pipelines.run.runner import Mark, Runner, Say, nowhere
from duramen.pipelines.run.table_reader import open_table
from duramen.pipelines.run.unpublished_swap import take_back
from duramen.pipelines.tables.difference import Difference, compare
from duramen.swaps import CutOver, SwapConflictError, SwapLog

ROUNDS_MAX = 20
HOLD_SECONDS_MAX = 60.0
"""How long a swap waits until a run lets go of the step."""
_BACK = {"rolling back", "rolled back"}
CatchUp = Callable[[], None]


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

    def build(self, runner: Runner, version: str, tell: Callable[[BatchProgress], None], say: Say) -> Report:
        """Replay everything into `version` and compare. Goes on where an interrupted call with this version stopped.

        ConfigError when the step may not be replayed, or the version is the current one or was made by other logic.
        """
        self._check(version)
        current = self.folder.current()
        self.folder.note_reprocessing({"version": version, "from": current.version, "phase": "building"})
        self.mark("reprocessing noted")
        behind = None
        for _ in range(ROUNDS_MAX):
            self.catch_up(runner, version, tell, say)
            before, behind = behind, self.behind(version)
            # Beside a run whose records never rest it comes no nearer: the rest is for the swap, which holds the step.
            if behind == 0 or (before is not None and behind > before // 2):
                break
        self.mark("caught up")
        runner.doing(f"comparing {current.version} and {version}")
        report = self.report(version)
        runner.doing("")
        self.mark("compared")
        self.folder.note_reprocessing(
            {"version": version, "from": current.version, "phase": "built", "report": report.to_json()}
        )
        return report

    def catch_up(self, runner: Runner, version: str, tell: Callable[[BatchProgress], None], say: Say) -> None:
        """Work what is there into `version`; into a stream's no more than the current version has.

        A cut is possible only where both have the same, and records may never rest. NotReadyError where the current
        version has yet to go on behind a cut of its own source.
        """
        upto = None
        if isinstance(self.step, StreamStep):
            current = self.folder.current().version
            there, upto = self._worked_in(current)
            first, *more = runner.readings(self.step, self.folder.version(version))
            if not more and first.generation > there:
                raise NotReadyError(
                    f"{self.step.name} {current} has not gone on behind the last swap of {self.step.sources[0].name}, "
                    f"and {version} begins there: `duramen spark run --once` first, with the code of {current}"
                )
        runner.run([self.step.name], tell, say, version=version, available_now=True, upto=upto)

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
        about = self.folder.version(version).about()
        if other_logic(self.step, about) is not None:
            raise ConfigError(
                f"{self.step.name} {version} was begun by other code than this: with that code it goes on; --version "
                "with another name builds one by this code"
            )

    def contained(self, version: str) -> Offsets:
        """The records of the source that a version has worked in."""
        place = self.folder.version(version)
        _, found = self._worked_in(version)
        if isinstance(self.step, TableStep) and place.table.is_dir():
            # A batch may be in the table whose end Spark has not noted.
            last = open_table(self.pipeline, self.step.name, version).last()
            topics = {topic for (topic, _), _ in found}
            found = found.joined(Offsets({at: end for at, end in (last.offsets if last else ()) if at[0] in topics}))
        return found

    def _worked_in(self, version: str) -> tuple[int, Offsets]:
        """The generation of the source in which a version has last finished a batch, and what it has of that topic.

        Behind a cut it has worked in nothing at first, which is not the same as having nothing.
        """
        place = self.folder.version(version)
        about = place.about() or {}
        generation: int = about.get("generation", 0)
        while not (found := committed(place.checkpoint(generation))) and generation > about.get("first_generation", 0):
            generation -= 1
        return generation, found

    def behind(self, version: str, other: str | None = None) -> int:
        """How many records the current version, or another one, contains and this one does not.

        For a table those of a topic do not count that was deleted and made anew since: nobody can read them.
        """
        other = other or self.folder.current().version
        theirs = self._before_cuts(version, other)
        if isinstance(self.step, TableStep):
            ids, before = self._topic_ids(version), self._topic_ids(other)
            theirs = Offsets({at: end for at, end in theirs if before.get(at[0]) == ids.get(at[0], before.get(at[0]))})
        return self.contained(version).behind(theirs)

    def _before_cuts(self, version: str, other: str) -> Offsets:
        """What a version has to contain to have what another one does.

        Where it is of a table, and began behind a cut of a source before which the other one stands: in the topic that
        it reads from its beginning, what took the place of all that lies before the cut.
        """
        there = self.contained(other)
        if not isinstance(self.step, TableStep):
            return there
        about, before = (self.folder.version(name).about() or {} for name in (version, other))
        names = [source.name for source in self.step.sources]
        left = {each["reads"] for each in before.get("sources", ()) if each["topic"] not in names}
        for source in self.step.sources:
            ours, theirs = of_source(about, source.name), of_source(before, source.name)
            if isinstance(source, TableChanges):
                # The changes of another version of the table are no part of those of this one.
                left |= {read for read in (theirs.get("reads"),) if read and read != ours.get("reads", read)}
                continue
            first: int = ours.get("generation" if "sources" in about else "first_generation", 0)
            if (theirs.get("generation", 0) if "sources" in before else self._worked_in(other)[0]) < first:
                cut = cuts_of(self.pipeline, source, DuramenConnector(self.pipeline.bootstrap))[first - 1]
                begun = Offsets({(cut.new, partition): at for partition, at in cut.start.items()})
                if len(names) == 1:
                    return begun
                left.add(theirs.get("reads", source.name))
                there = there.joined(begun)
        return Offsets({place: end for place, end in there if place[0] not in left})

    def _topic_ids(self, version: str) -> dict[str, TopicId]:
        """The ids of the topics that a version has read last."""
        place = self.folder.version(version)
        about = place.about() or {}
        ids: dict[str, TopicId] = {}
        for generation in range(about.get("first_generation", 0), about.get("generation", 0) + 1):
            ids |= committed_ids(place.checkpoint(generation))
        return ids

    def report(self, version: str) -> Report:
        """The current version against another."""
        current = self.folder.current().version
        found = None
        if isinstance(self.step, TableStep):
            old, new = (open_table(self.pipeline, self.step.name, name) for name in (current, version))
            found = compare(old.rows(), new.rows(), old.shape.row_keys, new.shape.row_keys)
        return Report(self.step.name, current, version, self.behind(version), found)

    def swap(self, version: str, allow_behind: int = 0, catch_up: CatchUp | None = None) -> float:
        """Make a built version the current one; seconds the switch took. NotReadyError when it is not built or lags.

        A run of the step lets go of it meanwhile. A reader sees the old version or the new one, whole. The old one
        stays for `rollback`. catch_up: called when the old version stands still, to bring the new one to where that is.
        """
        self._check_run()
        with self.folder.hold():
            current = self.folder.current()  # asked only now: another swap may have come before this one
            if current.version == version:
                self._publish_again(current)
                return 0.0
            state = self.folder.reprocessing() or {}
            built = state.get("version") == version and state.get("phase") in {"built", "swapped", *_BACK}
            if not built and version != current.previous:  # that one was current before
                raise NotReadyError(
                    f"{self.step.name} {version} is not built: `duramen spark reprocess --version {version}` builds "
                    "it, and goes on where it was interrupted"
                )
            self._check_there(version)
            with self._standing(current.version):
                if catch_up is not None:
                    catch_up()
                with self.folder.version(version).locked():
                    self._check_contents(current.version, version, allow_behind)
                    return self._switch(current, version, {**state, "version": version, "phase": "swapped"})

    def rollback(self, allow_behind: int = 0) -> tuple[str, float]:
        """Make the previous version the current one again; its name and the seconds the switch took.

        NotReadyError where there is none, it was done already, or a stream's previous version lags: its readers would
        get again what they have, as the old logic makes it. allow_behind: so many records may be.
        """
        self._check_run()
        with self.folder.hold():
            return self._roll_back(self.folder.current(), self.folder.reprocessing() or {}, allow_behind)

    def _roll_back(self, current: Current, state: dict[str, Any], allow_behind: int) -> tuple[str, float]:
        noted = state.get("phase") in _BACK and state.get("to") == current.version
        # Another version may have been built since, and its state stands there now.
        if noted or current.back:
            if noted and state["phase"] == "rolling back":  # the call that did it was interrupted
                self._publish(current)
                self.folder.note_reprocessing({**state, "phase": "rolled back"})
                return current.version, 0.0
            raise NotReadyError(
                f"{self.step.name} was rolled back to {current.version} already; "
                f"`duramen spark swap` goes to {current.previous} again"
            )
        if current.previous is None:
            raise NotReadyError(f"{self.step.name} has no version before {current.version}")
        self._check_there(current.previous)
        with self._standing(current.version), self.folder.version(current.previous).locked():
            if isinstance(self.step, StreamStep):
                self._check_contents(current.version, current.previous, allow_behind)
            state = {**state, "phase": "rolling back", "to": current.previous}
            self.folder.note_reprocessing(state)
            took = self._switch(current, current.previous, {**state, "phase": "rolled back"}, back=True)
        return current.previous, took

    def _check_run(self) -> None:
        """NotReadyError where the step has no folder: it is run elsewhere, or not at all."""
        if not self.folder.path.is_dir():
            raise NotReadyError(
                f"{self.step.name} has never run here: there is no {self.folder.path} (--folder names another place)"
            )

    def _standing(self, version: str) -> AbstractContextManager[None]:
        """While nobody works on the version: a run lets go of it when the step is held, between two batches.
        BusyError when it does not."""
        return self.folder.version(version).locked(HOLD_SECONDS_MAX)

    def _check_there(self, version: str) -> None:
        """NotReadyError where somebody has dropped the version."""
        if self.folder.version(version).about() is None:
            raise NotReadyError(f"{self.step.name} {version} is gone: its folder was removed")

    def _check_contents(self, old: str, new: str, allow_behind: int) -> None:
        """NotReadyError where readers who go from the one version to the other would miss or repeat something."""
        name = self.step.name
        if isinstance(self.step, StreamStep):
            self._check_same_topics(old, new)
        if (behind := self.behind(new, old)) > allow_behind:
            raise NotReadyError(
                f"{name} {new} is {behind:,} records behind {old}: `duramen spark reprocess --version {new}` with the "
                f"code of {new} catches up, --swap there switches too; or --allow-behind {behind}"
            )
        if not isinstance(self.step, StreamStep):
            return
        # Readers go on behind the end of the new topic: both ends have to stand for the same input.
        for version in (old, new):
            place = self.folder.version(version)
            self._check_readable(place)
            if unfinished(place.checkpoint((place.about() or {}).get("generation", 0))):
                how = "duramen spark run --once" if version == old else f"duramen spark reprocess --version {new}"
                raise NotReadyError(
                    f"{name} {version} was cut off inside of a batch: `{how}`, with the code of {version}, finishes it"
                )
        if ahead := self.behind(old, new):
            raise NotReadyError(f"{name} {new} is {ahead:,} records ahead of {old}: `duramen spark run --once` first")

    def _check_same_topics(self, old: str, new: str) -> None:
        """NotReadyError where the versions have read other topics of one name: their offsets do not stand for the same
        input, and readers would pass over what the one made of the new topic's first records."""
        ids, before = self._topic_ids(new), self._topic_ids(old)
        if others := sorted(topic for topic in ids if before.get(topic, ids[topic]) != ids[topic]):
            raise NotReadyError(
                f"topic {others[0]} was deleted and made anew, and {self.step.name} {old} and {new} have not read the "
                'same one: options={"failOnDataLoss": "false"} of its Topic lets the older one go on with it'
            )

    def _check_readable(self, place: VersionFolder) -> None:
        """NotReadyError while a batch that Spark took for done is on its way into the topic: the node went when it had
        committed it. What comes of it behind a cut nobody reads."""
        about = place.about() or {}
        for generation in range(about.get("first_generation", 0), about.get("generation", 0) + 1):
            sink = self.pipeline.in_env(place.sink(self.pipeline.name, generation))
            if (batch := PipelineNode(self.pipeline.bootstrap).unread(sink)) is not None:
                raise NotReadyError(
                    f"batch {batch} of {self.step.name} {place.name} is committed, and the node has not moved all of "
                    f"it to {about.get('to')} yet: ask again when it has"
                )

    def _switch(self, current: Current, version: str, state: dict[str, Any], *, back: bool = False) -> float:
        began = time.monotonic()
        cuts = current.cuts
        if isinstance(self.step, StreamStep):
            cuts = (*cuts, self._cut(current.version, version))
            self._publish(current)  # where the node has other cuts it refuses, and nothing has changed
        self.mark("about to switch")
        after = Current(version, current.version, cuts, back)
        self.folder.point(after)
        self.mark("switched")
        try:
            self._publish(after)
        except SwapConflictError:
            self.folder.point(current)  # another pipeline's swap was first; nobody has written behind ours
            raise
        self.mark("published")
        self.folder.note_reprocessing(state)
        return time.monotonic() - began

    def _publish_again(self, current: Current) -> None:
        """For a call that was cut off behind the rename."""
        try:
            self._publish(current)
        except SwapConflictError:
            with self._standing(current.version):
                take_back(self.folder, self.pipeline.bootstrap)
            raise

    def _publish(self, current: Current) -> None:
        """Let the node tell the cuts of a stream. What is in the folder counts; a run tells it, too.

        SwapConflictError where the node has others.
        """
        if isinstance(self.step, StreamStep):
            with Cluster(self.pipeline.bootstrap, timeout_s=SECONDS_MAX) as cluster:
                SwapLog(cluster).publish(self.step.to, current.cuts)

    def _cut(self, old: str, new: str) -> CutOver:
        """Readers of the old topic read it to its end, then go on behind what the new one holds of the same input."""
        node = PipelineNode(self.pipeline.bootstrap)
        names = [(self.folder.version(name).about() or {})["to"] for name in (old, new)]
        ends = [{partition: at for (_, partition), at in node.ends(name)} for name in names]
        for name, found in zip(names, ends, strict=True):
            if not found:
                raise NotReadyError(f"there is no topic {name} at {self.pipeline.bootstrap}")
        return CutOver(names[0], ends[0], names[1], ends[1], node.topic_id(names[1]))
