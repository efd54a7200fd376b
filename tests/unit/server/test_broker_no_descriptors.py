"""Too many files are open, or a disk has no room for names: what could not be done is done later, and nothing fails."""

from __future__ import annotations

import errno

import pytest
from tests.unit.server.test_broker_full_disk import KAFKA_STORAGE_ERROR, NOW, all_offsets, create, events
from tests.unit.server.test_broker_metadata_snapshots import restarted
from tests.unit.server.test_broker_recreated_topics import delete_topic
from tests.worlds.broker_world import InProcess

from duramen.sim.world.disk import DiskCall
from duramen.storage.files.ballast import BALLAST
from duramen.wire.batch import build_batch
from duramen.wire.messages import API

OPENS = ("open", "sync_directory", "list_directory")
"""Calls that need a descriptor of their own."""
SETTINGS = {"log_cleaner_backoff_ms": "1000", "log_retention_check_interval_ms": "10000"}


class Scarce:
    """A node with a topic that rolls, one that is compacted and one to be deleted; calls to be refused by name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("duramen.storage.segment.producer_state.ProducerStates.__len__", lambda self: 1)
        self.server = InProcess(**SETTINGS)
        self.disk = self.server.disk
        self.line = self.server.connect()
        self.line.create_topic("old", internal_segment_bytes="1000", retention_ms="40000", file_delete_delay_ms="0")
        self.line.create_topic(
            "keys", internal_segment_bytes="1000", cleanup_policy="compact", min_cleanable_dirty_ratio="0"
        )
        self.line.create_topic("gone", file_delete_delay_ms="0")
        self.refused = 0

    def refuse(self, name: str, code: int, operations: tuple[str, ...] = OPENS) -> None:
        """From now on these calls fail where the path contains the name."""
        self.refused = 0

        def none_left(call: DiskCall) -> OSError | None:
            if call.operation not in operations or name not in call.path:
                return None
            self.refused += 1
            return OSError(code, "no more")

        self.disk.fault = none_left

    def work(self) -> None:
        """Everything that the background has to do comes due."""
        for topic in ("old", "keys", "gone"):
            for number in range(6):
                self.line.produce(topic, bytes([number]) * 300)
        self.server.pass_ms(70_000)
        self.line = self.server.connect()
        for topic in ("old", "keys", "gone"):
            self.line.produce(topic, b"last")
        self.server.pass_ms(10_000)

    def assert_sound(self) -> None:
        """And caught up with what could not be done."""
        assert "directory-failed" not in events(self.server)
        self.disk.fault = None
        self.server.pass_ms(1_000_000)
        self.line = self.server.connect()
        assert self.line.produce("old", b"end").error_code == 0
        assert self.line.produce("keys", b"end").error_code == 0
        assert create(self.line, "new") == 0
        (directory,) = self.server.broker.store.directories
        assert directory.journal.no_room is None
        assert self.disk.exists(f"/data/{BALLAST}")
        logs = {log.tp.topic: log for log in directory.logs.values()}
        assert all(segment.sealed for segment in logs["keys"].segments[:-1])
        assert logs["old"].start_offset >= 6
        assert not directory.findings.known
        found = all_offsets(self.line, "keys")
        self.disk.power_cut()
        self.disk.power_on()
        again = InProcess(self.disk, **SETTINGS)
        assert not {"damage", "partition-offline"} & set(events(again))
        assert all_offsets(again.connect(), "keys") == found
        assert not [path for path in self.disk.contents() if ".deleted" in path or "-delete/" in path]


NAMES = [
    ".log", ".index", ".timeindex", ".seal", ".sealing", ".snapshot", ".producers", ".cleaned", "-checkpoint", BALLAST,
    "/data/keys-0", "/data/old-0", "-delete", "/data",
]  # fmt: skip


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("name", NAMES)
def test_what_could_not_be_opened_is_opened_later(name: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Scarce(monkeypatch)
    world.work()
    world.refuse(name, code)
    world.work()
    delete_topic(world.line, "gone")
    world.server.pass_ms(5_000)
    world.assert_sound()


@pytest.mark.parametrize("name", [".swap", ".swap -> ", ".cleaned -> ", "/gone-0 -> ", ".deleted", ""])
def test_names_that_find_no_room_are_given_later(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Scarce(monkeypatch)
    world.work()
    world.refuse(name, errno.ENOSPC, ("rename",))
    world.work()
    delete_topic(world.line, "gone")
    world.server.pass_ms(5_000)
    assert world.refused
    world.assert_sound()


def test_a_removal_that_finds_no_room_is_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a file system that copies what it changes."""
    world = Scarce(monkeypatch)
    world.work()
    world.refuse("", errno.ENOSPC, ("remove",))
    delete_topic(world.line, "gone")
    world.server.pass_ms(70_000)
    assert world.refused
    world.assert_sound()


def test_a_log_whose_file_was_closed_takes_writes_when_it_can_be_opened_again() -> None:
    server = InProcess(duramen_open_files_max="3")
    line = server.connect()
    for number in range(8):
        line.create_topic(f"t{number}")
        assert line.produce(f"t{number}", b"0").error_code == 0
    server.pass_ms(70_000)
    opened: list[str] = []

    def none_left(call: DiskCall) -> OSError | None:
        if call.operation != "open" or not call.path.endswith(".log"):
            return None
        opened.append(call.path)
        return OSError(errno.EMFILE, "Too many open files")

    server.disk.fault = none_left
    line.ask_produce("t0", b"1", timeout_ms=30_000)
    server.pass_ms(3_000)
    assert opened
    assert line.produced() is None, "a moment later it is known"
    refused = server.connect().produce("t1", b"1")
    assert (refused.error_code, "cannot open files" in refused.error_message) == (KAFKA_STORAGE_ERROR, True)
    server.disk.fault = None
    server.pass_ms(2_000)
    assert line.produced().error_code == 0
    assert line.produce("t0", b"2").error_code == 0
    server.pass_ms(20_000)
    told = events(server)
    assert [told.count("files-cannot-be-opened"), told.count("files-can-be-opened")] == [1, 1]
    assert not {"directory-failed", "directory-full", "directory-has-room"} & set(told)
    assert all_offsets(line, "t0") == [0, 1, 2]


def test_a_group_that_cannot_open_a_directory_is_made_durable_later() -> None:
    server = InProcess(duramen_journal_bypass_bytes="10000")
    line = server.connect()
    line.create_topic("t")
    server.disk.fault = lambda call: (
        OSError(errno.EMFILE, "no more") if tuple(call)[1:3] == ("sync_directory", "/data/t-0") else None
    )
    line.ask_produce("t", bytes(30_000), timeout_ms=30_000)
    server.pass_ms(5_000)
    assert line.produced() is None
    server.pass_ms(10_000)
    assert line.produced().error_code == KAFKA_STORAGE_ERROR  # whether it will be there is not known
    server.disk.fault = None
    server.pass_ms(5_000)
    assert line.produce("t", b"1").error_code == 0
    server.disk.power_cut()
    server.disk.power_on()
    assert all_offsets(InProcess(server.disk).connect(), "t") == [0, 1]


@pytest.mark.parametrize("how", ["kill", "power_cut", "stop"])
def test_a_deleted_log_that_has_its_name_still_is_gone_after_a_restart(how: str) -> None:
    """Also where a snapshot of the metadata no longer says that its topic was deleted."""
    settings = {"metadata_log_max_record_bytes_between_snapshots": "1"}
    server = InProcess(**settings)
    line = server.connect()
    line.create_topic("gone")
    line.create_topic("kept")
    assert line.produce("gone", b"0").error_code == 0
    server.disk.fault = lambda call: (
        OSError(errno.ENOSPC, "no room") if call.operation == "rename" and "/gone-0 -> " in call.path else None
    )
    delete_topic(line, "gone")
    assert line.produce("kept", b"0").error_code == 0
    server.pass_ms(200_000)
    assert "snapshot-written" in events(server)
    server.disk.fault = None
    if how == "stop":
        server.broker.stop(lambda: None)
        server.run()
        server.disk.kill()
    else:
        getattr(server.disk, how)()
    server.disk.power_on()
    again = InProcess(server.disk, **settings)
    line = again.connect()
    assert again.broker.store.directories[0].clean_start is (how == "stop")
    assert not {"log-of-unknown-topic", "damage", "partition-offline"} & set(events(again))
    again.pass_ms(70_000)
    assert not [path for path in server.disk.contents() if "/gone-0" in path]
    assert create(line, "gone") == 0
    assert all_offsets(line, "kept") == [0]


def test_a_topic_whose_deleted_namesake_has_its_name_still_is_made_later() -> None:
    server = InProcess()
    line = server.connect()
    line.create_topic("t")
    assert line.produce("t", b"0").error_code == 0
    server.disk.fault = lambda call: (
        OSError(errno.ENOSPC, "no room") if call.operation == "rename" and "/t-0 -> " in call.path else None
    )
    delete_topic(line, "t")
    server.pass_ms(3_000)
    assert create(line, "t") == KAFKA_STORAGE_ERROR
    server.disk.fault = None
    server.pass_ms(20_000)
    assert create(line, "t") == 0
    assert line.produce("t", b"1").error_code == 0
    server.disk.power_cut()
    server.disk.power_on()
    assert all_offsets(InProcess(server.disk).connect(), "t") == [0]


def test_what_is_left_of_a_topic_that_could_not_be_made_is_not_in_its_way() -> None:
    """To remove a directory takes a descriptor, too."""
    server = InProcess()
    line = server.connect()
    server.disk.fault = lambda call: (
        OSError(errno.EMFILE, "Too many open files")
        if call.path.startswith("/data/t-0/") or tuple(call)[1:3] == ("remove", "/data/t-0")
        else None
    )
    for _ in range(2):
        assert create(line, "t") == KAFKA_STORAGE_ERROR
        server.pass_ms(3_000)
    assert server.disk.exists("/data/t-0")
    server.disk.fault = None
    assert create(line, "t") == 0
    assert line.produce("t", b"0").error_code == 0
    server.disk.power_cut()
    server.disk.power_on()
    assert all_offsets(InProcess(server.disk).connect(), "t") == [0]


@pytest.mark.parametrize("stops", [False, True])
def test_a_burst_for_more_partitions_than_files_may_be_open_is_written(
    stops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.sim.world.disk.DESCRIPTORS", 64)
    server = InProcess()
    disk = server.disk
    line = server.connect()
    assert create(line, "t", 200) == 0
    most = 0

    def none_left(call: DiskCall) -> OSError | None:
        nonlocal most
        most = max(most, disk.open_files)
        return OSError(errno.EMFILE, "no more") if call.operation in OPENS and disk.open_files >= 60 else None

    disk.fault = none_left
    request = API[0].request
    records = build_batch([(b"k", b"v", (), NOW)])
    data = [request.PartitionProduceData(index=index, records=records) for index in range(200)]
    for _ in range(3):
        line.ask(0, 9, acks=-1, timeout_ms=1000, topic_data=[request.TopicProduceData(name="t", partition_data=data)])
        if not stops:
            server.pass_ms(1_000)
            assert {part.error_code for part in line.answer(0, 9).responses[0].partition_responses} == {0}
    if stops:
        server.broker.stop(lambda: None)
        server.run()
    assert 32 < most < 60, "some were closed for others"
    assert not {"files-cannot-be-opened", "directory-full", "directory-failed", "stop-failed"} & set(events(server))
    disk.fault = None
    disk.power_cut()
    disk.power_on()
    (directory,) = restarted(disk).broker.store.directories
    assert directory.clean_start == stops
    assert {log.end_offset for log in directory.logs.values() if log.tp.topic == "t"} == {3}


@pytest.mark.parametrize("deletes", [False, True])
def test_more_files_than_may_be_open_are_written_synced_and_closed(deletes: bool) -> None:
    """Who was written to may not be closed before it is synced, and a sync opens files of its own."""
    server = InProcess(duramen_open_files_max="16")
    disk = server.disk
    admin = server.connect()
    admin.create_topic("gone")
    lines = [server.connect() for _ in range(60)]
    for number, line in enumerate(lines):
        line.create_topic(f"t{number}")
        assert line.produce(f"t{number}", b"0").error_code == 0
    server.pass_ms(70_000)
    most = disk.open_files + 20
    scarce = False

    def none_left(call: DiskCall) -> OSError | None:
        nonlocal scarce
        if call.operation not in OPENS or disk.open_files < most:
            return None
        scarce = True
        return OSError(errno.EMFILE, "Too many open files")

    disk.fault = none_left
    for number, line in enumerate(lines):
        line.ask_produce(f"t{number}", b"1")
    server.run()
    assert scarce
    if deletes:  # which is carried out before anything is checkpointed
        directory = server.broker.store.directories[0]
        most, none = 0, most
        with directory.journal.making_room():
            directory.delete_log(next(log for log in directory.logs.values() if log.tp.topic == "gone"))
        most = none
        assert directory._housekeeping.moving
    server.pass_ms(1_000)
    (remedy,) = [fields["remedy"] for event, fields in server.events if event == "files-cannot-be-opened"]
    assert "ulimit -n" in remedy
    for number in range(60):
        for _ in range(20):
            line = server.connect()
            line.ask_produce(f"t{number}", b"2")
            server.pass_ms(1_000)
            answer = line.produced()
            if answer is not None and answer.error_code == 0:
                break
        else:
            raise AssertionError(number)
    assert "directory-failed" not in events(server)
    server.broker.stop(lambda: None)
    server.run()
    assert "stop-failed" not in events(server)
    disk.fault = None
    disk.kill()
    disk.power_on()
    again = InProcess(disk)
    assert again.broker.store.directories[0].clean_start


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("grows", [False, True])
def test_what_is_left_of_a_partition_that_could_not_be_made_does_not_refuse_the_next_start(
    grows: bool, lasts: bool
) -> None:
    """A stop removes it; a stop that cannot leaves the directory as a crash does."""
    server = InProcess()
    line = server.connect()
    line.create_topic("u")
    assert line.produce("u", b"0").error_code == 0
    doomed = "/data/u-1" if grows else "/data/t-0"
    none_left = OSError(errno.EMFILE, "Too many open files")
    server.disk.fault = lambda call: (
        none_left
        if call.path.startswith(f"{doomed}/") or tuple(call)[1:3] in {("remove", doomed), ("list_directory", doomed)}
        else None
    )
    if grows:
        more = API[37].request.CreatePartitionsTopic(name="u", count=2, assignments=None)
        line.call(37, 3, topics=[more], timeout_ms=1000, validate_only=False)
    else:
        assert create(line, "t") == KAFKA_STORAGE_ERROR
    assert server.disk.exists(doomed)
    if not lasts:
        server.disk.fault = None
    stopped: list[bool] = []
    server.broker.stop(lambda: stopped.append(True))
    server.run()
    assert stopped
    assert ("stop-failed" in events(server)) == lasts
    server.disk.fault = None
    again = restarted(server.disk)
    assert not {"damage", "partition-offline"} & set(events(again))
    line = again.connect()
    assert all_offsets(line, "u") == [0]
    assert grows or create(line, "t") == 0
