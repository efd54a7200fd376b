"""A file of ours in another one's place has a sound CRC, and is as good as none: every reader ended in a ValueError."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from duramen.model import TopicPartition
from duramen.storage.checkpoint.kafka_files import (
    CleanedLog,
    DirectoryCheckpoint,
    MetaProperties,
    decode_checkpoint,
    decode_cleaned,
    encode_checkpoint,
    encode_cleaned,
)
from duramen.storage.checkpoint.manifest import DirectoryManifest, decode_manifest, encode_manifest
from duramen.storage.checkpoint.scrub_progress import ScrubProgress, decode_progress, encode_progress
from duramen.storage.files.crc_lines import encode_lines
from duramen.storage.repair.journal_reset import JournalReset, decode_reset, encode_reset
from duramen.storage.segment.recovery_point import LogPoint

KEY = (bytes(15) + b"\x01", 0)
TP = TopicPartition("first", 0)
FILES = {
    "checkpoint": (
        DirectoryCheckpoint(1, 7, {KEY: LogPoint(TP, 0, 5, 0, 900)}, {KEY: ((0, 0),)}, {KEY: (0, 5)}),
        encode_checkpoint,
        decode_checkpoint,
    ),
    "cleaned": ({KEY: CleanedLog(7, 1)}, encode_cleaned, decode_cleaned),
    "forgone": (JournalReset([{"partition": "first-0"}], {KEY: 7}), encode_reset, decode_reset),
    "progress": (ScrubProgress(1, 2, KEY, 3, 4, ()), encode_progress, decode_progress),
    "vouched": (
        DirectoryManifest(MetaProperties("clüster", 1, "d"), 1, 7, {KEY: TP}),
        encode_manifest,
        decode_manifest,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_only_its_own_content_is_read(name: str) -> None:
    value, encode, decode = FILES[name]
    assert decode(encode(value)) == value  # type: ignore[operator]
    read: Callable[[bytes], object] = decode  # type: ignore[assignment]
    for other, (its, written, _) in FILES.items():
        if other != name:
            assert read(written(its)) is None, other  # type: ignore[operator]
    for content in (b"", b"crc 00000000\n", encode_lines(["x"]), encode(value)[:-3]):  # type: ignore[operator]
        assert read(content) is None
