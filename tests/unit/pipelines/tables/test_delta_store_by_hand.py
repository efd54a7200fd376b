"""What happens to a Delta table beside its pipeline: power cuts in its log, folders that are replaced, a RESTORE."""

from __future__ import annotations

import json
import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction

from duramen.errors import ConfigError, StorageError
from duramen.pipelines.model.offsets import Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables import delta_rewrite, delta_store
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.store import TableCommit

PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64())])


def opened(folder: Path, keys: tuple[str, ...] = ("k",)) -> DeltaStore:
    return DeltaStore(folder, TableShape(keys), PLAIN)


def put(store: DeltaStore, batch: int, key: str = "same") -> TableCommit | None:
    """One row of record `batch`, as batch of that number."""
    row = {"k": key, "n": batch, "_topic": "t", "_partition": 0, "_offset": batch, "_deleted": False}
    given = pa.Table.from_pylist([row], schema=store.schema)
    return store.apply(given, "query", batch, Offsets({("t", 0): batch + 1}))


def log_of(folder: Path) -> list[Path]:
    return sorted((folder / "delta" / "_delta_log").glob("[0-9]*.json"))


TEARS = {
    "in a line": lambda data: data[: len(data) // 2],
    "zeros": lambda data: bytes(len(data)),
    "behind its first line": lambda data: data[: data.index(b"\n") + 1],
    "before its last line": lambda data: data[: data.rindex(b"\n")],
}


@pytest.mark.parametrize("tear", TEARS)
@pytest.mark.parametrize("keys", [("k",), ()], ids=["table", "history"])
def test_a_torn_commit_is_told_with_what_to_do_and_nothing_is_lost_by_doing_it(
    tear: str, keys: tuple[str, ...], tmp_path: Path
) -> None:
    """As a power cut leaves it that comes before the sync. Torn between two lines it was taken for whole: its offsets
    held, and its rows, when they came again, were passed over."""
    store = opened(tmp_path, keys)
    for batch in range(3):
        put(store, batch)
    torn = log_of(tmp_path)[-1]
    torn.write_bytes(TEARS[tear](torn.read_bytes()))
    with pytest.raises(StorageError) as told:
        put(opened(tmp_path, keys), 2)
    assert str(torn) in str(told.value)
    assert "move it out of the log" in str(told.value)
    assert "\n" not in str(told.value)
    torn.unlink()
    again = opened(tmp_path, keys)
    put(again, 2)
    assert again.rows()["n"].to_pylist()[-1:] == [2] if keys else sorted(again.rows()["n"].to_pylist()) == [0, 1, 2]
    assert [commit.version for commit in again.commits()] == [0, 1, 2]


@pytest.mark.parametrize("tear", ["in a line", "zeros", "empty"])
@pytest.mark.parametrize("keys", [("k",), ()], ids=["table", "history"])
def test_a_torn_file_of_a_whole_commit_is_told_with_what_to_do(
    tear: str, keys: tuple[str, ...], tmp_path: Path
) -> None:
    """The library syncs nothing, so the commit may survive without the rows. Its batch was passed over as applied."""
    store = opened(tmp_path, keys)
    for batch in range(3):
        put(store, batch)
    commit = log_of(tmp_path)[-1]
    (name,) = [each["add"]["path"] for each in map(json.loads, commit.read_text().splitlines()) if "add" in each]
    file = tmp_path / "delta" / name
    file.write_bytes({**TEARS, "empty": lambda data: b""}[tear](file.read_bytes()))
    with pytest.raises(StorageError) as told:
        put(opened(tmp_path, keys), 2)
    assert name in str(told.value)
    assert f"move {commit.name} out of the log" in str(told.value)
    commit.unlink()
    put(again := opened(tmp_path, keys), 2)
    assert sorted(again.rows()["n"].to_pylist()) == ([2] if keys else [0, 1, 2])


def test_what_a_commit_of_ours_adds_is_on_the_disk_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a table that is written anew a power cut would else take all rows, those of earlier batches too."""
    synced: list[Path] = []
    real = delta_rewrite.sync
    monkeypatch.setattr(delta_rewrite, "sync", lambda path: (real(path), synced.append(path)))
    seen = []

    class Watched(DeltaTable):
        def create_write_transaction(self, actions: list[Any], *given: Any, **named: Any) -> None:
            seen.append({action.path for action in actions if isinstance(action, AddAction)})
            assert {tmp_path / "delta" / name for name in seen[-1]} | {tmp_path / "delta"} <= set(synced)
            super().create_write_transaction(actions, *given, **named)

    monkeypatch.setattr(delta_store, "DeltaTable", Watched)
    put(store := opened(tmp_path), 0)
    put(store, 1)
    assert [len(names) for names in seen] == [1, 1]


def test_an_empty_commit_is_a_version_without_anything(tmp_path: Path) -> None:
    for batch in range(3):
        put(store := opened(tmp_path), batch)
    log_of(tmp_path)[-1].write_bytes(b"")
    store = opened(tmp_path)
    assert store.rows()["n"].to_pylist() == [1]
    put(store, 2)
    assert store.rows()["n"].to_pylist() == [2]


def test_a_damaged_commit_with_others_behind_it_is_not_to_be_moved_away(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for batch in range(4):
        put(store, batch)
    damaged = log_of(tmp_path)[-2]
    damaged.write_bytes(b"{")
    with pytest.raises(StorageError, match=r"is damaged, and other commits follow.*reprocess"):
        opened(tmp_path)


def test_a_compaction_is_whole_without_a_batch_number(tmp_path: Path) -> None:
    store = opened(tmp_path, ())
    commits = [put(store, batch) for batch in range(3)]
    assert commits[-1] is not None
    store._keep_up(commits[-1], timedelta(days=1))
    assert json.loads(log_of(tmp_path)[4].read_text().splitlines()[0])["commitInfo"]["operation"] == "OPTIMIZE"
    assert opened(tmp_path, ()).last() == commits[-1]


@pytest.mark.parametrize("later", [0, 2])
def test_a_table_that_was_deleted_and_made_anew_is_seen_as_that(later: int, tmp_path: Path) -> None:
    """It is open, and was brought up to a version that it had already, or by commits of the other one."""
    store = opened(tmp_path / "t")
    for batch in range(3):
        put(store, batch, "old")
    other = opened(tmp_path / "other")
    for batch in range(3 + later):
        put(other, batch, f"new{batch}")
    shutil.rmtree(tmp_path / "t" / "delta")
    shutil.copytree(tmp_path / "other" / "delta", tmp_path / "t" / "delta")
    assert sorted(store.rows()["k"].to_pylist()) == [f"new{batch}" for batch in range(3 + later)]
    assert store.applied("query") == 2 + later


def test_a_table_that_was_restored_by_hand_takes_no_batch_until_that_is_undone(tmp_path: Path) -> None:
    """Its log goes on to tell the offsets of the versions that were undone: what they had worked in would lack."""
    store = opened(tmp_path)
    for batch in range(4):
        put(store, batch, f"k{batch}")
    DeltaTable(store.path).restore(2)
    with pytest.raises(ConfigError, match=r"put back by hand.*RESTORE it to version 4, or"):
        put(store, 4, "k4")
    assert sorted(store.rows()["n"].to_pylist()) == [0, 1], "reading goes on"
    DeltaTable(store.path).restore(4)
    put(store, 4, "k4")
    DeltaTable(store.path).optimize.compact()
    put(store, 5, "k5")
    assert sorted(store.rows()["n"].to_pylist()) == list(range(6))


def test_a_backtick_in_a_column_is_refused_by_its_name(tmp_path: Path) -> None:
    """The library's merge ended with an error about a delimiter, at the first batch."""
    columns = pa.schema([("k", pa.string()), ("a`b", pa.int64())])
    with pytest.raises(ConfigError, match=r"the column a`b has a backtick.*parquet"):
        DeltaStore(tmp_path, TableShape(("k",)), columns)
    assert not list(tmp_path.iterdir())
    DeltaStore(tmp_path, TableShape(), columns)
