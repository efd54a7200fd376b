"""Binary columns over a buffer: the three ways to make one give what slicing gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from duramen.spark.codec.decode import binary
from duramen.spark.codec.decode.binary import binary_column


@pytest.mark.parametrize("views", [True, False])
@settings(max_examples=200, deadline=None)
@given(
    sizes=st.one_of(
        st.lists(st.integers(-1, 40), max_size=40),
        st.lists(st.integers(13, 40), max_size=40),
        st.builds(lambda size, rows: [size] * rows, st.integers(-1, 40), st.integers(1, 40)),
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_columns_of_all_sizes_of_equal_ones_and_of_long_ones(views: bool, sizes: list[int], seed: int) -> None:
    chance = np.random.default_rng(seed)
    gaps = chance.integers(0, 9, len(sizes) + 1)
    size = np.array(sizes, np.int64)
    at = np.cumsum(gaps[:-1]) + np.cumsum(np.maximum(size, 0)) - np.maximum(size, 0)
    end = int(at[-1] + max(sizes[-1], 0)) if sizes else 0
    arena = chance.integers(0, 256, end + int(gaps[-1]), dtype=np.uint8)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(binary, "_HAS_VIEWS", views and binary._HAS_VIEWS)
        column = binary_column(arena, at, size)
    column.validate(full=True)
    data = arena.tobytes()
    wanted = [None if n < 0 else data[a : a + n] for a, n in zip(at.tolist(), sizes, strict=True)]
    assert column.to_pylist() == wanted
