"""Every codec against its opposite number in another implementation, and against bombs and rubbish."""

from __future__ import annotations

import contextlib
import gzip
import struct
import zlib
from collections.abc import Callable

import cramjam
import pytest
from aiokafka import codec as aio_codec
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.errors import ErrorCode, KafkaError
from duramen.wire import compression

CODECS = [compression.GZIP, compression.SNAPPY, compression.LZ4, compression.ZSTD]
LIMIT = 1 << 20
PAYLOADS = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda piece, times: piece * times, st.binary(min_size=1, max_size=40), st.integers(1, 5000)),
)


@pytest.mark.parametrize("codec", [compression.NONE, *CODECS])
@given(data=PAYLOADS)
def test_what_goes_in_comes_out(codec: int, data: bytes) -> None:
    packed = compression.compress(codec, data)
    assert compression.decompress(codec, packed, len(data)) == data
    assert compression.decompress(codec, memoryview(packed), LIMIT) == data


@given(data=PAYLOADS)
def test_bare_and_framed_snappy_are_read(data: bytes) -> None:
    raw = bytes(cramjam.snappy.compress_raw(data))
    assert compression.decompress(compression.SNAPPY, raw, LIMIT) == data
    blocks = [data[i : i + 1000] for i in range(0, len(data), 1000)]
    framed = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for block in blocks:
        piece = bytes(cramjam.snappy.compress_raw(block))
        framed += struct.pack(">i", len(piece)) + piece
    assert compression.decompress(compression.SNAPPY, framed, LIMIT) == data


def test_snappy_written_here_is_framed_as_snappy_java_does() -> None:
    packed = compression.compress(compression.SNAPPY, b"x" * 100_000)
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    assert struct.unpack_from(">i", packed, 16)[0] < 32 * 1024


def test_lz4_written_here_has_independent_blocks_because_java_follows_no_links() -> None:
    data = bytes(range(256)) * 1000
    packed = compression.compress(compression.LZ4, data)
    assert packed[4] & 0x20
    assert bytes(cramjam.lz4.decompress(packed)) == data


def test_lz4_with_content_checksum_and_linked_blocks_is_read() -> None:
    data = b"abcdefgh" * 40_000
    assert compression.decompress(compression.LZ4, bytes(cramjam.lz4.compress(data)), LIMIT) == data


@given(pieces=st.lists(st.tuples(st.sampled_from([0, 1, 9, 65535, 65536]), st.booleans()), max_size=4), data=st.data())
def test_lz4_frames_of_blocks_are_read_as_the_codec_reads_them(
    pieces: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Whole ones, with stored blocks among them, cut off, with bytes behind, and damaged ones."""
    frame = bytearray(compression._LZ4_HEADER)
    for size, stored in pieces:
        block = (b"some words %d " % size * 6000)[:size]
        packed = block if stored else bytes(cramjam.lz4.compress_block(block, store_size=False))
        frame += struct.pack("<I", len(packed) | (compression._LZ4_STORED if stored else 0)) + packed
    frame += bytes(4)
    change = data.draw(st.sampled_from(["none", "cut", "more", "bit"]))
    if change == "cut":
        del frame[-data.draw(st.integers(1, min(9, len(frame) - 7))) :]
    elif change == "more":
        frame += data.draw(st.sampled_from([b"\0", bytes(4), b"\1\0\0\0x"]))
    elif change == "bit":
        frame[data.draw(st.integers(7, len(frame) - 1))] ^= 1 << data.draw(st.integers(0, 7))

    def outcome(call: Callable[[memoryview], int]) -> bytes | ErrorCode:
        out = bytearray(4 * 65536)
        try:
            return bytes(out[: call(memoryview(out))])
        except KafkaError as error:
            return error.code

    by_codec = outcome(lambda out: compression._fill(cramjam.lz4.decompress_into, frame, out, "lz4"))
    assert outcome(lambda out: compression.decompress_into(compression.LZ4, frame, out)) == by_codec


def test_concatenated_gzip_members_are_one_stream() -> None:
    assert compression.decompress(compression.GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), LIMIT) == b"one two"
    assert zlib.decompress(compression.compress(compression.GZIP, b"data", level=9), 31) == b"data"


def test_gzip_members_without_end_are_refused() -> None:
    """50,000 empty ones fit into a megabyte, and looking at them all would copy gigabytes."""
    with pytest.raises(KafkaError) as caught:
        compression.decompress(compression.GZIP, gzip.compress(b"") * 5000, 1 << 20)
    assert caught.value.code is ErrorCode.INVALID_RECORD


@given(data=PAYLOADS)
def test_aiokafka_reads_what_we_compress_and_the_other_way_round(data: bytes) -> None:
    pairs = [
        (compression.GZIP, aio_codec.gzip_encode, aio_codec.gzip_decode),
        (compression.SNAPPY, aio_codec.snappy_encode, aio_codec.snappy_decode),
        (compression.LZ4, aio_codec.lz4_encode, aio_codec.lz4_decode),
        (compression.ZSTD, aio_codec.zstd_encode, aio_codec.zstd_decode),
    ]
    for codec, encode, decode in pairs:
        assert bytes(decode(compression.compress(codec, data))) == data
        assert compression.decompress(codec, encode(data), LIMIT) == data


@pytest.mark.parametrize(
    ("codec", "level"),
    [
        *((compression.GZIP, level) for level in (-1, 1, 9)),
        *((compression.LZ4, level) for level in range(1, 18)),
        *((compression.ZSTD, level) for level in (-131_072, -1, 1, 22)),
    ],
)
def test_every_level_kafka_allows_is_read_by_other_clients(codec: int, level: int) -> None:
    data = b"".join(b"record %d of some kind\n" % number for number in range(8000))
    packed = compression.compress(codec, data, level)
    if (codec, level) == (compression.LZ4, 8):
        assert len(packed) < len(compression.compress(codec, data))
    decode = {
        compression.GZIP: aio_codec.gzip_decode,
        compression.LZ4: aio_codec.lz4_decode,
        compression.ZSTD: aio_codec.zstd_decode,
    }[codec]
    assert bytes(decode(packed)) == data
    assert compression.decompress(codec, packed, LIMIT) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit", [0, 1, 1000, 70_000, 4_999_999])
def test_a_bomb_is_stopped_at_the_limit(codec: int, limit: int) -> None:
    bomb = compression.compress(codec, bytes(5_000_000))
    with pytest.raises(KafkaError) as caught:
        compression.decompress(codec, bomb, limit)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_a_snappy_block_that_lies_about_its_length_allocates_nothing() -> None:
    with pytest.raises(KafkaError) as caught:
        compression.decompress(compression.SNAPPY, b"\xff\xff\xff\xff\x0f" + b"rest", LIMIT)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=200)
@given(data=st.binary(max_size=200), cut=st.integers(0, 60), flip=st.integers(0, 10_000))
def test_rubbish_is_refused_with_a_kafka_code(codec: int, data: bytes, cut: int, flip: int) -> None:
    packed = bytearray(compression.compress(codec, b"the quick brown fox " * 20 + data))
    packed[flip % len(packed)] ^= 0x41
    for damaged in (data, bytes(packed), bytes(packed[: len(packed) - cut])):
        with contextlib.suppress(KafkaError):  # anything else that is raised fails the test
            assert len(compression.decompress(codec, damaged, LIMIT)) <= LIMIT


@pytest.mark.parametrize("codec", CODECS)
def test_a_stream_cut_short_is_refused(codec: int) -> None:
    packed = compression.compress(codec, bytes(range(256)) * 300)
    with pytest.raises(KafkaError) as caught:
        compression.decompress(codec, packed[: len(packed) // 2], LIMIT)
    assert caught.value.code is ErrorCode.INVALID_RECORD


def test_unknown_codecs_have_their_own_code() -> None:
    for call in (lambda: compression.decompress(5, b"", 9), lambda: compression.compress(7, b"")):
        with pytest.raises(KafkaError) as caught:
            call()
        assert caught.value.code is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE


@pytest.mark.parametrize("codec", [compression.NONE, *CODECS])
@given(data=PAYLOADS)
def test_inflating_into_a_buffer_of_the_callers_is_the_same(codec: int, data: bytes) -> None:
    packed = compression.compress(codec, data)
    room = bytearray(b"\xee" * (len(data) + 7))
    assert compression.decompress_into(codec, packed, memoryview(room)) == len(data)
    assert room[: len(data)] == data
    if data:
        with pytest.raises(KafkaError) as caught:
            compression.decompress_into(codec, packed, memoryview(bytearray(len(data) - 1)))
        assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE
