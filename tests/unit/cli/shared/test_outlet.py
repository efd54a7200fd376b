"""What stdout was given is known record by record, also while its reader does not read."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import pytest

from duramen.cli.shared.outlet import Line, Outlet

ONE, OTHER = ("t", 0), ("t", 1)


@contextlib.contextmanager
def outlet_to(out: Any) -> Iterator[Outlet]:
    with io.TextIOWrapper(out) as text, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", text)
        yield Outlet()


@pytest.fixture
def pipe() -> Iterator[tuple[int, Outlet]]:
    """The end that is read of a pipe, which takes 16 pieces, and what writes into it."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), outlet_to(os.fdopen(writing, "wb")) as outlet:
        yield reading, outlet


def lines(count: int, size: int = 4096) -> list[Line]:
    return [Line((ONE, OTHER)[number % 2], number // 2, b"%0*d\n" % (size - 1, number)) for number in range(count)]


def test_all_is_written_in_its_order(pipe: tuple[int, Outlet]) -> None:
    reading, outlet = pipe
    for batch in (lines(5, 100), lines(3, 9000)):
        outlet.put(batch)
        assert outlet.wait(30)
        assert os.read(reading, 1 << 20) == b"".join(line.content for line in batch)
    assert (outlet.done, outlet.written) == ({ONE: 2, OTHER: 1}, 8)


def test_what_waits_is_neither_done_nor_lost(pipe: tuple[int, Outlet]) -> None:
    reading, outlet = pipe
    batch = lines(40)
    outlet.put(batch)
    assert not outlet.wait(0.2)
    assert (outlet.done, outlet.written) == ({ONE: 8, OTHER: 8}, 16), "what the pipe holds"
    # The 17th is with the system: it may come out, or not.
    assert outlet.take_back(0.0) == {OTHER: 8, ONE: 9}
    assert os.read(reading, 16 * 4096) == b"".join(line.content for line in batch[:16])
    assert outlet.wait(30)
    assert os.read(reading, 1 << 20) == batch[16].content
    assert outlet.done == {ONE: 9, OTHER: 8}


def test_a_reader_that_left_is_told_with_what_it_was_given() -> None:
    class Closed(io.BytesIO):
        def write(self, given: object) -> int:
            if self.tell():
                raise BrokenPipeError
            return super().write(given)  # type: ignore[arg-type]

    with outlet_to(Closed()) as outlet:
        outlet.put(lines(3))
        with pytest.raises(BrokenPipeError):
            outlet.wait(30)
        assert outlet.done == {ONE: 1}
        assert outlet.take_back(0.0) == {ONE: 1}
