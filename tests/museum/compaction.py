"""Compaction: what is left of a log has to say the same as the log."""

from __future__ import annotations

from collections.abc import Callable

from tests.scenarios.compaction_world import History

from duramen.storage import offset_map
from duramen.storage.cleaning import Rules
from museum.exhibit import Replaced, exhibit, promise


def live(seeds: range) -> None:
    """Random histories of compacted logs without crashes; each is compared with a model as it goes."""
    for seed in seeds:
        history = History(seed, crashes=False)
        try:
            history.run(100)
            history.settle()
        except AssertionError as error:
            promise(False, f"history {seed}: what is left folds to what was written ({error})")


def _short_digests(
    original: Callable[[bytes], Callable[[bytes], bytes]],
) -> Callable[[bytes], Callable[[bytes], bytes]]:
    """Digests of one byte, of which many keys share one."""

    def digest_function(key: bytes) -> Callable[[bytes], bytes]:
        digest = original(key)
        return lambda data: digest(data)[:1] * 16

    return digest_function


@exhibit(
    "a-last-value-that-compaction-dropped",
    source="https://github.com/AutoMQ/automq/pull/3055",
    guard="the map of last offsets tells keys apart by a keyed digest of 16 bytes",
    without=Replaced(offset_map, "digest_function", _short_digests),
)
def dropped_value() -> None:
    """Compaction that takes one key for another removes values that nothing has replaced."""
    live(range(3))


def _at_once(original: Callable[..., int]) -> property:
    return property(lambda rules: 0)


@exhibit(
    "tombstones-gone-too-early",
    source="https://github.com/apache/kafka/pull/2251",
    guard="a tombstone's time begins with the pass that removed what it deletes",
    without=Replaced(Rules, "horizon", _at_once),
)
def early_tombstones() -> None:
    """Kafka could drop a tombstone before a slow reader had seen it: the reader kept the deleted value (KAFKA-4529)."""
    live(range(6))
