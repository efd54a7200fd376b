"""The small files: formats as Kafka writes them, and refusal of anything damaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duramen.errors import StorageError
from duramen.model import TopicPartition
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.kafka_files import (
    DirectoryCheckpoint,
    MetaProperties,
    decode_checkpoint,
    decode_meta,
    decode_offsets,
    encode_checkpoint,
    encode_meta,
    encode_offsets,
)
from duramen.storage.checkpoint.manifest import DirectoryManifest, decode_manifest, encode_manifest
from duramen.storage.files.atomic import replace_file
from duramen.storage.files.crc_lines import encode_lines
from duramen.storage.segment.leader_epochs import read_epochs
from duramen.storage.segment.partition_metadata import (
    decode_partition_metadata,
    encode_partition_metadata,
    parse_partition_name,
)
from duramen.storage.segment.recovery_point import LogPoint

names = st.text("abcXYZ019._-", min_size=1, max_size=20)
numbers = st.integers(0, 2**62)


def test_an_offset_checkpoint_is_kafkas() -> None:
    offsets = {TopicPartition("b", 1): 7, TopicPartition("a", 10): 0, TopicPartition("a", 2): 99}
    assert encode_offsets(offsets) == b"0\n3\na 2 99\na 10 0\nb 1 7\n"
    assert decode_offsets(encode_offsets(offsets)) == offsets
    assert decode_offsets(b"0\n0\n") == {}


@pytest.mark.parametrize(
    "content", [b"", b"0\n", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"\xff\n0\n"]
)
def test_a_damaged_offset_checkpoint_counts_as_missing(content: bytes) -> None:
    assert decode_offsets(content) is None


def test_meta_properties_of_kafka_are_read() -> None:
    text = b"#\n#Sat Nov 21 02:00:00 UTC 2026\ncluster.id=abc\nversion=1\ndirectory.id=d\\=1\nnode.id=3\n"
    assert decode_meta(text, "m") == MetaProperties("abc", 3, "d=1")
    assert decode_meta(b"version=0\nbroker.id=2\ncluster.id=c\n", "m") == MetaProperties("c", 2, "")
    meta = MetaProperties("cluster", 5, "directory")
    assert decode_meta(encode_meta(meta), "m") == meta
    for bad in (
        b"",
        b"version=2\nnode.id=1\ncluster.id=c\n",
        b"version=1\nnode.id=x\ncluster.id=c\n",
        b"version=1\nnode.id=1\n",
    ):
        with pytest.raises(StorageError, match="m: "):
            decode_meta(bad, "m")


@given(
    st.dictionaries(
        st.tuples(st.binary(min_size=16, max_size=16), st.integers(0, 99)), st.tuples(names, *[numbers] * 4)
    )
)
def test_our_checkpoint_round_trips_and_any_damage_shows(
    content: dict[tuple[bytes, int], tuple[str, int, int, int, int]],
) -> None:
    logs = {
        key: LogPoint(
            TopicPartition(topic, key[1]), start, recovery, base, position, None, key[1] % 2 > 0, key[1] % 5 > 2
        )
        for key, (topic, start, recovery, base, position) in content.items()
    }
    epochs = {key: ((0, 0), (3, key[1]))[: key[1] % 3] for key in list(logs)[::2]}
    segments = {key: (key[1], key[1] + 7) for key in list(logs)[1::2]}
    checkpoint = DirectoryCheckpoint(4, 17, logs, epochs, segments)
    encoded = encode_checkpoint(checkpoint)
    assert decode_checkpoint(encoded) == checkpoint
    unjournaled = any(point.unjournaled for point in logs.values())
    assert encoded.startswith(b"duramen-checkpoint 4 " if unjournaled else b"duramen-checkpoint 3 ")
    for cut in range(0, len(encoded) - 1, 7):
        assert decode_checkpoint(encoded[:cut]) is None
    for flip in range(0, len(encoded) - 1, 11):
        damaged = bytearray(encoded)
        damaged[flip] ^= 2
        assert decode_checkpoint(bytes(damaged)) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a-0", TopicPartition("a", 0)),
        ("a-b.c-12", TopicPartition("a-b.c", 12)),
        ("__cluster_metadata-0", TopicPartition("__cluster_metadata", 0)),
        ("a", None),
        ("-0", None),
        ("a-", None),
        ("a-0.4f-delete", None),
        ("a-0.4f-future", None),
        ("a-\u0661", None),
    ],
)
def test_partition_directory_names(name: str, expected: TopicPartition | None) -> None:
    assert parse_partition_name(name) == expected


def test_partition_metadata() -> None:
    assert encode_partition_metadata("AAAA") == b"version: 0\ntopic_id: AAAA\n"
    assert decode_partition_metadata(b"version: 0\ntopic_id: AAAA") == "AAAA"
    for bad in (b"", b"version: 1\ntopic_id: A\n", b"version: 0\n", b"topic_id: A\n"):
        assert decode_partition_metadata(bad) is None


def test_a_damaged_epoch_file_counts_as_missing() -> None:
    disk = CrashDisk()
    for content, expected in ((b"0\n2\n0 0\n3 8\n", [(0, 0), (3, 8)]), (b"0\n2\n0 0\n", None), (b"0\n1\nx 0\n", None)):
        replace_file(disk, "/e", content)
        assert read_epochs(disk, "/e") == expected
    assert read_epochs(disk, "/none") is None


def test_a_file_is_replaced_whole_or_not_at_all() -> None:
    call = 0
    seen = set()
    while True:
        call += 1
        disk = CrashDisk()
        replace_file(disk, "/f", b"old")
        disk.cut_at = disk.calls + call
        try:
            replace_file(disk, "/f", b"new and longer")
        except BaseException:
            if disk.powered:
                raise
            disk.power_on()
            seen.add(disk.contents()["/f"])
        else:
            break
    assert seen == {b"old"}
    assert disk.contents()["/f"] == b"new and longer"


def test_what_vouches_for_a_directory_is_read_in_its_earlier_versions_too() -> None:
    tp = TopicPartition("events", 3)
    key = (bytes(range(16)), 3)
    now = DirectoryManifest(MetaProperties("cluster", 1, "directory"), 7, 99, {key: tp})
    assert decode_manifest(encode_manifest(now)) == now
    head, line, _ = encode_manifest(now).decode().splitlines()
    first = [head.replace(" 3 7 99 1 ", " 1 7 99 1 "), f"{line} 0:0,2:40"]
    assert decode_manifest(encode_lines(first)) == now
    second = [head.replace(" 3 7 99 1 ", " 2 7 99 1 1 "), f"{line} -", f"{key[0].hex()} 3 0,40"]
    assert decode_manifest(encode_lines(second)) == now
