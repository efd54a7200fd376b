"""What one task does: get the split's bytes, decode them, and know the difference between a gap and a loss."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from duramen.client import EARLIEST, LATEST, READ_COMMITTED, Cluster, FetchedBytes
from duramen.errors import DeadlineError, ErrorCode, KafkaError, NetworkError, TopicReplacedError
from duramen.model import NO_TOPIC_ID, TopicPartition, topic_id_from_text
from duramen.spark.codec.decode import Decoder, Range, RecordFilter, decode_together
from duramen.spark.codec.typed_values import TypedValues
from duramen.spark.source.data_loss import IS_GONE, lost, replaced
from duramen.spark.source.offset_ranges import GONE
from duramen.spark.source.plan import Split
from duramen.spark.source.settings import SourceSettings
from duramen.spark.source.storage_tasks import stored_bytes

_FIRST_FETCH_BYTES: Final = 1 << 20
_FIRST_SPLITS: Final = 256
"""So many small splits are asked about with one request."""
_FIRST_ANSWER_BYTES: Final = 8 << 20
_FIRST_PARTITION_BYTES: Final = 16 << 10
_TOGETHER_BYTES: Final = 1 << 20


def read_splits(splits: Sequence[Split], settings: SourceSettings, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the splits, one after the other, in batches of about a megabyte with exactly this schema.

    Raises DataLossError for offsets that are gone (unless failOnDataLoss is false), DeadlineError when nothing comes
    for kafkaConsumer.pollTimeoutMs, KafkaError CORRUPT_MESSAGE or INVALID_RECORD for damaged batches.
    """
    if not splits:
        return
    typed = TypedValues(settings.value_format, schema)
    with settings.connect() as cluster:
        if len(splits) == 1:
            found = _read(cluster, splits[0], settings, typed.raw_schema)
        else:
            found = _together(_read_many(cluster, splits, settings, typed.raw_schema))
        for batch in found:
            yield typed.convert(batch)


def _read_many(
    cluster: Cluster, splits: Sequence[Split], settings: SourceSettings, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """The rows of small splits: the first bytes of many come with one question, the rest of each with its own."""
    for start in range(0, len(splits), _FIRST_SPLITS):
        some = splits[start : start + _FIRST_SPLITS]
        first = _first_answers(cluster, some, settings)
        read: set[int] = set()
        for topic, group in itertools.groupby(some, lambda split: split.topic):
            whole = [split for split in group if (answer := first.get(split.tp)) and _is_all(answer, split)]
            try:
                yield from list(_decoded(topic, [(split, first[split.tp]) for split in whole], settings, schema))
                read.update(map(id, whole))
            except KafkaError:
                pass  # which of them it is of is found where each is decoded by itself
        for split in some:
            if id(split) not in read:
                yield from _read(cluster, split, settings, schema, first.get(split.tp))


def _is_all(answer: FetchedBytes, split: Split) -> bool:
    """Whether that is all of a small split, and nothing of it may have to be hidden."""
    small = len(answer.data) <= _TOGETHER_BYTES // 4
    return answer.offset == split.start and answer.next_offset >= split.end and small and not answer.aborted


def _decoded(
    topic: str, found: Sequence[tuple[Split, FetchedBytes]], settings: SourceSettings, schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    wanted = RecordFilter(0, 0, settings.key, settings.timestamps)
    ranges: list[Range] = []
    size = 0
    for number, (split, answer) in enumerate(found, 1):
        ranges.append(Range(split.partition, split.start, split.end, answer.data))
        size += len(answer.data)
        if size >= _TOGETHER_BYTES or number == len(found):
            yield from decode_together(topic, ranges, wanted, schema, settings.max_batch_bytes)
            ranges, size = [], 0


def _read(
    cluster: Cluster, split: Split, settings: SourceSettings, schema: pa.Schema, first: FetchedBytes | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one split; first: what was fetched from its start on, if it was."""
    wanted = RecordFilter(split.start, split.end, settings.key, settings.timestamps)
    decoder = Decoder(split.topic, split.partition, wanted, schema, settings.max_batch_bytes)
    if split.topic_id not in (NO_TOPIC_ID, *(topic_id_from_text(p.segment.topic_id) for p in split.pieces[:1])):
        split.pieces = ()  # planned while the topic was replaced: the fetch finds that out
    for stored in stored_bytes(cluster, split, settings, decoder):
        yield from decoder.decode(stored)
    answers = _Fetching(cluster, split, settings, decoder).answers()
    for fetched in answers if first is None else itertools.chain([first], answers):
        aborted = fetched.aborted if settings.isolation == READ_COMMITTED else None
        yield from decoder.decode(fetched.data, aborted)


def _first_answers(
    cluster: Cluster, splits: Sequence[Split], settings: SourceSettings
) -> dict[TopicPartition, FetchedBytes]:
    """The bytes from the start of each split on, fetched with one request per leader; nothing of those whose files are
    read, that are refused, or for which no room was left: each is asked for by itself then, and that finds the reason.
    """
    wanted: dict[TopicPartition, Split] = {}
    for split in splits:
        if not split.pieces:
            wanted.setdefault(split.tp, split)  # a second range of a partition is asked for by itself
    if len(wanted) < 2:
        return {}
    largest = 2 * max(split.size_hint for split in wanted.values())
    try:
        answers = cluster.fetch_many(
            {tp: split.start for tp, split in wanted.items()},
            min(settings.fetch_max_bytes, _FIRST_ANSWER_BYTES),
            settings.isolation,
            partition_max_bytes=min(max(largest, _FIRST_PARTITION_BYTES), settings.fetch_max_bytes),
            max_wait_ms=settings.fetch_max_wait_ms,
            topic_ids={split.topic: split.topic_id for split in splits if split.topic_id != NO_TOPIC_ID},
            timeout_s=settings.poll_timeout_s,
        )
    except (KafkaError, NetworkError, DeadlineError, TopicReplacedError):
        return {}
    return {tp: each for tp, each in answers.items() if isinstance(each, FetchedBytes) and each.data}


def _together(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in fewer batches, each of about a megabyte: every batch costs Spark as much as many rows."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= _TOGETHER_BYTES or len(waiting) >= _FIRST_SPLITS:
            yield from _one(waiting)
            waiting, size = [], 0
    if waiting:
        yield from _one(waiting)


def _one(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return pa.Table.from_batches(batches).combine_chunks().to_batches() if len(batches) > 1 else batches


class _Fetching:
    """Fetches from the decoder's next offset on until the split's end is behind it."""

    def __init__(self, cluster: Cluster, split: Split, settings: SourceSettings, decoder: Decoder) -> None:
        self._cluster = cluster
        self._split = split
        self._settings = settings
        self._decoder = decoder
        self._size = min(settings.fetch_max_bytes, max(_FIRST_FETCH_BYTES, split.size_hint))

    def answers(self) -> Iterator[FetchedBytes]:
        """Every answer with data in it."""
        patience = time.monotonic() + self._settings.poll_timeout_s
        while self._decoder.next_offset < self._split.end:
            fetched = self._fetch()
            if fetched is None:
                continue
            if fetched.data:
                yield fetched
                patience = time.monotonic() + self._settings.poll_timeout_s
                self._size = min(2 * self._size, self._settings.fetch_max_bytes)
            elif time.monotonic() > patience:
                self._nothing_came(fetched)

    def _fetch(self) -> FetchedBytes | None:
        """One answer; None after the decoder was moved behind what is lost."""
        offset = self._decoder.next_offset
        settings = self._settings
        try:
            return self._cluster.fetch(
                self._split.tp,
                offset,
                self._size,
                settings.isolation,
                max_wait_ms=settings.fetch_max_wait_ms,
                min_bytes=settings.fetch_min_bytes,
                topic_id=None if self._split.topic_id == NO_TOPIC_ID else self._split.topic_id,
                timeout_s=settings.poll_timeout_s,
            )
        except TopicReplacedError:
            if settings.fail_on_data_loss:
                replaced(self._split.topic, fail=True)
            self._lost_to_the_end(offset, "the topic was deleted and made anew since this was planned")
        except KafkaError as error:
            if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                self._out_of_range(offset)
                return None
            if error.code not in GONE:
                raise
            self._lost_to_the_end(offset, IS_GONE)
        except DeadlineError as error:
            if error.last is None or error.last.code not in GONE:
                raise
            self._lost_to_the_end(offset, IS_GONE)
        return None

    def _out_of_range(self, offset: int) -> None:
        tp = self._split.tp
        first = self._cluster.list_offsets({tp: EARLIEST})[tp].offset
        if first > offset:
            behind = min(first, self._split.end)
            reason = f"the log starts at offset {first}"
            lost(tp, offset, behind, reason, fail=self._settings.fail_on_data_loss)
            self._decoder.skip_to(behind)
            return
        last = self._cluster.list_offsets({tp: LATEST}, self._settings.isolation)[tp].offset
        if last < offset:
            self._lost_to_the_end(offset, f"the log ends at offset {last}; it was cut off or made anew")

    def _lost_to_the_end(self, offset: int, reason: str) -> None:
        lost(self._split.tp, offset, self._split.end, reason, fail=self._settings.fail_on_data_loss)
        self._decoder.skip_to(self._split.end)

    def _nothing_came(self, fetched: FetchedBytes) -> None:
        committed = self._settings.isolation == READ_COMMITTED
        end = fetched.last_stable_offset if committed else fetched.high_watermark
        raise DeadlineError(
            f"{self._split.tp}: no records from offset {self._decoder.next_offset} on in "
            f"{self._settings.poll_timeout_s:g} s; the split ends at {self._split.end}, the readable log at {end}"
        )
