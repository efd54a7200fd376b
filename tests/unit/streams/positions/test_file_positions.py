"""A position and a state in one file, replaced together."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from duramen.dlsn import BEFORE_FIRST, Dlsn
from duramen.errors import ClosedError, ConfigError, StorageError
from duramen.streams.errors import PositionDivergedError
from duramen.streams.positions.file_positions import FilePositions
from duramen.streams.positions.position_store import PositionTakenError

ORDERS = SimpleNamespace(topic="finance.orders", stream_id="a1" * 16)
FIRST, LATER = Dlsn(1, 0, 0), Dlsn(3, 7, 2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "orders.position"


def test_what_was_saved_is_loaded_by_the_next_process(path: Path) -> None:
    with FilePositions(path, ORDERS) as store:
        assert (store.load(), store.state) == (None, None)
        store.save(FIRST, {"eu": 2**70, "ä": [1.5, None]})
        store.save(LATER)
        assert store.load() == LATER
    with FilePositions(path, ORDERS) as store:
        assert (store.load(), store.state) == (LATER, {"eu": 2**70, "ä": [1.5, None]})
        store.state["eu"] = 0
        assert store.state["eu"] == 2**70, "what is not saved is not kept"
    written = json.loads(path.read_bytes())
    assert (written["version"], written["stream"], written["position"]) == (1, "finance.orders", str(LATER))


def test_a_file_of_another_stream_is_refused(path: Path) -> None:
    with FilePositions(path, ORDERS) as store:
        store.save(FIRST)
    with pytest.raises(ConfigError, match=r"is about the stream 'finance\.orders'"):
        FilePositions(path, SimpleNamespace(topic="finance", stream_id=""))
    with FilePositions(path, ORDERS) as store:
        assert store.load() == FIRST


def test_a_file_of_a_stream_that_was_made_again_is_refused_and_one_without_an_id_is_taken(path: Path) -> None:
    with FilePositions(path, ORDERS) as store:
        store.save(FIRST, 5)
    again = SimpleNamespace(topic="finance.orders", stream_id="b2" * 16)
    with pytest.raises(PositionDivergedError, match=r"made again since.*name another file, or delete this one"):
        FilePositions(path, again)
    old = json.loads(path.read_bytes())
    assert old.pop("stream_id") == "a1" * 16
    path.write_text(json.dumps(old))
    with FilePositions(path, again) as store:
        assert (store.load(), store.state) == (FIRST, 5)
        store.save(LATER)
    with pytest.raises(PositionDivergedError):
        FilePositions(path, ORDERS)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        b'"x"',
        b'{"version": 1, "stream": "finance.orders", "position": "x"}',
        b'{"version": 1, "stream": "finance.orders", "position": "x", "state": 1}',
        b'{"version": 1, "stream": "finance.orders", "position": 5, "state": 1}',
        b'{"version": 2, "stream": "finance.orders", "position": "x", "state": 1}',
    ],
)
def test_what_is_no_such_file_is_refused_and_left_as_it_is(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"orders\.position"):
        FilePositions(path, ORDERS)
    assert path.read_bytes() == content


def test_one_reader_has_the_file(path: Path) -> None:
    with FilePositions(path, ORDERS):
        with pytest.raises(PositionTakenError, match="give each reader its own"):
            FilePositions(path, ORDERS)
        other = (
            "import sys; from types import SimpleNamespace; from duramen import streams\n"
            "try: streams.FilePositions(sys.argv[1], SimpleNamespace(topic='finance.orders', stream_id=''))\n"
            "except streams.PositionTakenError: sys.exit(7)"
        )
        assert subprocess.run([sys.executable, "-c", other, path], check=False).returncode == 7
    FilePositions(path, ORDERS).close()


def test_a_save_that_was_killed_leaves_the_old_file(path: Path) -> None:
    with FilePositions(path, ORDERS) as store:
        store.save(FIRST, "old")
    path.with_name("orders.position.new").write_text('{"version": 1, "stre')
    with FilePositions(path, ORDERS) as store:
        assert (store.load(), store.state) == (FIRST, "old")
        store.save(LATER, "new")
    assert sorted(os.listdir(path.parent)) == ["orders.position", "orders.position.lock"]


@pytest.mark.parametrize("state", [{1, 2}, float("nan"), object()])
def test_a_state_that_is_no_json_changes_nothing(path: Path, state: object) -> None:
    with FilePositions(path, ORDERS) as store:
        store.save(FIRST, 1)
        with pytest.raises((TypeError, ValueError)):
            store.save(LATER, state)
        assert (store.load(), store.state) == (FIRST, 1)
        store.save(LATER, 2)


@pytest.mark.parametrize("position", [None, 5, "x", BEFORE_FIRST, (1, 0, 0)])
def test_only_the_position_of_a_record_is_saved(path: Path, position: Dlsn) -> None:
    with FilePositions(path, ORDERS) as store, pytest.raises(TypeError, match="saves the dlsn of a record"):
        store.save(position)
    assert not path.exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_after_an_error_of_the_disk_the_store_takes_no_more(
    path: Path, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FilePositions(path, ORDERS)
    store.save(FIRST)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(os, call, fail)
        with pytest.raises(StorageError, match="No space left"):
            store.save(LATER)
    with pytest.raises(ClosedError):
        store.save(LATER)
    with FilePositions(path, ORDERS) as store:
        assert store.load() == FIRST
        store.save(LATER)


def test_each_step_of_a_save_is_synced_before_the_next(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    sync, replace = os.fsync, os.replace

    def watched_sync(descriptor: int) -> None:
        steps.append("sync folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "sync file")
        sync(descriptor)

    def watched_replace(old: str, new: str) -> None:
        steps.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(os, "replace", watched_replace)
    with FilePositions(path, ORDERS) as store:
        assert steps == ["sync folder"]
        store.save(FIRST)
    assert steps == ["sync folder", "sync file", "replace", "sync folder"]


def test_a_folder_that_is_not_there_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        FilePositions(tmp_path / "away" / "x", ORDERS)
