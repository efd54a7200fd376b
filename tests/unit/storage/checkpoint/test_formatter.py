"""Formatting: only what is empty, only once, and what was interrupted goes on with the ids that it drew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from duramen.errors import DirectoryLockedError, StorageError
from duramen.sim.world.disk import CrashDisk
from duramen.storage.checkpoint.formatter import Formatter
from duramen.storage.checkpoint.kafka_files import FORMATTING
from duramen.storage.checkpoint.shared_cluster import mark_shared
from duramen.storage.files.atomic import read_file, replace_file
from duramen.storage.files.crc_lines import encode_lines

CLUSTER = "4L6g3nShT-eMCtK--X86sw"


@pytest.fixture
def disk() -> CrashDisk:
    return CrashDisk()


@pytest.fixture
def ids() -> Callable[[], str]:
    numbers = iter(range(100))
    return lambda: f"id-{next(numbers)}"


def formatting(disk: CrashDisk, ids: Callable[[], str], **changes: object) -> Formatter:
    def batches(*_: str) -> Iterator[bytearray]:
        yield bytearray(b"batches")

    wanted: dict[str, object] = {
        "disk": disk,
        "paths": ["/a", "/m"],
        "metadata": "/m",
        "node_id": 1,
        "cluster_id": None,
        "directory_id": None,
        "new_id": ids,
        "bootstrap": batches,
        "voters": batches,
        "is_shared": True,
    }
    return Formatter(**wanted | changes)  # type: ignore[arg-type]


def interrupted(disk: CrashDisk, ids: Callable[[], str], **changes: object) -> None:
    """What a crash in front of the last step leaves."""
    formatted = formatting(disk, ids, **changes).run()
    for path, identity in formatted:
        line = f"{FORMATTING} 1 several-nodes {identity.node_id} {identity.cluster_id} {identity.directory_id}"
        replace_file(disk, f"{path}/{FORMATTING}", encode_lines([line]))


def test_what_is_formatted_is_not_formatted_again(disk: CrashDisk, ids: Callable[[], str]) -> None:
    formatting(disk, ids, cluster_id=CLUSTER).run()
    before = disk.contents()
    with pytest.raises(StorageError, match=f"/a is formatted already, for node 1 of cluster {CLUSTER}"):
        formatting(disk, ids, cluster_id=CLUSTER).run()
    assert disk.contents() == before


def test_a_metadata_directory_that_was_lost_is_formatted_alone(disk: CrashDisk, ids: Callable[[], str]) -> None:
    formatting(disk, ids, cluster_id=CLUSTER, paths=["/a"], metadata="/a").run()
    with pytest.raises(StorageError, match=r"/a is formatted already, .*: --set log\.dirs=/m formats the metadata"):
        formatting(disk, ids, cluster_id=CLUSTER).run()
    alone = formatting(disk, ids, cluster_id=CLUSTER, paths=["/m"]).run()
    assert [each.path for each in alone] == ["/m"]


@pytest.mark.parametrize("name", ["topic-0/partition.metadata", "__cluster_metadata-0/x", "duramen-directory", "notes"])
def test_what_is_not_empty_is_left_alone(disk: CrashDisk, ids: Callable[[], str], name: str) -> None:
    disk.make_directories(f"/a/{name}".rpartition("/")[0])
    replace_file(disk, f"/a/{name}", b"x")
    with pytest.raises(StorageError, match=f"/a is not empty, it has {name.partition('/')[0]}"):
        formatting(disk, ids).run()
    assert not disk.exists("/m/meta.properties")
    assert read_file(disk, f"/a/{name}") == b"x"


def test_what_was_interrupted_goes_on_with_its_ids(disk: CrashDisk, ids: Callable[[], str]) -> None:
    interrupted(disk, ids)
    first = {path: read_file(disk, f"{path}/meta.properties") for path in ("/a", "/m")}
    disk.remove("/m/meta.properties")
    formatted = formatting(disk, ids).run()
    assert {path: read_file(disk, f"{path}/meta.properties") for path in ("/a", "/m")} == first
    assert len({each.identity.cluster_id for each in formatted}) == 1
    assert not disk.exists(f"/a/{FORMATTING}")
    assert not disk.exists(f"/m/{FORMATTING}")


def test_one_directory_was_done_before_it_was_interrupted(disk: CrashDisk, ids: Callable[[], str]) -> None:
    interrupted(disk, ids)
    disk.remove(f"/a/{FORMATTING}")
    done = read_file(disk, "/a/meta.properties")
    formatting(disk, ids).run()
    assert read_file(disk, "/a/meta.properties") == done


@pytest.mark.parametrize("change", [{"cluster_id": CLUSTER}, {"node_id": 2}, {"directory_id": CLUSTER}])
def test_something_else_is_not_made_of_what_was_interrupted(
    disk: CrashDisk, ids: Callable[[], str], change: dict[str, object]
) -> None:
    interrupted(disk, ids)
    with pytest.raises(StorageError, match=r"formatting was begun here for node 1 .*ask for the same again, or remove"):
        formatting(disk, ids, **change).run()


def test_a_damaged_sign_says_what_to_remove(disk: CrashDisk, ids: Callable[[], str]) -> None:
    interrupted(disk, ids)
    replace_file(disk, f"/a/{FORMATTING}", b"nonsense")
    with pytest.raises(StorageError, match=f"/a/{FORMATTING} is damaged.*remove it"):
        formatting(disk, ids).run()


def test_a_directory_in_use_is_refused(disk: CrashDisk, ids: Callable[[], str]) -> None:
    disk.make_directories("/m")
    lock = disk.lock("/m/.lock")
    with pytest.raises(DirectoryLockedError):
        formatting(disk, ids).run()
    lock.release()
    formatting(disk, ids).run()


def test_the_sign_of_several_nodes_is_there_or_not(disk: CrashDisk, ids: Callable[[], str]) -> None:
    interrupted(disk, ids)
    with pytest.raises(StorageError, match="/a: formatting was begun here for several-nodes, now it is for one-node"):
        formatting(disk, ids, is_shared=False).run()
    formatting(disk, ids).run()
    assert disk.exists("/a/duramen-cluster")
    assert disk.exists("/m/duramen-cluster")
    other = CrashDisk()
    mark_shared_before_anything_else(other)
    formatting(other, ids, is_shared=False).run()
    assert not other.exists("/a/duramen-cluster")


def mark_shared_before_anything_else(disk: CrashDisk) -> None:
    """What a crash behind the first step leaves."""
    for path in ("/a", "/m"):
        disk.make_directories(path)
        mark_shared(disk, path)


def test_an_error_at_any_call_of_the_disk_is_told_and_the_same_again_completes_it() -> None:
    def error_at(number: int) -> CrashDisk:
        disk = CrashDisk()
        disk.fault = lambda call: OSError(5, "Input/output error", call.path) if call.number == number else None
        with pytest.raises(OSError, match="Input/output error"):
            formatting(disk, lambda: f"id-{disk.calls}").run()
        disk.fault = None
        return disk

    quiet = CrashDisk()
    formatting(quiet, lambda: f"id-{quiet.calls}").run()
    assert quiet.calls > 100
    for number in range(1, quiet.calls - 4):  # the last ones let go of the locks, and sync what need not be
        disk = error_at(number)
        drawn = {path: read_file(disk, f"{path}/meta.properties") for path in ("/a", "/m")}
        disk.end_process()
        with suppress(StorageError):  # it was done
            formatting(disk, lambda: "later").run()
        for path, content in drawn.items():
            assert content in (None, read_file(disk, f"{path}/meta.properties"))
            assert not disk.exists(f"{path}/{FORMATTING}")
            assert disk.exists(f"{path}/duramen-cluster")
            assert disk.exists(f"{path}/meta.properties")
