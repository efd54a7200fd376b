"""A node that was away while topics were deleted, and made again under their names: what it keeps, and what not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from tests.worlds.copies_world import TOPIC, CopiesWorld

from duramen.model import topic_id_text
from duramen.sim.world.disk import CrashDisk
from duramen.storage.files.atomic import replace_file

SHORT_LOG = {
    "metadata_log_max_record_bytes_between_snapshots": "150",
    "metadata_max_retention_bytes": "300",
    "log_segment_delete_delay_ms": "100",
}
"""The metadata log begins soon behind where somebody who was away left it."""
HOME = f"/data/{TOPIC}-0"


def homes(world: CopiesWorld, node_id: int) -> set[str]:
    """The topic's directories there, whatever they are called."""
    folders = {path.rpartition("/")[0] for path in world.world.disks[node_id].contents()}
    return {folder for folder in folders if folder.startswith(f"{HOME}")}


def bystander(world: CopiesWorld) -> int:
    """A node that leads neither the quorum nor the topic."""
    return next(each for each in world.others() if each != world.leader())


def deleted(world: CopiesWorld) -> str:
    """The topic is deleted where somebody runs; its id."""
    topic_id = topic_id_text(world.brokers[world.active()].image.topics[TOPIC].id)
    answers = world.delete()
    assert world.until(lambda: bool(answers))
    assert answers[0].responses[0].error_code == 0
    assert world.until(lambda: all(TOPIC not in world.brokers[each].image.topics for each in world.running))
    return topic_id


def put_back(disk: CrashDisk, saved: Mapping[str, bytes], folder: str) -> None:
    """The folder has nothing but what it had once, durably; the node does not run."""
    disk.power_on()
    for path in disk.contents():
        if path.startswith(f"{folder}/"):
            disk.remove(path)
    for path, content in saved.items():
        if path.startswith(f"{folder}/"):
            disk.make_directories(path.rpartition("/")[0])
            replace_file(disk, path, content)
    disk.end_process()


def have_snapshot(world: CopiesWorld, node_id: int) -> None:
    """Have a snapshot of what is committed, or more, on the node's disk."""
    controller = world.brokers[node_id].controller
    position = world.brokers[world.active()].controller.position
    for number in range(200):
        if controller._snapshots.kept[-1].offset >= position:
            return
        world.create(f"more-{position}-{number}")
    raise AssertionError("it writes none")


def forget(world: CopiesWorld, end: int) -> None:
    """Have the metadata log begin behind `end` where it is led."""
    for number in range(200):
        leader = world.brokers[world.active()].controller.partition
        if leader.log_start_offset > end:
            return
        world.create(f"other-{number}")
    raise AssertionError("it is not cut")


def test_what_was_deleted_meanwhile_is_deleted_by_a_start_that_loads_a_snapshot() -> None:
    world = CopiesWorld(settings=SHORT_LOG)
    world.produce(b"old")
    away, made = bystander(world), world.brokers[world.active()].controller.position
    for number in range(9):
        world.create(f"more-{number}")
    controller = world.brokers[away].controller
    assert world.until(lambda: controller._snapshots.kept[-1].offset > made)
    end = world.brokers[away].controller.partition.log_end_offset
    world.world.nodes[away].kill()
    deleted(world)
    forget(world, end)
    world.create(TOPIC)
    world.start(away)
    assert world.in_sync(1, 2, 3)
    assert world.produce(b"new") == 0
    assert world.until(world.are_equal)
    assert away in world.told("snapshot-loaded")
    assert world.told("log-of-deleted-topic") == [away]
    assert world.until(lambda: homes(world, away) == {HOME}, seconds=10)


def test_a_start_waits_until_it_knows_what_its_disk_shows() -> None:
    """The end of the metadata log was not on stable storage when the process before made partitions by it."""
    world = CopiesWorld(settings={"metadata_log_dir": "/meta", "controller_quorum_fetch_max_bytes": "100"})
    world.produce(b"old")
    away = bystander(world)
    disk, node = world.world.disks[away], world.world.nodes[away]
    node.kill()
    before = disk.contents()
    world.start(away)
    assert world.in_sync(1, 2, 3)
    deleted(world)
    world.create(TOPIC)
    assert world.produce(b"new") == 0
    assert world.until(world.are_equal)
    node.kill()
    put_back(disk, before, "/meta")
    world.events.clear()
    world.start(away)
    assert world.in_sync(1, 2, 3)
    assert world.until(world.are_equal)
    assert world.bytes_of(away)
    told = {"partition-offline", "log-of-unknown-topic", "log-is-stray", "topic-created", "replica-begun-anew"}
    assert [event for node_id, event, _ in world.events if node_id == away and event in told] == []
    assert world.until(lambda: homes(world, away) == {HOME})


def stop(world: CopiesWorld, node_id: int) -> None:
    """Cleanly."""
    node = world.world.nodes[node_id]
    node.stop()
    assert world.until(lambda: not node.running)


def strayed(world: CopiesWorld, node_id: int) -> set[str]:
    return {home for home in homes(world, node_id) if home.endswith("-stray")}


def with_old_log() -> tuple[CopiesWorld, int, dict[str, bytes]]:
    """A world, a node that does not run, and the log of a topic that is deleted, which somebody has put back there."""
    world = CopiesWorld(settings=SHORT_LOG)
    world.produce(b"old")
    assert world.until(world.are_equal)
    away = bystander(world)
    stop(world, away)
    old = {path: data for path, data in world.world.disks[away].contents().items() if path.startswith(f"{HOME}/")}
    world.start(away)
    assert world.in_sync(1, 2, 3)
    deleted(world)
    assert world.until(lambda: not homes(world, away), seconds=10)
    have_snapshot(world, away)
    stop(world, away)
    put_back(world.world.disks[away], old, HOME)
    return world, away, old


@pytest.mark.parametrize("made", ["before its start", "afterwards"])
def test_a_log_that_is_nobodys_makes_way_and_is_kept(made: str) -> None:
    world, away, old = with_old_log()
    disk, node = world.world.disks[away], world.world.nodes[away]
    if made == "afterwards":
        world.start(away)
        assert homes(world, away) == {HOME}
    world.create(TOPIC)
    if made != "afterwards":
        world.start(away)
    assert world.in_sync(1, 2, 3)
    assert world.produce(b"new") == 0
    assert world.until(world.are_equal)
    assert world.told("log-of-unknown-topic") == [away]
    (told,) = [fields for node_id, event, fields in world.events if event == "log-is-stray"]
    (stray,) = strayed(world, away)
    assert stray == told["path"]

    def is_kept() -> bool:
        found = disk.contents()
        return all(found[path.replace(HOME, stray)] == data for path, data in old.items() if path.endswith(".log"))

    assert is_kept()
    node.power_cut()
    world.start(away)
    assert world.until(world.are_equal)
    deleted(world)
    world.create(TOPIC)
    world.run(5.0)
    stop(world, away)
    world.start(away)
    assert world.until(world.are_equal)
    assert homes(world, away) == {HOME, stray}
    assert is_kept()
    assert len([event for _, event, _ in world.events if event == "log-is-stray"]) == 1
