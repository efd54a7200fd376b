"""What to commit where somebody sets a group to other offsets, so that readers of a chain go on there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from duramen.swaps.cut_overs import Committed, CutOver, Where, beginning, topics_of, written_down


def chain_with(chains: Mapping[str, Sequence[CutOver]], topic: str) -> tuple[str, Sequence[CutOver]] | None:
    """The chain that a topic is in, with the name that people know it by; of several its own."""
    for first in (topic, *chains):
        if topic in topics_of(first, chains.get(first, ())) and chains.get(first):
            return first, chains[first]
    return None


def reset_commits(
    chains: Mapping[str, Sequence[CutOver]], committed: Mapping[Where, Committed], wanted: Mapping[Where, int]
) -> dict[Where, Committed]:
    """Commits that set a group to the offsets `wanted`.

    chains: all that the node knows; committed: all that the group has. A topic of a chain is meant where it stands last
    in it; what the group has committed behind that is passed over. Where several topics of a chain are set, the last
    one counts. Topics that were never swapped get their offset and nothing else.
    """
    found: dict[Where, Committed] = {}
    places: dict[tuple[str, int], int] = {}
    for (topic, partition), offset in wanted.items():
        chain = chain_with(chains, topic)
        if chain is None:
            found[(topic, partition)] = Committed(offset)
            continue
        names = topics_of(*chain)
        generation = max(number for number, name in enumerate(names) if name == topic)
        began = min(generation, beginning(*chain, committed))
        found[(topic, partition)] = Committed(offset, generation, began)
        place = (chain[0], partition)
        places[place] = max(generation, places.get(place, 0))
    for (first, partition), generation in places.items():
        found |= written_down(first, chains[first], {**committed, **found}, partition, generation)
    return found
