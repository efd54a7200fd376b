"""What one task does: get the split's bytes, decode them, and know the difference between a gap and a loss."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from duramen.client import EARLIEST, LATEST, READ_COMMITTED, Cluster, FetchedBytes
from duramen.errors import DeadlineError, ErrorCode, KafkaError, TopicReplacedError
from duramen.model import NO_TOPIC_ID, topic_id_from_text
from duramen.spark.codec.decode import Decoder, RecordFilter
from duramen.spark.codec.typed_values import TypedValues
from duramen.spark.source.data_loss import IS_GONE, lost, replaced
from duramen.spark.source.offset_ranges import GONE
from duramen.spark.source.plan import Split
from duramen.spark.source.settings import SourceSettings
from duramen.spark.source.storage_tasks import stored_bytes

_FIRST_FETCH_BYTES: Final = 1 << 20


def read_split(split: Split, settings: SourceSettings, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of the split, in batches of about a megabyte with exactly this schema.

    Raises DataLossError for offsets that are gone (unless failOnDataLoss is false), DeadlineError when nothing comes
    for kafkaConsumer.pollTimeoutMs, KafkaError CORRUPT_MESSAGE or INVALID_RECORD for damaged batches.
    """
    typed = TypedValues(settings.value_format, schema)
    wanted = RecordFilter(split.start, split.end, settings.key, settings.timestamps)
    decoder = Decoder(split.topic, split.partition, wanted, typed.raw_schema, settings.max_batch_bytes)
    with settings.connect() as cluster:
        if split.topic_id not in (NO_TOPIC_ID, *(topic_id_from_text(p.segment.topic_id) for p in split.pieces[:1])):
            split.pieces = ()  # planned while the topic was replaced: the fetch finds that out
        for stored in stored_bytes(cluster, split, settings, decoder):
            for batch in decoder.decode(stored):
                yield typed.convert(batch)
        for fetched in _Fetching(cluster, split, settings, decoder).answers():
            aborted = fetched.aborted if settings.isolation == READ_COMMITTED else None
            for batch in decoder.decode(fetched.data, aborted):
                yield typed.convert(batch)


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
