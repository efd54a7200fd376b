"""A change of metadata that is larger than one batch: a crash at any disk call leaves all of it or nothing."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.worlds.broker_world import InProcess, Line

from duramen.errors import ErrorCode, KafkaError
from duramen.partition.host.host import Host
from duramen.sim.world.disk import CrashDisk, NodeDied
from duramen.storage.journal.journal import Journal
from duramen.wire.messages import API

SETTINGS = {"duramen_journal_max_bytes": str(1 << 18), "duramen_journal_part_bytes": str(1 << 16)}
TOPICS = [f"t{number}" for number in range(40)]
BATCH_BYTES = 300


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Host.__init__.__kwdefaults__, "max_batch_bytes", BATCH_BYTES)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def prepared() -> CrashDisk:
    """A disk with topics that nobody uses."""
    server = InProcess(**SETTINGS)
    line = server.connect()
    for name in TOPICS:
        line.create_topic(name)
    server.disk.kill()
    return server.disk


def change(line: Line, value: int) -> None:
    """Ask for one setting of every topic."""
    message = API[44].request
    config = message.AlterableConfig(name="retention.ms", config_operation=0, value=str(value))
    resources = [message.AlterConfigsResource(resource_type=2, resource_name=name, configs=[config]) for name in TOPICS]
    line.ask(44, 1, resources=resources, validate_only=False)


def changed(server: InProcess) -> set[Any]:
    return {server.broker.image.topic_config(name).get("retention.ms") for name in TOPICS}


def nearly_full_part(server: InProcess, line: Line) -> None:
    """The journal goes on in another part within the change: it is not one group that makes it durable."""
    journal: Journal = server.broker.store.directories[0].journal
    while (left := journal._current.limit - journal._current.position) > 3_000:
        assert line.produce("t0", bytes(min(left - 2_500, 20_000))).error_code == 0


def assert_goes_on(disk: CrashDisk, expected: set[Any] | None = None) -> set[Any]:
    """What a start finds is whole, can be changed, and the next start finds that."""
    disk.power_on()
    server = InProcess(disk, **SETTINGS)
    found = changed(server)
    assert found in ([{None}, {"1000000"}] if expected is None else [expected])
    line = server.connect()
    change(line, 2_000_000)
    server.run()
    assert {each.error_code for each in line.answer(44, 1).responses} == {0}
    disk.kill()
    disk.power_on()
    assert changed(InProcess(disk, **SETTINGS)) == {"2000000"}
    return found


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_a_crash_leaves_all_of_a_large_change_or_nothing(prepared: CrashDisk, how: str) -> None:
    left = []
    for number in range(1, 200):
        disk = prepared.copy(Random(number))
        server = InProcess(disk, **SETTINGS)
        line = server.connect()
        nearly_full_part(server, line)
        disk.record = []
        setattr(disk, f"{how}_at", disk.calls + number)
        try:
            change(line, 1_000_000)
            server.run()
        except NodeDied:
            left.append(assert_goes_on(disk))
            continue
        assert line.answer(44, 1) is not None
        written = list(disk.record)
        break
    disk.kill()
    assert_goes_on(disk, {"1000000"})
    assert {None} in left
    assert {"1000000"} in left
    assert len({path for _, operation, path, _ in written if operation == "pwritev" and "journal" in path}) == 2


@pytest.mark.parametrize("accepted", [1, 2, 3])
def test_what_is_left_open_when_the_process_ends_never_counts(
    prepared: CrashDisk, accepted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal took its beginning, durably, and neither the rest nor the end that takes it back."""
    disk = prepared.copy(Random(0))
    server = InProcess(disk, **SETTINGS)
    line = server.connect()
    admit, count = Journal.admit, 0

    def refuse(self: Journal, size: int) -> None:
        nonlocal count
        count += 1
        if count > accepted:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the journal is full")
        admit(self, size)

    monkeypatch.setattr(Journal, "admit", refuse)
    change(line, 1_000_000)
    server.run()
    assert {each.error_code for each in line.answer(44, 1).responses} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert changed(server) == {None}
    monkeypatch.setattr(Journal, "admit", admit)
    disk.power_cut()
    assert_goes_on(disk, {None})
