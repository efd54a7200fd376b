"""What a start may delete: logs of topics that the metadata log says were deleted, and nothing else."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

import duramen
from duramen.embedded.records import Record
from duramen.errors import StorageError
from duramen.storage.directory import log_directory

LOG = "00000000000000000000.log"


def test_logs_that_nobody_deleted_are_kept(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log")) as log:
        log.topic("t").append([Record(b"v")])
    before = (tmp_path / "log" / "t-0" / LOG).read_bytes()
    for name in ("__cluster_metadata-0", "duramen-checkpoint"):
        path = tmp_path / "log" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for _ in range(2):
        with duramen.open(str(tmp_path / "log")) as log:
            assert log.topics() == []
        assert (tmp_path / "log" / "t-0" / LOG).read_bytes() == before


def test_a_log_whose_deletion_a_crash_interrupted_goes(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log")) as log:
        log.topic("t").append([Record(b"v")])
    shutil.copytree(tmp_path / "log" / "t-0", tmp_path / "kept")
    with duramen.open(str(tmp_path / "log")) as log:
        log.delete_topic("t")
    shutil.rmtree(tmp_path / "log" / "t-0", ignore_errors=True)
    shutil.copytree(tmp_path / "kept", tmp_path / "log" / "t-0")
    with duramen.open(str(tmp_path / "log")) as log:
        assert log.topics() == []
        assert not (tmp_path / "log" / "t-0").exists()


def test_no_retention_reaches_the_metadata_log(tmp_path: Path) -> None:
    with duramen.open(str(tmp_path / "log"), {"log.retention.bytes": "1"}) as log:
        config = log._controller.partition.config
        assert (config.retention_bytes, config.retention_ms) == (-1, -1)


def test_a_metadata_log_without_its_beginning_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with duramen.open(str(tmp_path / "log")) as log:
        log.topic("t").append([Record(b"v")])
    opened = log_directory.open_log

    def shortened(*args, **more):  # type: ignore[no-untyped-def]
        found = opened(*args, **more)
        if found.tp.topic == "__cluster_metadata":
            found.start_offset = 2
        return found

    monkeypatch.setattr(log_directory, "open_log", shortened)
    with pytest.raises(StorageError, match="snapshot"):
        duramen.open(str(tmp_path / "log"))


def test_one_of_several_directories_of_a_node_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    """Its partitions in the other directories would begin anew here, and hide what those hold."""
    with duramen.open(str(tmp_path / "log")) as log:
        log.topic("t").append([Record(b"v")])
    shutil.move(tmp_path / "log" / "t-0", tmp_path / "t-0")
    meta = tmp_path / "log" / "meta.properties"
    lines = [line for line in meta.read_text().splitlines() if not line.startswith("directory.id")]
    meta.write_text("\n".join(lines) + "\n")
    for name in ("duramen-directory", "duramen-checkpoint"):
        (tmp_path / "log" / name).unlink()
    with pytest.raises(StorageError, match="one of several log directories"):
        duramen.open(str(tmp_path / "log"))
    assert not (tmp_path / "log" / "t-0").exists()


def test_what_is_damaged_or_gone_is_told_by_its_name(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The program heard that the topic was deleted, or nothing."""
    path = tmp_path / "log"
    with duramen.open(path) as log:
        topic = log.topic("t", partitions=3)
        for partition in range(3):
            topic.append([Record(b"v")] * 5, partition=partition)
    (path / "t-0" / LOG).write_bytes(b"")
    shutil.rmtree(path / "t-1")
    with caplog.at_level(logging.WARNING, "duramen"), duramen.open(path) as log:
        topic = log.topic("t")
        for use in (lambda: list(topic.read(0)), lambda: topic.append([Record(b"w")], 0), lambda: topic.end_offset(0)):
            with pytest.raises(StorageError, match=r"partition 0 of t is not served: .*t-0.*damaged"):
                use()
        with pytest.raises(StorageError, match=r"partition 1 of t is not served: .*t-1 is missing"):
            topic.append([Record(b"w")], 1)
        assert topic.append([Record(b"w")], 2) == [5]
        log.delete_topic("t")
        with pytest.raises(duramen.KafkaError, match="t was deleted"):
            topic.end_offset(2)
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert f"{path}/t-1 is missing, and the log went up to offset 5" in told
    assert f"{path}/t-0/{LOG}" in told


def test_an_error_of_the_disk_names_the_file(tmp_path: Path) -> None:
    with duramen.open(tmp_path) as log:
        log.topic("t").append([Record(b"v")])
    (tmp_path / "duramen-checkpoint").unlink()
    (tmp_path / "duramen-checkpoint").mkdir()
    with pytest.raises(StorageError, match="duramen-checkpoint: Is a directory"):
        duramen.open(tmp_path)
