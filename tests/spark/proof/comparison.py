"""Fills the topics of a pipeline, and compares what a run made of them with the plain computation, row for row."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from proof import made_records as made
from proof import plain_computation as plain
from proof.made_records import PARTITIONS, Record
from proof.plain_computation import Row
from proof.three_pipelines import PAGES, SENT
from proof.watermark_rule import Times, unexplained, watermarks
from sink_lab import create_topic, read_all

from duramen.client import Cluster
from duramen.model import TopicPartition
from duramen.pipelines import Pipeline, open_table
from duramen.pipelines.model import dead_letter
from duramen.pipelines.model.folders import StepFolder, batch_end, batches
from duramen.pipelines.model.late_rows import counted
from duramen.wire.batch import build_batch

FILL: Final = 50
"""Records of a batch of the log."""
MADE: Final[Mapping[str, Callable[[int, int], list[Record]]]] = {
    "shop": made.shop,
    "clicks": made.clicks,
    "joins": made.joins,
}
Restarts = Mapping[str, Sequence[int]]
"""By the step, the batches with which its query began again."""
Counted = Mapping[int, int | None]
"""By the number of a batch, how many rows or records a run has said that it counted."""


def fill(bootstrap: str, records: Sequence[Record]) -> None:
    """Make the topics and write the records where they say they are."""
    for topic in dict.fromkeys(record.topic for record in records):
        create_topic(bootstrap, topic, PARTITIONS, {"retention.ms": "-1"})
    places: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        places.setdefault(record[:2], []).append(record)
    with Cluster(bootstrap) as cluster:
        for (topic, partition), found in places.items():
            for first in range(0, len(found), FILL):
                rows = [(each.key, each.value, each.headers, each.time_ms) for each in found[first : first + FILL]]
                at = cluster.produce(TopicPartition(topic, partition), build_batch(rows)).base_offset
                assert at == found[first].offset, "a record is where it says"


def check(pipeline: Pipeline, records: Sequence[Record], restarts: Restarts | None = None) -> str:
    """Compare all that the pipeline made, and say what that was. AssertionError where something differs.

    restarts: None where they are not known; the watermarks are then those of some.
    """
    return _CHECKS[pipeline.name](pipeline, records, restarts)


def _shop(pipeline: Pipeline, records: Sequence[Record], _: Restarts | None) -> str:
    orders, customers = plain.latest_orders(records), plain.latest_customers(records)
    same("latest", rows_of(pipeline, "latest"), orders.rows.values())
    same("customers", rows_of(pipeline, "customers"), customers.values())
    history = list(plain.customer_history(records))
    same("every_customer", rows_of(pipeline, "every_customer"), history)
    written = list(_records_of(pipeline.bootstrap, SENT))
    same(SENT, written, plain.sent_orders(records))
    letters = list(_letters_of(pipeline, "latest"))
    same(pipeline.dead_letters, letters, plain.dead_orders(records))
    told = f"{len(orders.rows)} orders, {len(letters)} dead letters, {len(written)} sent"
    return f"{told}, {len(customers)} customers, {len(history)} with every version"


def _clicks(pipeline: Pipeline, records: Sequence[Record], restarts: Restarts | None) -> str:
    said = []
    for step in ("visits", "closed"):
        cut = batches_of(pipeline, step, records)
        times = [plain.click_times(batch) for batch in cut]
        found = plain.windows(cut, _watermarks(pipeline, step, times, plain.CLICK_DELAYS_MS, restarts))
        expected = found.counted if step == "visits" else found.closed
        same(step, rows_of(pipeline, step), expected.values())
        _same_late(pipeline, step, found.late_groups)
        said.append(f"{step} has {len(expected)} windows, {sum(found.late_rows)} clicks were late")
    checkpoint = checkpoint_of(pipeline, "pages")
    ends = [dict(batch_end(checkpoint, batch)) for batch in range(batches(checkpoint))]
    counts: dict[str, list[int]] = {}
    for row in _records_of(pipeline.bootstrap, PAGES):
        assert row["key"] == row["page"].encode()
        counts.setdefault(row["page"], []).append(row["clicks"])
    expected_counts = plain.page_counts(plain.cut(records, ends))
    assert counts == expected_counts, f"pages: {counts} instead of {expected_counts}"
    return "; ".join(said)


def _joins(pipeline: Pipeline, records: Sequence[Record], restarts: Restarts | None) -> str:
    expected = plain.paid_orders(records)
    rows = [{**row, "also": _plain(row["_also"])} for row in rows_of(pipeline, "paid")]
    same("paid", rows, expected.values())
    cut = batches_of(pipeline, "outcome", records)
    times = [plain.outcome_times(batch) for batch in cut]
    found = plain.outcomes(cut, _watermarks(pipeline, "outcome", times, plain.OUTCOME_DELAYS_MS, restarts))
    outcomes = ({"order_id": order, "payment_id": payment} for order, payment in found.rows.elements())
    same("outcome", rows_of(pipeline, "outcome"), outcomes)
    _same_late(pipeline, "outcome", found.late)
    return f"{len(expected)} paid, {found.rows.total()} outcomes, {sum(found.late)} late"


_CHECKS: Final[Mapping[str, Callable[[Pipeline, Sequence[Record], Restarts | None], str]]] = {
    "shop": _shop,
    "clicks": _clicks,
    "joins": _joins,
}


def check_counts(pipeline: Pipeline, records: Sequence[Record], step: str, said: Counted) -> None:
    """AssertionError unless a run said of each batch how many records are dead letters, or rows came too late."""
    cut = batches_of(pipeline, step, records)
    if step == "latest":
        expected = [len(plain.latest_orders(batch).dead) for batch in cut]
    else:
        late = plain.outcomes if step == "outcome" else plain.windows
        found = late(cut, _told_watermarks(pipeline, step))
        expected = found.late if isinstance(found, plain.Outcomes) else found.late_groups
    wrong = {batch: (count, expected[batch]) for batch, count in said.items() if count != expected[batch]}
    assert not wrong, f"{step}: counted by a run, and as it is, by batch: {wrong}"


def rows_of(pipeline: Pipeline, step: str) -> list[Row]:
    """The rows that a reader of the table sees."""
    rows: list[Row] = open_table(pipeline, step).rows().to_pylist()
    return rows


def batches_of(pipeline: Pipeline, step: str, records: Iterable[Record]) -> list[list[Record]]:
    """The records of each batch, as the table's commits say how the log was cut."""
    commits = open_table(pipeline, step).commits()
    assert [commit.batch for commit in commits] == list(range(len(commits))), f"{step}: a batch is there twice, or not"
    return plain.cut(records, [dict(commit.offsets) for commit in commits])


def same(what: str, found: Iterable[Row], expected: Iterable[Row]) -> None:
    """AssertionError unless both have the same rows equally often; columns that none is expected of are left out."""
    wanted = Counter(frozenset(row.items()) for row in expected)
    names = {name for row in wanted for name, _ in row}
    there = Counter(frozenset((name, row[name]) for name in names) for row in found)
    lost, more = wanted - there, there - wanted
    both = (("-", lost), ("+", more))
    told = [f"{sign} {count} {dict(sorted(row))}" for sign, rows in both for row, count in rows.items()]
    assert not told, f"{what}: {lost.total()} rows are missing, {more.total()} are too many:\n" + "\n".join(told[:20])


def checkpoint_of(pipeline: Pipeline, step: str) -> Path:
    """Spark's of the step; nobody swaps these."""
    return pipeline.folder / step / "v1" / "checkpoint-0"


def _watermarks(
    pipeline: Pipeline, step: str, times: Sequence[Times], delays_ms: Mapping[str, int], restarts: Restarts | None
) -> list[int]:
    """The watermark of each batch by Spark's log of them, which is that of the rule."""
    found = _told_watermarks(pipeline, step)
    assert len(found) == len(times), f"{step}: Spark has planned {len(found)} batches, the table has {len(times)}"
    if restarts is not None:
        by_rule = watermarks(times, delays_ms, restarts[step])
        assert found == by_rule, f"{step}, begun again with {restarts[step]}: {found}; by the rule {by_rule}"
    wrong = unexplained(found, times, delays_ms)
    assert not wrong, f"{step}: the watermark of batch {wrong} comes of no restarts: {found}"
    return found


def _told_watermarks(pipeline: Pipeline, step: str) -> list[int]:
    places = (checkpoint_of(pipeline, step) / "offsets").glob("[0-9]*")
    texts = {int(place.name): place.read_text().splitlines()[1] for place in places}
    return [json.loads(text)["batchWatermarkMs"] for _, text in sorted(texts.items())]


def _same_late(pipeline: Pipeline, step: str, expected: Sequence[int]) -> None:
    late = counted(StepFolder(pipeline.folder, step).version("v1"))
    assert late is not None, f"{step}: no late rows are counted"
    assert (late.total, late.uncounted) == (sum(expected), 0), f"{step}: {late}, expected {expected}"


def _plain(also: str) -> str:
    """The records of `_also` without zeros in front."""
    return re.sub(r"-0*(\d+)@0*(\d+)", r"-\1@\2", also)


def _records_of(bootstrap: str, topic: str) -> Iterator[Row]:
    for records in read_all(bootstrap, topic).values():
        for record in records:
            value = json.loads(record.value or b"null")
            yield {**value, "key": record.key, "headers": tuple(record.headers), "time_ms": record.timestamp}


def _letters_of(pipeline: Pipeline, step: str) -> Iterator[Row]:
    for records in read_all(pipeline.bootstrap, pipeline.dead_letters).values():
        for record in records:
            own = tuple((name, content) for name, content in record.headers if b"dlq." not in name)
            said = {name.decode(): (content or b"").decode() for name, content in record.headers[len(own) :]}
            assert said[dead_letter.GROUP] == f"{pipeline.name}.{step}"
            yield {
                "key": record.key,
                "value": record.value,
                "own": own,
                "place": (said[dead_letter.TOPIC], said[dead_letter.PARTITION], said[dead_letter.OFFSET]),
                "why": said[dead_letter.REASON],
            }
