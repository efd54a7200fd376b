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


def one(orders: Any) -> Any:
    return orders


def one_more(orders: Any) -> Any:
    return orders


def one_of_two(one: Any, other: Any) -> Any:
    return one


def two(orders: Any, payments: Any) -> Any:
    return orders


def three(orders: Any, payments: Any, batch: int) -> None:
    """Something outside."""


@pytest.mark.parametrize(
    ("declare", "function", "told"),
    [
        (lambda p: p.history(), two, "two has no source: name a Topic"),
        (lambda p: p.history("orders"), two, "a source of two is str, not a Topic, a view or a lookup"),
        (lambda p: p.history(ORDERS, ORDERS), two, "two names topic orders twice: name it once, and use its DataFrame"),
        (lambda p: p.history(ORDERS), two, r"two is called with orders, which its parameters do not"),
        (lambda p: p.stream(ORDERS, to="orders"), one, "one reads orders and writes it, which has no end: give to="),
        (lambda p: p.effect(ORDERS, PAYMENTS), two, r"called with orders, payments, the batch number"),
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


def test_keys_are_a_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r'keys= is a list of columns: write keys=\["order"\]'):
        pipelines.Pipeline("shop", folder=tmp_path).table(ORDERS, keys="order")


def test_a_stream_in_an_environment_may_not_read_what_it_writes_without_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one reads orders and writes it"):
        pipelines.Pipeline("shop", folder=tmp_path, env="dev").stream(ORDERS, to="orders")(one)


def test_a_table_with_history_has_a_version(tmp_path: Path) -> None:
    pipeline = pipelines.Pipeline("shop", folder=tmp_path)
    for wrong in ({}, {"aggregate": True}):
        with pytest.raises(ConfigError, match="a table with history has version="):
            pipeline.table(ORDERS, keys=["n"], history="scd2", **wrong)(lambda orders: orders)
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


def test_views_and_lookups_bring_what_they_read(tmp_path: Path) -> None:
    crm, shop = (pipelines.Pipeline(name, folder=tmp_path / name) for name in ("crm", "shop"))
    crm.table(ORDERS, keys=["n"])(lambda orders: orders)
    (table,) = crm.steps
    crm.history(ORDERS)(one)
    looked_up = crm.lookup(table)

    @shop.view(ORDERS, looked_up)
    def joined(orders: Any, customers: Any) -> Any:
        return orders, customers

    @shop.view(joined)
    def again(joined: Any) -> Any:
        return joined

    assert joined(1, 2) == (1, 2), "it can be called"
    shop.table(again, looked_up, keys=["n"])(two)
    step = shop.step("two")
    assert isinstance(step, TableStep)
    assert (step.sources, step.lookups, step.shape.version) == ((ORDERS,), (looked_up,), None)
    shop.history(joined, PAYMENTS)(one_of_two)
    assert shop.step("one_of_two").sources == (ORDERS, PAYMENTS)
    other = pipelines.Topic("orders", key="n")
    for declare, told in (
        (lambda: crm.lookup("one"), "one is no table with keys"),
        (lambda: crm.lookup("none"), "has no step none"),
        (lambda: shop.history(looked_up)(one), "one has no source: name a Topic"),
        (lambda: shop.history(joined, joined)(three), "three names view joined twice"),
        (lambda: shop.history(ORDERS, looked_up, looked_up)(three), f"three names lookup crm.{table} twice"),
        (lambda: shop.history(joined, other)(one_of_two), "two steps called one_of_two"),
        (lambda: shop.effect(joined, other)(three), "three has topic orders from two declarations that differ"),
        (lambda: shop.view(ORDERS)(three), r"three is called with orders"),
        (lambda: shop.view(ORDERS)(one_of_two), "two views or steps called one_of_two"),
    ):
        with pytest.raises(ConfigError, match=told):
            declare()


def test_a_step_is_other_logic_when_a_view_of_its_is(tmp_path: Path) -> None:
    found = []
    for function in (one, two):
        pipeline = pipelines.Pipeline("shop", folder=tmp_path)
        view = pipeline.view(*(ORDERS, PAYMENTS)[: 1 + (function is two)])(function)
        pipeline.history(view)(one_more)
        found.append(pipeline.step("one_more").fingerprint)
    assert found[0] != found[1]
