"""Sources that came, went or changed places are other logic, and are told by their names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from duramen import pipelines
from duramen.pipelines.model.declaration import Step
from duramen.pipelines.model.function_fingerprint import at_a_glance, noted, other_logic, other_sources

ORDERS, PAYMENTS = pipelines.Topic("orders", key="id"), pipelines.Topic("payments", schema="cents int")


def rows(*sources: Any) -> Any:
    """Of any sources."""


def step(folder: Path, *sources: Any) -> Step:
    pipeline = pipelines.Pipeline("shop", folder=folder)
    pipeline.history(*sources)(rows)
    return pipeline.step("rows")


@pytest.mark.parametrize(
    ("before", "now", "told", "apart"),
    [
        ([ORDERS], [ORDERS], None, False),
        ([ORDERS, PAYMENTS], [ORDERS, PAYMENTS], None, False),
        (
            [ORDERS],
            [ORDERS, PAYMENTS],
            "was made of the topic orders, and the code names the topics orders, payments now",
            True,
        ),
        (
            [ORDERS, PAYMENTS],
            [PAYMENTS],
            "was made of the topics orders, payments, and the code names the topic payments now",
            True,
        ),
        (
            [ORDERS, PAYMENTS],
            [PAYMENTS, ORDERS],
            "was made of the topics orders, payments, and the code names the topics payments, orders now",
            True,
        ),
        ([ORDERS], [PAYMENTS], "was made with the topic orders of its source, which is payments now", False),
        (
            [ORDERS, PAYMENTS],
            [ORDERS, pipelines.Topic("payments")],
            "was made with a schema of its source payments, which has none now",
            False,
        ),
        (
            [ORDERS, PAYMENTS],
            [pipelines.Topic("orders"), PAYMENTS],
            "was made with the key id of its source orders, which is None now",
            False,
        ),
    ],
)
def test_other_sources_are_other_logic(
    before: list[pipelines.Topic], now: list[pipelines.Topic], told: str | None, apart: bool, tmp_path: Path
) -> None:
    about, here = noted(step(tmp_path, *before)), step(tmp_path, *now)
    assert (other_logic(here, about), other_sources(here, about)) == (told, apart)
    changed = "schema changed" if told and "a schema" in told else "source changed"
    assert at_a_glance(here, about) == ("ready" if told is None else changed)


def test_other_lookups_are_other_logic(tmp_path: Path) -> None:
    crm = pipelines.Pipeline("crm", folder=tmp_path)
    for table in ("customers", "towns"):

        def latest(orders: Any) -> Any:
            return orders

        latest.__name__ = table
        crm.table(ORDERS, keys=["id"])(latest)
    without = step(tmp_path, ORDERS)
    with_one, with_other = (step(tmp_path, ORDERS, crm.lookup(table)) for table in ("customers", "towns"))
    assert "lookups" not in noted(without), "as versions of older releases have it"
    assert other_logic(with_one, noted(with_one)) is None
    assert (
        other_logic(with_one, noted(without)) == "was made with lookups of no table, and the code has crm.customers now"
    )
    assert (
        other_logic(with_other, noted(with_one))
        == "was made with lookups of crm.customers, and the code has crm.towns now"
    )
    assert at_a_glance(without, noted(with_one)) == "source changed"
