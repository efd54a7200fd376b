"""The disk with the metadata log is gone: `duramen log repair --metadata` on one that is left, and the node serves."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from tests.unit.server.broker_world import InProcess
from tests.unit.server.lost_metadata_world import producer_id, stopped

from duramen.cli import repair as repair_command
from duramen.cli.inspection import verify_directory
from duramen.cli.new_metadata import FIRST_OFFSET, make, survey
from duramen.cli.repair import CannotError
from duramen.errors import DuramenError
from duramen.model import TopicPartition
from duramen.partition.catalog import METADATA_PARTITION
from duramen.sim.disk import CrashDisk

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from repair_world import cut_short

TOPICS = [f"t{number}" for number in range(8)]
LEFT = "/b"


def lost_disk(*, clean: bool) -> tuple[CrashDisk, set[str], int, int]:
    """A node's other disk is left; its topics' names, the latest leader epoch, and a producer id that was given out."""
    server = InProcess(log_dirs="/a,/b")
    for name in TOPICS:
        server.connect().create_topic(name)
    for _ in range(2):
        disk = stopped(server)
        server = InProcess(disk, log_dirs="/a,/b")
        for name in TOPICS:
            server.connect().produce(name, name.encode())
    store = server.broker.store
    assert store.home(METADATA_PARTITION).path == "/a"
    left = {name for name in TOPICS if store.home(TopicPartition(name, 0)).path == LEFT}
    assert left
    assert left != set(TOPICS)
    epoch = max(partition.leader_epoch for partition in store.partitions.values())
    given = producer_id(server.connect())
    if clean:
        stopped(server)
    else:
        disk.kill()
        disk.power_on()
    disk.remove("/a")
    disk.sync_directory("/")
    return disk, left, epoch, given


def repair(disk: CrashDisk, **options: bool) -> int:
    with patch.object(repair_command, "RealDisk", lambda: disk):
        wanted = {"without": False, "dry_run": False, "yes": True, "as_json": True, "anew": True, **options}
        return int(repair_command.command.callback(LEFT, None, None, **wanted))  # type: ignore[misc]


@pytest.mark.parametrize("log_dirs", ["/a,/b", "/b"])
@pytest.mark.parametrize("refused_first", [False, True])
@pytest.mark.parametrize("clean", [True, False])
def test_what_the_other_disks_have_is_served_again(log_dirs: str, refused_first: bool, clean: bool) -> None:
    disk, left, epoch, given = lost_disk(clean=clean)
    if refused_first:
        with pytest.raises(DuramenError, match=f"`duramen log repair {LEFT} --metadata`"):
            InProcess(disk, log_dirs=log_dirs)
        disk.end_process()
    assert repair(disk, dry_run=True) == 1
    assert not disk.exists(f"{LEFT}/{METADATA_PARTITION}")
    assert repair(disk) == 1
    for number in range(3):
        server = InProcess(disk, log_dirs=log_dirs)
        assert set(server.broker.image.names()) == left
        events = [event for event, _ in server.events]
        assert events.count("topic-regained") == (0 if number else len(left))
        assert not {"partition-offline", "log-of-unknown-topic", "topic-created", "damage"} & set(events)
        line = server.connect()
        for name in left:
            partition = server.broker.store.partitions[TopicPartition(name, 0)]
            assert partition.leader_epoch > max(epoch, FIRST_OFFSET)
            assert line.produce(name, b"more").base_offset == 2 + number
        assert producer_id(line) > given
        stopped(server)
        assert not list(verify_directory(disk, LEFT, lambda size: None).all_findings())


@pytest.mark.parametrize("clean", [True, False])
def test_it_may_end_in_any_call(clean: bool) -> None:
    disk, left, _, _ = lost_disk(clean=clean)
    ends = set()

    def whole(copy: CrashDisk) -> None:
        make(copy, LEFT, 0, repair_command._Entropy(), recovers=survey(copy, LEFT))

    for cut in cut_short(disk, whole):
        ends.add(cut.exists(f"{LEFT}/{METADATA_PARTITION}"))
        if not cut.exists(f"{LEFT}/{METADATA_PARTITION}"):
            with pytest.raises(DuramenError, match="--metadata"):
                InProcess(cut, log_dirs=LEFT)
            cut.end_process()
            whole(cut)
        server = InProcess(cut, log_dirs=LEFT)
        assert set(server.broker.image.names()) == left
        assert server.broker.store.partitions[METADATA_PARTITION].log_end_offset > FIRST_OFFSET
    assert ends == {False, True}


def test_it_is_only_for_a_metadata_log_that_is_gone() -> None:
    server = InProcess()
    server.connect().create_topic("t")
    disk = stopped(server)
    disk.rename("/data", LEFT)
    with pytest.raises(CannotError, match="is there; `duramen log repair /b` without --metadata"):
        repair(disk)
    disk.remove(f"{LEFT}/{METADATA_PARTITION}")
    with pytest.raises(CannotError, match="is known to be missing: `duramen log repair /b` without --metadata"):
        repair(disk)


def test_an_unused_directory_is_not_the_one() -> None:
    server = InProcess(log_dirs="/a,/b")
    disk = stopped(server)
    disk.remove("/a")
    with pytest.raises(CannotError, match="has no partitions"):
        repair(disk)
