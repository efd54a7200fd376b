"""What is computed from offsets and bytes alone: splits, limits of a micro-batch, the JSON of a checkpoint."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.client import EARLIEST, LATEST
from duramen.client.protocol.list_offsets import ListedOffset
from duramen.errors import ConfigError
from duramen.model import TopicPartition
from duramen.spark.options.options import BATCH, parse
from duramen.spark.options.positions import from_json, to_json
from duramen.spark.source.admission import by_bytes, by_offsets, byte_shares
from duramen.spark.source.byte_curve import ByteCurve
from duramen.spark.source.offset_ranges import OffsetRanges
from duramen.spark.source.plan import Cutting, Split, packed, splits, splits_of

A, B = TopicPartition("a", 0), TopicPartition("b", 3)
BOUNDS = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)).map(sorted)


@settings(deadline=None)
@given(
    first=BOUNDS,
    second=BOUNDS,
    sizes=st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
    target=st.integers(10**5, 10**8),
    least=st.one_of(st.none(), st.integers(1, 50)),
    widest=st.one_of(st.none(), st.integers(10**4, 10**6)),
)
def test_splits_cover_every_offset_once_and_in_order(
    first: list[int], second: list[int], sizes: tuple[int, int], target: int, least: int | None, widest: int | None
) -> None:
    start, end = {A: first[0], B: second[0]}, {A: first[1], B: second[1]}
    curves = {tp: ByteCurve.even(start[tp], end[tp], size) for tp, size in zip((A, B), sizes, strict=True)}
    made = splits(start, end, curves, Cutting(target, least, widest))
    for tp in (A, B):
        bounds = [(split.start, split.end) for split in made if split.tp == tp]
        if start[tp] == end[tp]:
            assert bounds == []
            continue
        assert bounds[0][0] == start[tp]
        assert bounds[-1][1] == end[tp]
        assert all(before[1] == behind[0] for before, behind in itertools.pairwise(bounds))
        assert all(low < high for low, high in bounds)
        if widest is not None:
            assert all(high - low <= widest for low, high in bounds)


def test_splits_follow_bytes_and_not_offsets() -> None:
    """The first thousand offsets hold nearly everything."""
    curve = ByteCurve([0, 1000, 100_000], [0, 900 << 20, 1000 << 20])
    made = splits({A: 0}, {A: 100_000}, {A: curve}, Cutting(100 << 20))
    assert len(made) == 10
    assert [split.end for split in made if split.end <= 1000] == [111, 222, 333, 444, 555, 666, 777, 888, 1000]
    assert all(80 << 20 < split.size_hint < 120 << 20 for split in made)


def test_min_partitions_cuts_what_is_small() -> None:
    made = splits({A: 0, B: 0}, {A: 900, B: 100}, {}, Cutting(64 << 20, min_partitions=10))
    assert [sum(1 for split in made if split.tp == tp) for tp in (A, B)] == [9, 1]


@settings(deadline=None)
@given(
    sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=300),
    target=st.integers(10**5, 10**8),
    least=st.one_of(st.none(), st.integers(1, 50)),
    widest=st.one_of(st.none(), st.integers(10, 200)),
    cores=st.integers(1, 4),
)
def test_packs_hold_every_split_once_and_in_order(
    sizes: list[int], target: int, least: int | None, widest: int | None, cores: int
) -> None:
    made = [Split("t", number, 5, 6 + number % 10, size) for number, size in enumerate(sizes)]
    cutting = Cutting(target, least, widest)
    tasks = packed(made, cutting, cores)
    assert [split for task in tasks for split in splits_of(task)] == made
    assert len(tasks) >= min(least or 0, len(made))
    for task in tasks:
        held = splits_of(task)
        assert widest is None or len(held) == 1 or sum(each.end - each.start for each in held) <= widest
    bytes_each = sum(each.size_hint or 1024 * (each.end - each.start) for each in made) + 4096 * len(made)
    if widest is None and least is None:
        assert len(tasks) <= max(4 * cores, -(-bytes_each // target))


@pytest.mark.parametrize(
    ("partitions", "size", "cutting", "tasks"),
    [
        (1000, 2000, Cutting(64 << 20), 8),
        (4, 2000, Cutting(64 << 20), 4),
        (8, 2000, Cutting(64 << 20), 8),
        (1000, 1 << 20, Cutting(64 << 20), 16),
        (1000, 64 << 20, Cutting(64 << 20), 1000),
        (1000, 2000, Cutting(64 << 20, min_partitions=100), 100),
        (1000, 2000, Cutting(64 << 20, max_records=100), 200),
    ],
)
def test_small_ranges_are_packed_into_few_tasks(partitions: int, size: int, cutting: Cutting, tasks: int) -> None:
    """Of 20 records each, on two cores."""
    found = packed([Split("t", number, 0, 20, size) for number in range(partitions)], cutting, 2)
    assert len(found) == tasks
    held = [len(splits_of(task)) for task in found]
    assert max(held) <= min(held) + 1 or cutting.max_records


@settings(deadline=None)
@given(
    waiting=st.lists(st.integers(0, 10**12), min_size=1, max_size=20),
    most=st.integers(1, 10**12),
)
def test_a_limit_of_offsets_is_met_exactly_and_shared_fairly(waiting: list[int], most: int) -> None:
    tps = [TopicPartition("t", number) for number in range(len(waiting))]
    start = dict.fromkeys(tps, 5)
    end = {tp: 5 + size for tp, size in zip(tps, waiting, strict=True)}
    cut = by_offsets(start, end, most)
    taken = [cut[tp] - 5 for tp in tps]
    assert sum(taken) == min(most, sum(waiting))
    assert all(0 <= part <= size for part, size in zip(taken, waiting, strict=True))
    total, count = sum(waiting), len([size for size in waiting if size])
    if total > most >= count:
        share = (most - count) / (total - count)
        pairs = [(part - 1, size - 1) for part, size in zip(taken, waiting, strict=True) if size]
        assert all(part >= 0 and abs(part - share * size) <= 1.001 for part, size in pairs)
    elif total > most:
        assert max(taken) == 1


@pytest.mark.parametrize(("most", "batches"), [(1000, 1), (2, 1), (1, 2)])
def test_few_records_do_not_wait_for_ever_beside_many(most: int, batches: int) -> None:
    """A partition whose records come as fast as they are read left the one record of another where it was."""
    at, end = {A: 7, B: 0}, {A: 8, B: 10**6}
    for _ in range(batches):
        assert at[A] == 7
        at = by_offsets(at, end, most)
        end[B] += most
    assert at[A] == 8


def test_a_log_that_got_shorter_keeps_its_end() -> None:
    assert by_offsets({A: 100, B: 0}, {A: 40, B: 1000}, 10) == {A: 40, B: 10}


@settings(deadline=None)
@given(most=st.integers(1, 10**9), size=st.integers(0, 10**9))
def test_a_limit_of_bytes_is_about_met_and_always_goes_on(most: int, size: int) -> None:
    curve = ByteCurve.even(0, 10_000, size)
    start, end = {A: 0, B: 7}, {A: 10_000, B: 7}
    cut = by_bytes(start, end, byte_shares(start, end, most, {A: curve}), {A: curve})
    assert 0 < cut[A] <= 10_000
    assert cut[B] == 7
    assert curve.between(0, cut[A]) <= most + size // 10_000 + 2


@settings(deadline=None)
@given(points=st.lists(st.tuples(st.integers(1, 1000), st.integers(0, 1000)), min_size=1, max_size=20), data=st.data())
def test_a_curve_is_monotone_and_reaches_what_it_promises(points: list[tuple[int, int]], data: st.DataObject) -> None:
    offsets, positions = [0], [0]
    for step, size in points:
        offsets.append(offsets[-1] + step)
        positions.append(positions[-1] + size)
    curve = ByteCurve(offsets, positions)
    start = data.draw(st.integers(0, offsets[-1]))
    end = data.draw(st.integers(start, offsets[-1] + 500))
    assert curve.between(start, end) >= 0
    if end > start:
        reached = curve.reach(start, end, data.draw(st.integers(0, 2000)))
        assert start < reached <= end
        cuts = curve.cuts(start, end, data.draw(st.integers(1, 30)))
        assert cuts == sorted(set(cuts))
        assert all(start < cut < end for cut in cuts)


def test_offsets_are_the_json_of_sparks_kafka_source() -> None:
    positions = {TopicPartition("b", 0): 7, TopicPartition("a", 10): 5, TopicPartition("a", 2): 4}
    assert to_json(positions) == {"a": {"2": 4, "10": 5}, "b": {"0": 7}}
    assert from_json(to_json(positions)) == positions
    with pytest.raises(ConfigError, match="none of a Kafka source"):
        from_json({"logOffset": 5})


class OneView:
    """A cluster whose logs grow and are cut between any two questions; counts these."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def list_offsets(self, wanted: dict[TopicPartition, int], isolation: int) -> dict[TopicPartition, ListedOffset]:
        self.asked += set(wanted.values())
        return {tp: ListedOffset(len(self.asked), -1, 0) for tp in wanted}


def test_what_one_plan_decides_is_decided_by_one_view_of_starts_and_ends() -> None:
    cluster = OneView()
    options = parse({"kafka.bootstrap.servers": "h:1", "subscribe": "t"}, BATCH)
    ranges = OffsetRanges(cluster, options, 0)  # type: ignore[arg-type]
    tps = [TopicPartition("t", number) for number in range(3)]
    assert ranges.latest(tps[:2]) == ranges.end(tps[:2]) == dict.fromkeys(tps[:2], 1)
    assert ranges.start(tps[:2], EARLIEST) == ranges.earliest(tps[:2]) == dict.fromkeys(tps[:2], 2)
    assert cluster.asked == [LATEST, EARLIEST]
    assert ranges.latest(tps) == {tps[0]: 1, tps[1]: 1, tps[2]: 3}  # only the one that is new is asked for
