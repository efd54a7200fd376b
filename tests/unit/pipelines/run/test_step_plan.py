"""Where the reading of each source stops, and what a version keeps of several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from duramen import pipelines
from duramen.pipelines.model.folders import StepFolder
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import Reading
from duramen.pipelines.run.step_plan import StepPlan, stops

ORDERS, PAYMENTS = (Reading(0, name, Offsets(), None) for name in ("orders", "payments.v2"))


def test_each_source_stops_where_the_step_does() -> None:
    """`untilOffsets` of a topic that a source does not read are none of its own."""
    ends = {("orders", 0): 7, ("orders", 1): 2, ("payments.v2", 0): 5, ("chosen", 0): 1}
    found = stops((ORDERS, PAYMENTS), Offsets(ends))
    assert [each and each.to_json() for each in found] == [
        {"orders": {"0": 7, "1": 2}, "chosen": {"0": 1}},
        {"payments.v2": {"0": 5}, "chosen": {"0": 1}},
    ]
    assert stops((ORDERS, PAYMENTS), None) == [None, None]
    assert stops((ORDERS,), Offsets(ends)) == [Offsets(ends)]


def test_a_version_keeps_what_it_reads_of_each_source(tmp_path: Path) -> None:
    pipeline = pipelines.Pipeline("shop", folder=tmp_path)

    @pipeline.history(pipelines.Topic("orders", key="id"), pipelines.Topic("payments"))
    def both(orders: Any, payments: Any) -> Any:
        return orders

    version = StepFolder(tmp_path, "both").version("v1")
    swapped = (ORDERS, PAYMENTS._replace(generation=1))
    plan = StepPlan(pipeline.step("both"), version, swapped, None)  # type: ignore[arg-type]
    names = ("topic", "key", "reads", "generation")
    assert [tuple(each[name] for name in names) for each in plan.made_of["sources"]] == [
        ("orders", "id", "orders", 0),
        ("payments", None, "payments.v2", 1),
    ]
    assert plan.checkpoint == version.checkpoint(0), "one for all sources, whichever were swapped before"
    assert not plan.is_read()
