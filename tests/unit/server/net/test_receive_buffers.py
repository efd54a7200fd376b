"""Receive buffers come back when nobody refers to their bytes, and not before."""

from __future__ import annotations

from duramen.server.net.receive_buffers import SMALLEST, BufferPool


def test_a_buffer_is_reused_only_when_no_view_is_left() -> None:
    pool = BufferPool(cap_bytes=1 << 20)
    buffer = pool.acquire(1000)
    assert len(buffer) == SMALLEST
    view = memoryview(buffer)[10:20]
    pool.release(buffer)
    pool.reclaim()
    assert pool.lent_bytes == SMALLEST
    assert pool.acquire(1000) is not buffer
    view.release()
    pool.reclaim()
    assert pool.acquire(1000) is buffer


def test_the_cap_says_when_to_stop_reading() -> None:
    pool = BufferPool(cap_bytes=2 * SMALLEST)
    held = [pool.acquire(1), pool.acquire(1)]
    assert pool.exhausted
    pool.release(held.pop())
    assert not pool.exhausted


def test_sizes_are_powers_of_two() -> None:
    pool = BufferPool(cap_bytes=1 << 30)
    assert len(pool.acquire(SMALLEST + 1)) == 2 * SMALLEST
    assert len(pool.acquire(3_000_000)) == 4 * 1024 * 1024
