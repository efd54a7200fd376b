"""Compaction: what is left of a log has to say the same as the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.museum.exhibit import Replaced, exhibit, promise
from tests.unit.storage.compaction.test_cleaner import HOUR, TOPIC_ID, Bench

from duramen.storage.compaction import key_map
from duramen.storage.compaction.segment_rewrite import CleaningRules, SegmentCopy
from duramen.wire.batch import BatchHeader


def _short_digests(
    original: Callable[[bytes], Callable[[bytes], bytes]],
) -> Callable[[bytes], Callable[[bytes], bytes]]:
    """Digests of one byte: of 257 keys two have the same."""

    def digest_function(key: bytes) -> Callable[[bytes], bytes]:
        digest = original(key)
        return lambda data: digest(data)[:1] * 16

    return digest_function


@exhibit(
    "a-last-value-that-compaction-dropped",
    source="https://github.com/AutoMQ/automq/pull/3055",
    guard="the map of last offsets tells keys apart by a digest of 16 bytes",
    without=Replaced(key_map, "digest_function", _short_digests),
)
def dropped_value() -> None:
    """Compaction that takes one key for another removes values that nothing has replaced."""
    bench = Bench()
    keys = [b"key-%d" % number for number in range(1000)]
    for first in range(0, len(keys), 50):
        bench.put(*((key, b"the only one") for key in keys[first : first + 50]))
    bench.roll()
    bench.clean()
    gone = {*keys} - {key for _, key, _ in bench.left()}
    promise(not gone, f"nothing has replaced any of {len(keys)} values, so all are there ({len(gone)} are not)")


def _at_once(original: Callable[..., int]) -> property:
    return property(lambda rules: 0)


def _everything(original: Any) -> property:
    """Any tombstone lies behind it."""
    return property(lambda rules: -1)


def _as_if_mapped(original: Callable[..., Any]) -> Callable[..., Any]:
    """What is asked of the batch from here on is asked of a map that has had all of it."""

    def kept(copy: SegmentCopy, payload: bytes, header: BatchHeader) -> Any:
        found = original(copy, payload, header)
        copy._offsets.latest = max(copy._offsets.latest, header.last_offset)
        return found

    return kept


def _for_this_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    def filter_data(copy: SegmentCopy, *arguments: Any, **named: Any) -> Any:
        latest = copy._offsets.latest
        try:
            return original(copy, *arguments, **named)
        finally:
            copy._offsets.latest = latest

    return filter_data


def _slow_readers(cleaned_to: int | None) -> None:
    """A map has room for a few of a batch's tombstones. cleaned_to: what a checkpoint says, within that batch."""
    bench = Bench(dedupe_bytes=240)
    keys = [b"key-%d" % number for number in range(30)]
    bench.put(*((key, b"deleted") for key in keys))
    bench.put(*((key, None) for key in keys))
    bench.roll()
    if cleaned_to is not None:
        bench.directory.cleaner.cleaned[TOPIC_ID, 0] = cleaned_to
    seen_ms = dict.fromkeys(keys, bench.now)
    for number in range(40):
        bench.put((b"other", b"%d" % number))
        bench.roll()
        while (cleaning := bench.take()) is not None:
            bench.run(cleaning)
            left = {(key, value) for _, key, value in bench.left()}
            for key in keys:
                if (key, b"deleted") in left:
                    seen_ms[key] = bench.now
                promise(
                    (key, None) in left or bench.now >= seen_ms[key] + HOUR,
                    "who reads a deleted value and is through within delete.retention.ms meets its tombstone",
                )
            bench.now += HOUR // 4


@exhibit(
    "tombstones-gone-too-early",
    source="https://github.com/apache/kafka/pull/2251",
    guard="a tombstone's time is delete.retention.ms; it begins with a pass whose map had all of its batch, and whose "
    "maps before it all that the batch supersedes",
    without=Replaced(CleaningRules, "horizon", _at_once),
    also=(
        (Replaced(SegmentCopy, "_kept", _as_if_mapped), Replaced(SegmentCopy, "_filter_data", _for_this_batch)),
        Replaced(CleaningRules, "seen_from", _everything),
    ),
)
def early_tombstones() -> None:
    """Kafka could drop a tombstone before a slow reader had seen it: the reader kept the deleted value (KAFKA-4529)."""
    _slow_readers(None)
    _slow_readers(40)
