"""What a version with several sources reads where one of them was swapped."""

from __future__ import annotations

import pytest

from duramen.errors import ConfigError
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.swap_chain import of_source, only_reading
from duramen.swaps import CutOver

CUT = CutOver("orders", {0: 7}, "orders.v2", {0: 5})
ABOUT = {"generation": 0, "sources": [{"topic": "orders", "reads": "orders", "generation": 0}, {"topic": "payments"}]}


def test_a_version_of_several_sources_does_not_go_over_a_cut() -> None:
    assert only_reading("paid", "orders", [], ABOUT).topic == "orders"
    with pytest.raises(ConfigError, match=r"paid reads orders beside other sources, and orders.v2 .*spark reprocess"):
        only_reading("paid", "orders", [CUT], ABOUT)


def test_a_version_that_begins_after_a_cut_reads_the_new_topic_from_its_beginning() -> None:
    found = only_reading("paid", "orders", [CUT], {})
    assert (found.topic, found.start, found.until, found.generation) == ("orders.v2", Offsets(), None, 1)
    begun = {"generation": 0, "sources": [{"topic": "orders", "reads": "orders.v2", "generation": 1}]}
    assert only_reading("paid", "orders", [CUT], begun).topic == "orders.v2"
    assert of_source(begun, "payments") == begun, "an older one, of a single source"
