"""Frames out of a stream of bytes: whole, in order, large ones without a copy, and no memory for what was only said."""

from __future__ import annotations

from random import Random

import pytest

from duramen.client.protocol.reply_frames import COPIED_BYTES, FIRST_BYTES, ReplyFrames
from duramen.wire.errors import DecodeError


def feed(frames: ReplyFrames, data: bytes, most: int = 1 << 30) -> list[memoryview]:
    """Receive the data as a socket would, at most `most` bytes at a time, and take all frames."""
    taken = []
    position = 0
    while position < len(data):
        room = frames.room()
        assert len(room) > 0
        count = min(len(room), most, len(data) - position)
        room[:count] = data[position : position + count]
        frames.received(count)
        position += count
        while (frame := frames.take()) is not None:
            taken.append(frame)
    return taken


def framed(*bodies: bytes) -> bytes:
    return b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


@pytest.mark.parametrize("seed", range(10))
def test_frames_come_out_as_they_went_in_and_stay_as_they_are(seed: int) -> None:
    random = Random(seed)
    sizes = [random.choice((0, 1, 3, 100, 5_000, 70_000, 200_000)) for _ in range(16)]
    bodies = [random.randbytes(size) for size in sizes]
    frames = ReplyFrames(1 << 20)
    taken: list[memoryview] = []
    data = framed(*bodies)
    position = 0
    while position < len(data):
        count = random.choice((1, 2, 3, 50, 5_000, 65_536, 1_000_000))
        taken += feed(frames, data[position : position + count], random.choice((70, 1_000, 1 << 20)))
        position += count
    assert [bytes(frame) for frame in taken] == bodies, "all are kept until now: nothing was written over"


def test_large_frames_are_received_where_they_stay() -> None:
    frames = ReplyFrames(1 << 24)
    body = bytes(1 << 20)
    feed(frames, framed(body))
    for _ in range(3):
        room = frames.room()
        assert len(room) == 4, "first the size"
        room[:] = len(body).to_bytes(4, "big")
        frames.received(4)
        room = frames.room()
        assert len(room) == len(body), "then all of it, and nothing of the next one"
        frames.received(len(room))
        frame = frames.take()
        assert frame is not None
        assert frame.obj is room.obj
        assert len(frame) == len(body)


def test_small_frames_keep_no_buffer() -> None:
    frames = ReplyFrames(1 << 20)
    small, larger = feed(frames, framed(bytes(COPIED_BYTES), bytes(COPIED_BYTES + 1)))
    assert small.obj is not larger.obj
    assert isinstance(small.obj, bytes)


def test_an_announced_size_takes_no_memory_and_one_beyond_the_limit_is_refused() -> None:
    frames = ReplyFrames(1 << 30)
    frames.room()[:4] = (1 << 30).to_bytes(4, "big")
    frames.received(4)
    assert len(frames.room()) <= FIRST_BYTES
    frames = ReplyFrames(1000)
    frames.room()[:4] = (1001).to_bytes(4, "big")
    frames.received(4)
    with pytest.raises(DecodeError, match="1001 bytes; 1000 are allowed"):
        frames.take()
    with pytest.raises(DecodeError):
        frames.room()
