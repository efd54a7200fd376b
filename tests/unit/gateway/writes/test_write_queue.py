"""Writes of a partition leave in order, each once, with one batch under way and none that is too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from duramen.gateway.writes.write_queue import WriteQueue

MAX = 100


@given(st.lists(st.one_of(st.integers(1, 150), st.sampled_from(["take", "settle", "part", "withdraw"])), max_size=60))
def test_any_course(steps: list[int | str]) -> None:
    queue: WriteQueue[list[int]] = WriteQueue(MAX)
    sizes: dict[int, int] = {}
    waiting: list[int] = []
    settled: list[int] = []
    alone: set[int] = set()
    batch: list[list[int]] = []
    for step in steps:
        if isinstance(step, int):
            number = len(sizes)
            sizes[number] = step
            waiting.append(number)
            queue.put([number], step)
        elif step == "take":
            taken = queue.take()
            if batch:
                assert taken == []
                continue
            batch = taken
            assert bool(batch) == bool(waiting)
            numbers = [number for (number,) in batch]
            assert numbers == waiting[: len(numbers)]
            assert len(numbers) <= 1 or (sum(sizes[each] for each in numbers) <= MAX and not alone & {*numbers})
            del waiting[: len(numbers)]
            if waiting and numbers and not alone & {numbers[0], waiting[0]}:  # nothing that had room stayed
                assert sum(sizes[each] for each in [*numbers, waiting[0]]) > MAX
        elif step == "settle" and batch:
            queue.settle()
            settled += [number for (number,) in batch]
            batch = []
        elif step == "part" and batch:
            queue.part([(write, sizes[write[0]]) for write in batch])
            waiting[:0] = [number for (number,) in batch]
            alone |= {number for (number,) in batch}
            batch = []
        elif step == "withdraw" and waiting:
            write = next(each.write for each in queue._waiting if each.write[0] == waiting[-1])
            assert queue.withdraw(write)
            assert not queue.withdraw(write)
            waiting.pop()
        assert queue.idle == (not batch and not waiting)
    assert settled == sorted(set(settled))
