"""What may be declared of expectations and dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from duramen import pipelines
from duramen.errors import ConfigError
from duramen.pipelines.model.expectations import Expectations, expectations

ORDERS = pipelines.Topic("orders", key="id", schema="amount int")


def test_a_step_has_what_it_expects() -> None:
    pipeline = pipelines.Pipeline("shop")

    @pipeline.stream(ORDERS, to="paid", expect={"paid": "amount > 0"}, on_violation="quarantine")
    def paid(orders: Any) -> Any:
        return orders

    @pipeline.history(ORDERS)
    def every(orders: Any) -> Any:
        return orders

    assert pipeline.step("paid").expectations == Expectations((("paid", "amount > 0"),), "quarantine")
    assert (pipeline.step("paid").quarantines, pipeline.step("every").quarantines) == (True, False)
    assert pipeline.dead_letters == "dlq.shop"
    assert pipelines.Pipeline("shop", dead_letters="failed").dead_letters == "failed"


@pytest.mark.parametrize(
    ("expect", "on_violation", "aggregate", "told"),
    [
        ({"": "amount > 0"}, "fail", False, "a name and an SQL condition"),
        ({"paid": None}, "fail", False, "a name and an SQL condition"),
        ({"a, b": "true"}, "fail", False, "no comma"),
        ({"paid": "amount > 0"}, "warn", False, "on_violation='warn'; there are fail, drop, quarantine"),
        (None, "drop", False, "rows that expect= does not hold for"),
        ({"paid": "amount > 0"}, "quarantine", True, "none of which is a dead letter"),
    ],
)
def test_what_cannot_be_meant_is_refused(expect: Any, on_violation: Any, aggregate: bool, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        expectations(expect, on_violation, aggregate=aggregate)


def test_topics_quarantine_what_has_a_schema_and_somewhere_to_go() -> None:
    with pytest.raises(ConfigError, match="without schema= every value fits"):
        pipelines.Topic("orders", corrupt="quarantine")
    with pytest.raises(ConfigError, match="corrupt='drop'; there are fail, keep, quarantine"):
        pipelines.Topic("orders", schema="amount int", corrupt="drop")  # type: ignore[arg-type]
    topic = pipelines.Topic("orders", schema="amount int", corrupt="quarantine")
    with pytest.raises(ConfigError, match="an effect has no dead letters"):
        pipelines.Pipeline("shop").effect(topic)(lambda orders, batch: None)
