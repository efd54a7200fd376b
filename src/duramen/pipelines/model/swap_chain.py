"""Which topic of a chain of swaps a step reads: from where, and up to which cut. Depends on its arguments alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from duramen.errors import ConfigError
from duramen.pipelines.model.offsets import Offsets
from duramen.swaps import CutOver
from duramen.swaps.cut_overs import topics_of


class Reading(NamedTuple):
    """One topic of a chain, as a step reads it.

    start: where a new checkpoint begins, elsewhere at the earliest; until: the topic's cut, None where it has none.
    topic_id: of the topic that `start` is meant in, as text; nothing where it is not known.
    """

    generation: int
    topic: str
    start: Offsets
    until: Offsets | None
    topic_id: str = ""

    def beyond(self, ends: Offsets) -> int:
        """How many offsets below `ends` lie behind the cut."""
        return 0 if self.until is None else self.until.behind(ends.of(self.topic))

    def end(self, upto: Offsets | None) -> Offsets | None:
        """Where reading stops, at the cut or at `upto`, whichever comes first; None where neither is.

        An `upto` that does not name this topic lies in a later one.
        """
        if self.until is None or upto is None:
            return upto if self.until is None else self.until
        if not upto.of(self.topic):
            return self.until
        return Offsets({place: min(end, upto.end(*place)) for place, end in self.until})


def of_source(about: Mapping[str, Any], topic: str) -> Mapping[str, Any]:
    """What a version's folder tells of one source: where there are several, each has an entry of its own."""
    return next((each for each in about.get("sources", ()) if each["topic"] == topic), about)


def only_reading(step: str, topic: str, cuts: Sequence[CutOver], about: Mapping[str, Any]) -> Reading:
    """What a version reads of one of its several sources, to no cut.

    It cannot go on behind one: Spark keeps the offsets of all sources in one checkpoint, and rows that wait for
    another side of a join. ConfigError where the topic was swapped since the version began.
    """
    found, *after = readings(step, topic, cuts, of_source(about, topic))
    if after:
        raise ConfigError(
            f"{step} reads {found.topic} beside other sources, and {after[-1].topic} has taken its place: `duramen "
            "spark reprocess` builds a table from there; give a stream or an effect another name, and it begins there"
        )
    return found


def of_changes(step: str, source: str, prefix: str, current: str, about: Mapping[str, Any]) -> Reading:
    """What a version of a step reads of the changes of a table. ConfigError where the table was swapped since it began:
    the next version of a table counts its own versions.

    source: its name; prefix: see TableChanges; current: the version of the table's step; about: as of `readings`.
    """
    name = prefix + current
    before: str = of_source(about, source).get("reads", name)
    if before != name and before.startswith(prefix):
        raise ConfigError(
            f"{step} reads the changes of {before}, and {name} has taken its place: `duramen spark reprocess` builds a "
            "table from there; give a stream or an effect another name, and it begins there"
        )
    return Reading(0, name, Offsets(), None)


def readings(step: str, topic: str, cuts: Sequence[CutOver], about: Mapping[str, Any]) -> list[Reading]:
    """What a version of a step reads and will read: the topic that it is in, and those behind the cuts.

    about: what the version's folder tells. A version that began before a cut goes on behind it; one that begins after
    it reads all there is. ConfigError where it goes on behind more cuts than there are.
    """
    generation: int = about.get("generation", len(cuts))
    first: int = about.get("first_generation", generation)
    if generation > len(cuts):
        raise ConfigError(
            f"{step} goes on behind {generation} swaps of {topic}, and the node knows {len(cuts)}: is it "
            "another node? --bootstrap names the right one"
        )
    names = topics_of(topic, cuts)
    found = []
    for number in range(generation, len(names)):
        start, until, topic_id = Offsets(), None, ""
        if number > first:
            cut = cuts[number - 1]
            topic_id = cut.new_id
            start = Offsets({(cut.new, partition): at for partition, at in cut.start.items()})
        if number < len(cuts):
            until = Offsets({(names[number], partition): at for partition, at in cuts[number].until.items()})
        found.append(Reading(number, names[number], start, until, topic_id))
    return found
