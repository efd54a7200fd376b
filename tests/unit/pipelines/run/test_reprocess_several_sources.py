"""What a new version of a joined table has to contain before it is swapped: of all sources, also swapped ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from duramen import pipelines
from duramen.pipelines.model.folders import VersionFolder
from duramen.pipelines.run import reprocess
from duramen.pipelines.run.reprocess import Reprocessing
from duramen.swaps import CutOver

CUT = CutOver("orders", {0: 7}, "orders.v2", {0: 5})


def made(version: VersionFolder, **read: tuple[str, int, int]) -> None:
    """A version that has read so much of each source: topic, place in its chain, end."""
    sources = [{"topic": name, "reads": topic, "generation": at} for name, (topic, at, _) in read.items()]
    version.describe({"generation": 0, "first_generation": 0, "sources": sources})
    lines = [json.dumps({topic: {"0": end}}) for topic, _, end in read.values()]
    for kind in ("offsets", "commits"):
        (version.checkpoint(0) / kind).mkdir(parents=True, exist_ok=True)
        (version.checkpoint(0) / kind / "0").write_text("\n".join(["v1", "{}", *lines]))


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Reprocessing:
    pipeline = pipelines.Pipeline("shop", folder=tmp_path)

    @pipeline.table(pipelines.Topic("orders"), pipelines.Topic("payments"), keys=["n"])
    def paid(orders: Any, payments: Any) -> Any:
        return orders

    monkeypatch.setattr(reprocess, "cuts_of", lambda _pipeline, topic, _node: [CUT] if topic.name == "orders" else [])
    return Reprocessing(pipeline, "paid")


def test_a_version_is_behind_by_the_records_of_all_sources(work: Reprocessing) -> None:
    made(work.folder.version("v1"), orders=("orders", 0, 9), payments=("payments", 0, 4))
    made(work.folder.version("v2"), payments=("payments", 0, 3), orders=("orders", 0, 7))
    assert work.behind("v2") == 3


def test_behind_a_cut_of_a_source_it_needs_what_took_the_place(work: Reprocessing) -> None:
    made(work.folder.version("v1"), orders=("orders", 0, 7), payments=("payments", 0, 4))
    made(work.folder.version("v2"), orders=("orders.v2", 1, 3), payments=("payments", 0, 4))
    assert work.behind("v2") == 2, "of the new topic those before the cut"
    made(work.folder.version("v2"), orders=("orders.v2", 1, 6), payments=("payments", 0, 4))
    assert work.behind("v2") == 0


def test_a_source_that_was_left_out_does_not_count(work: Reprocessing) -> None:
    refunds = ("refunds", 0, 100)
    made(work.folder.version("v1"), orders=("orders", 0, 7), refunds=refunds, payments=("payments", 0, 4))
    made(work.folder.version("v2"), orders=("orders", 0, 7), payments=("payments", 0, 1))
    assert work.behind("v2") == 3
