"""What a decorator refuses of its sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.declaration import TableStep

ORDERS, PAYMENTS = pipelines.Topic("orders"), pipelines.Topic("payments")


def two(orders: Any, payments: Any) -> Any:
    return orders


def three(orders: Any, payments: Any, batch: int) -> None:
    """Something outside."""


@pytest.mark.parametrize(
    ("declare", "function", "told"),
    [
        (lambda p: p.history(), two, "two has no source: name a Topic"),
        (lambda p: p.history("orders"), two, "a source of two is str, not a Topic"),
        (lambda p: p.history(ORDERS, ORDERS), two, "two names topic orders twice: name it once, and use its DataFrame"),
        (lambda p: p.history(ORDERS), two, r"two is called with 1 arguments \(orders\), which its parameters do not"),
        (lambda p: p.effect(ORDERS, PAYMENTS), two, r"called with 3 arguments \(orders, payments, the batch number\)"),
    ],
)
def test_sources_that_cannot_be_are_refused_by_name(
    declare: Callable[[pipelines.Pipeline], Any], function: Any, told: str, tmp_path: Path
) -> None:
    pipeline = pipelines.Pipeline("shop", folder=tmp_path)
    with pytest.raises(ConfigError, match=told):
        declare(pipeline)(function)
    assert pipeline.steps == {}
    pipeline.history(ORDERS, PAYMENTS)(two)
    pipeline.effect(ORDERS, PAYMENTS)(three)


def test_a_table_with_history_has_a_version(tmp_path: Path) -> None:
    pipeline = pipelines.Pipeline("shop", folder=tmp_path)
    for wrong in ({}, {"aggregate": True}):
        with pytest.raises(ConfigError, match="a table with history has version="):
            pipeline.table(ORDERS, keys=["n"], history="scd2", **wrong)
    with pytest.raises(ConfigError, match=r'no history=.scd1. of a table; there is "scd2"'):
        pipeline.table(ORDERS, keys=["n"], version="at", history="scd1")  # type: ignore[arg-type]
    for name, history in {"latest": None, "all": "scd2"}.items():
        pipeline.steps.clear()
        pipeline.table(ORDERS, keys=["n"], version="at", history=history)(lambda orders: orders)  # type: ignore[arg-type]
        (step,) = pipeline.steps.values()
        assert isinstance(step, TableStep)
        told = {"store": "delta", "keys": ["n"], "version": "at", "guarded": True}
        assert step.form == told | ({"history": "scd2"} if name == "all" else {}), (
            "as versions of older releases have it"
        )


def test_a_table_of_several_topics_is_ordered_by_time(tmp_path: Path) -> None:
    """Offsets of two topics have no order, and batches may be cut anywhere."""
    found = {}
    for name, version in {"paid": None, "own": "seen"}.items():
        pipeline = pipelines.Pipeline(name, folder=tmp_path)
        pipeline.table(ORDERS, PAYMENTS, keys=["n"], version=version)(two)
        step = pipeline.step("two")
        assert isinstance(step, TableStep)
        found[name] = step.shape.version
    assert found == {"paid": "_timestamp", "own": "seen"}
