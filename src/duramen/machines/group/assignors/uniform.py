"""The uniform assignor: every member as many partitions as any other, over all topics, and what it has stays with it.

Four steps, the same for equal and for different subscriptions. *Keep*: who has a partition and still subscribes to its
topic has it. *Fill*: what no member has goes to the subscriber with least. *Level*: from the member with most to the
subscriber with least, while they differ by two or more. *Pass on*: where subscriptions differ, one with too much may
share no topic with one that has too little, but be joined to it by others; then each of the chain gives to the next.

At the end no chain of moves makes the loads more even. A partition is moved only by the last two steps, each of which
makes them more even: an assignment that is even already comes back as it was.
"""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import Final

from duramen.machines.group.assignors.specification import Assignment, GroupSpec, Owned, PartitionCounts
from duramen.model import TopicId

MOST_LOOKS: Final = 20_000_000
"""Members looked at in search of chains before it is left at what is reached, complete and nearly even: seconds."""

_NOBODY: Final = -1


def assign_uniformly(spec: GroupSpec, partitions: PartitionCounts) -> Assignment:
    """Every partition of every topic somebody subscribes to, with one owner each."""
    work = _Work(spec, partitions)
    work.keep()
    work.fill()
    work.level()
    work.pass_on()
    return work.assignment()


class _Audience:
    """Topics with the same subscribers. waiting: (load, member), least first; entries of other loads are stale."""

    __slots__ = ("members", "waiting")

    def __init__(self, members: list[int]) -> None:
        self.members = members
        self.waiting: list[tuple[int, int]] = []


class _Work:
    """One assignment in the making. Members are numbers here, in the order of their ids."""

    def __init__(self, spec: GroupSpec, partitions: PartitionCounts) -> None:
        self._ids = sorted(spec.members)
        self._members = [spec.members[member_id] for member_id in self._ids]
        self._loads = [0] * len(self._ids)
        self._held: list[dict[TopicId, list[int]]] = [{} for _ in self._ids]
        """Per topic what a member has: first what it had before, then what is new, which is given away first."""
        subscribers: dict[TopicId, list[int]] = {}
        for index, member in enumerate(self._members):
            for topic_id in member.topic_ids:
                if partitions.get(topic_id, 0) > 0:
                    subscribers.setdefault(topic_id, []).append(index)
        audiences: dict[tuple[int, ...], _Audience] = {}
        self._audiences: dict[TopicId, _Audience] = {}
        for topic_id in sorted(subscribers, key=lambda topic_id: (len(subscribers[topic_id]), topic_id)):
            who = subscribers[topic_id]
            self._audiences[topic_id] = audiences.setdefault(tuple(who), _Audience(who))
        self._audiences_of: list[list[_Audience]] = [[] for _ in self._ids]
        for audience in audiences.values():
            for index in audience.members:
                self._audiences_of[index].append(audience)
        self._owners = {topic_id: [_NOBODY] * partitions[topic_id] for topic_id in self._audiences}

    def keep(self) -> None:
        """Let every member have what it has, as far as it may; of two that claim one partition, the first."""
        for index, member in enumerate(self._members):
            for topic_id in sorted(member.owned):
                owners = self._owners.get(topic_id)
                if owners is None or topic_id not in member.topic_ids:
                    continue
                mine = []
                for partition in member.owned[topic_id]:
                    if 0 <= partition < len(owners) and owners[partition] == _NOBODY:
                        owners[partition] = index
                        mine.append(partition)
                if mine:
                    self._held[index][topic_id] = mine
                    self._loads[index] += len(mine)

    def fill(self) -> None:
        """Give what no member has to the subscriber with least, beginning where the choice is smallest."""
        loads = self._loads
        self._wait_anew()
        for topic_id, audience in self._audiences.items():
            waiting = audience.waiting
            for partition, owner in enumerate(self._owners[topic_id]):
                if owner != _NOBODY:
                    continue
                load, index = heappop(waiting)
                while load != loads[index]:  # it got some of another topic meanwhile
                    heappush(waiting, (loads[index], index))
                    load, index = heappop(waiting)
                self._held[index].setdefault(topic_id, []).append(partition)
                loads[index] = load + 1
                heappush(waiting, (load + 1, index))

    def level(self) -> None:
        """Move single partitions from who has most to the subscriber with least, while that makes them more even."""
        self._wait_anew()
        richest = [(-load, index) for index, load in enumerate(self._loads)]
        heapify(richest)
        while richest:
            negative, index = heappop(richest)
            if -negative != self._loads[index]:
                continue  # it has given or got some since; then there is an entry of its new load
            best: tuple[int, int] | None = None
            for wanted, held in self._held[index].items():
                if held:
                    load, candidate = self._poorest(self._audiences[wanted])
                    price = load, self._price(index, wanted)
                    if best is None or price < best:
                        best, poorest, topic_id = price, candidate, wanted
            if best is None or best[0] > self._loads[index] - 2:
                continue
            self._move(index, poorest, topic_id)
            self._loads[index] -= 1
            self._loads[poorest] += 1
            for changed in (index, poorest):
                heappush(richest, (-self._loads[changed], changed))
                for audience in self._audiences_of[changed]:
                    heappush(audience.waiting, (self._loads[changed], changed))

    def pass_on(self) -> None:
        """Move partitions along chains, from the highest loads down.

        Whoever a search for a chain comes upon without success is settled: nothing that those members have can go to
        anybody with less, and what others have would not make them more even.
        """
        unsettled = set(range(len(self._ids)))
        looks = 0
        while unsettled and looks < MOST_LOOKS:
            most = max(self._loads[index] for index in unsettled)
            if most - min(self._loads[index] for index in unsettled) < 2:
                return
            comes_from, end = self._chain(
                [index for index in sorted(unsettled) if self._loads[index] == most], unsettled
            )
            looks += len(comes_from)
            if end is None:
                unsettled.difference_update(comes_from)
                continue
            self._loads[end] += 1
            link = comes_from[end]
            while link is not None:
                giver, topic_id = link
                self._move(giver, end, topic_id)
                end = giver
                link = comes_from[end]
            self._loads[end] -= 1

    def _chain(
        self, richest: list[int], unsettled: set[int]
    ) -> tuple[dict[int, tuple[int, TopicId] | None], int | None]:
        """The cheapest chain to a member with at least two less: who gets what from whom, and its last member."""
        comes_from: dict[int, tuple[int, TopicId] | None] = dict.fromkeys(richest)
        prices = dict.fromkeys(richest, 0)
        enough = self._loads[richest[0]] - 2
        reached: dict[int, int] = {}
        ahead = deque((0, index) for index in richest)
        while ahead:
            so_far, giver = ahead.popleft()
            if so_far > prices[giver]:
                continue
            if self._loads[giver] <= enough:
                return comes_from, giver
            for topic_id, held in self._held[giver].items():
                if not held:
                    continue
                audience = self._audiences[topic_id]
                price = so_far + self._price(giver, topic_id)
                if price >= reached.get(id(audience), price + 1):
                    continue
                reached[id(audience)] = price
                for index in audience.members:
                    if index in unsettled and price < prices.get(index, price + 1):
                        prices[index] = price
                        comes_from[index] = giver, topic_id
                        if price == so_far:
                            ahead.appendleft((price, index))
                        else:
                            ahead.append((price, index))
        return comes_from, None

    def _price(self, giver: int, topic_id: TopicId) -> int:
        """What it costs to let a partition go: nothing if it is new to who gives it, else a move."""
        return int(self._owners[topic_id][self._held[giver][topic_id][-1]] == giver)

    def assignment(self) -> Assignment:
        """What every member has now; where nothing has changed, the very mapping that it came with."""
        return {
            member_id: self._settled(held, member.owned)
            for member_id, held, member in zip(self._ids, self._held, self._members, strict=True)
        }

    @staticmethod
    def _settled(held: dict[TopicId, list[int]], owned: Owned) -> Owned:
        present = {topic_id: tuple(sorted(held[topic_id])) for topic_id in sorted(held) if held[topic_id]}
        return owned if present == owned else present

    def _wait_anew(self) -> None:
        for audience in dict.fromkeys(self._audiences.values()):
            audience.waiting = [(self._loads[index], index) for index in audience.members]
            heapify(audience.waiting)

    def _poorest(self, audience: _Audience) -> tuple[int, int]:
        waiting = audience.waiting
        while waiting[0][0] != self._loads[waiting[0][1]]:
            heappop(waiting)
        return waiting[0]

    def _move(self, giver: int, taker: int, topic_id: TopicId) -> None:
        self._held[taker].setdefault(topic_id, []).append(self._held[giver][topic_id].pop())
