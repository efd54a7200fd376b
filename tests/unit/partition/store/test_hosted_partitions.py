"""The life cycle of a hosted partition: its transitions, and the diagram that is drawn from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from duramen.errors import BugError
from duramen.partition.store.hosted_partitions import (
    TRANSITIONS,
    HostedPartitions,
    HostedState,
    OfflineCause,
    diagram,
)

KEY = (b"t" * 16, 0)
PAGE = Path(__file__).parents[4] / "docs/internals/partition.md"


def table() -> HostedPartitions:
    return HostedPartitions(lambda: 0.0)


def state(hosted: HostedPartitions) -> HostedState | None:
    known = hosted.get(KEY)
    return known and known.state


def test_the_page_shows_the_diagram_of_the_table() -> None:
    assert f"```mermaid\n{diagram()}```\n" in PAGE.read_text()


def test_each_state_can_be_reached_and_left() -> None:
    for each in (None, *HostedState):
        assert [after for before, after in TRANSITIONS if before is each and after is not each]
        assert [before for before, after in TRANSITIONS if after is each and before is not each]


def test_a_partition_is_created_served_and_deleted() -> None:
    hosted = table()
    assert hosted.is_wanted(KEY)
    hosted.mark_creating(KEY)
    assert hosted.is_wanted(KEY)
    assert list(hosted.keys_in(HostedState.CREATING)) == [KEY]
    hosted.mark_online(KEY)
    assert not hosted.is_wanted(KEY)
    assert hosted.is_settled(lambda topic_id: False)
    hosted.mark_deleting(KEY)
    assert not hosted.is_settled(lambda topic_id: True)
    hosted.forget(KEY)
    assert state(hosted) is None
    assert hosted.is_settled(lambda topic_id: False)


def test_what_is_created_must_be_known() -> None:
    hosted = table()
    hosted.mark_creating(KEY)
    assert hosted.is_settled(lambda topic_id: topic_id == KEY[0])
    assert not hosted.is_settled(lambda topic_id: False)


def test_a_partition_without_room_is_tried_again_with_its_reason() -> None:
    hosted = table()
    hosted.mark_creating(KEY)
    hosted.mark_offline(KEY, OfflineCause.NOT_CREATED, "full", retry=True)
    assert hosted.is_offline(KEY)
    assert hosted.to_retry(KEY[0]) == [KEY]
    assert hosted.creation_error(KEY[0], {KEY[1]}) == "full"
    assert hosted.creation_error(KEY[0], {KEY[1] + 1}) is None, "others can be used"
    hosted.mark_creating(KEY)
    assert not hosted.is_offline(KEY)
    assert hosted.to_retry(KEY[0]) == []
    again = hosted.get(KEY)
    assert again is not None
    assert again.reason == "full"
    hosted.mark_online(KEY)
    assert hosted.creation_error(KEY[0], {KEY[1]}) is None


def test_only_damaged_logs_count_as_there() -> None:
    hosted = table()
    for index, cause in enumerate(OfflineCause):
        hosted.mark_offline((KEY[0], index), cause, "why")
    assert hosted.without_log() == len(OfflineCause) - 1


def test_what_is_not_in_the_table_of_transitions_is_a_bug() -> None:
    hosted = table()
    with pytest.raises(BugError):
        hosted.mark_online(KEY)
    hosted.mark_opening(KEY)
    hosted.mark_online(KEY)
    with pytest.raises(BugError):
        hosted.mark_offline(KEY, OfflineCause.NOT_OPENED, "why")
    assert state(hosted) is HostedState.ONLINE
