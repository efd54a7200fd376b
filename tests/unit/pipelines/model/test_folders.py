"""What a checkpoint says of queries with several sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from duramen.model import topic_id_text
from duramen.pipelines.model.folders import batch_end, batch_ids, beginning, committed, planned
from duramen.pipelines.model.offsets import Offsets

ID = bytes([7] * 16)


def write(checkpoint: Path, batch: int, *sources: Any) -> None:
    """A batch that is done, with its end in each source; None for one that has nothing yet."""
    lines = ["-" if each is None else json.dumps(each) for each in sources]
    for kind, text in (("offsets", "\n".join(["v1", "{}", *lines])), ("commits", "v1\n{}")):
        (checkpoint / kind).mkdir(parents=True, exist_ok=True)
        (checkpoint / kind / str(batch)).write_text(text)


def test_a_batch_ends_in_all_of_its_sources(tmp_path: Path) -> None:
    """The first line counted alone: lag, gaps and how far a replay reads were those of one source."""
    first = {"payments": {"0": 4, "from": {"0": 1}, "topicId": topic_id_text(ID)}}
    write(tmp_path, 0, first, None)
    write(tmp_path, 1, {"payments": {"0": 6, "topicId": topic_id_text(ID)}}, {"orders": {"0": 9, "1": 2}})
    assert batch_end(tmp_path, 0) == Offsets({("payments", 0): 4})
    both = Offsets({("payments", 0): 6, ("orders", 0): 9, ("orders", 1): 2})
    assert batch_end(tmp_path, 1) == committed(tmp_path) == planned(tmp_path) == both
    assert beginning(tmp_path) == Offsets({("payments", 0): 1})
    assert batch_ids(tmp_path, 1) == {"payments": ID}


def test_a_topic_that_is_read_twice_is_contained_as_far_as_both_have_it(tmp_path: Path) -> None:
    write(tmp_path, 0, {"orders": {"0": 5, "1": 2}}, {"orders": {"0": 7, "1": 2}})
    assert batch_end(tmp_path, 0) == Offsets({("orders", 0): 5, ("orders", 1): 2})


def test_sources_without_partitions_are_told_apart(tmp_path: Path) -> None:
    write(tmp_path, 0, {"logOffset": 3}, {"logOffset": 0})
    assert batch_end(tmp_path, 0) == Offsets({("", 0): 4, ("", 1): 1})
    assert beginning(tmp_path) == Offsets()
