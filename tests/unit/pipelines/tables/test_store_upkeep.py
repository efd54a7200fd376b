"""Old versions go after a while: what goes, what stays, who is killed meanwhile, and who reads meanwhile."""

from __future__ import annotations

import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.worlds.changelog_histories import SCHEMA, History, by_key, replayed

from duramen import pipelines
from duramen.errors import ConfigError, StorageError
from duramen.pipelines.model import atomic_files
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables import delta_store, parquet_store
from duramen.pipelines.tables import store as stores
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableCommit, TableStore, VersionExpiredError

STORES: dict[str, type[TableStore]] = {"parquet": ParquetStore, "delta": DeltaStore}
PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64())])
HOUR = timedelta(hours=1)


class Table:
    """A table with one batch after the other, each an hour and a bit after the one before where it ages."""

    def __init__(self, folder: Path, kind: str = "delta", keys: tuple[str, ...] = ("k",)) -> None:
        self.folder = folder
        self.store = STORES[kind](folder, TableShape(keys), PLAIN)
        self.batches = 0

    def put(self, *, count: int = 1, key: str = "same") -> None:
        for _ in range(count):
            row = {"k": key, "n": self.batches, "_topic": "t", "_partition": 0, "_offset": self.batches}
            given = pa.Table.from_pylist([{**row, "_deleted": False}], schema=self.store.schema)
            commit = self.store.apply(given, "query", self.batches, Offsets({("t", 0): self.batches + 1}))
            assert commit is not None
            self.batches += 1
            self.store.upkeep(commit, HOUR)

    def age(self, seconds: float = 7200) -> None:
        """Time goes by: every file is older by so much."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                then = path.stat().st_mtime - seconds
                os.utime(path, (then, then))

    @property
    def data(self) -> set[str]:
        return {path.name for path in (self.folder / "delta").glob("*.parquet")}

    @property
    def log(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "delta" / "_delta_log").glob("[0-9]*"))


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_store, "COMPACT_EVERY", 5)
    monkeypatch.setattr(parquet_store, "VERSIONS_READABLE", 5)
    monkeypatch.setattr(stores, "CHANGES_JOINED", 4)
    for module in (atomic_files, delta_store, parquet_store):
        monkeypatch.setattr(module, "sync", lambda _path: None)  # test_store.py looks at what is synced


def check(table: Table) -> None:
    """All that has to stay is there."""
    versions = list(range(table.batches))
    for store in (table.store, type(table.store).reopen(table.folder, table.store.shape)):
        assert [commit.version for commit in store.commits()] == versions
        assert store.last() == store.commits()[-1]
        assert store.applied("query") == table.batches - 1
        assert [rows["n"].to_pylist() for rows in store.changes()] == [[version] for version in versions]
        for version in versions[:: max(1, len(versions) // 3)]:
            first = store.first_with(Cause("t", 0, version))
            assert first is not None
            assert first.version == version
        expected = [table.batches - 1] if store.shape.keys else versions
        assert sorted(store.rows()["n"].to_pylist()) == expected


@pytest.mark.parametrize("kind", STORES)
def test_versions_that_expired_go_and_their_changes_stay(kind: str, tmp_path: Path) -> None:
    table = Table(tmp_path, kind)
    table.put(count=20)
    table.age()
    table.put(count=5)
    check(table)
    with pytest.raises(VersionExpiredError, match="version 2 are no longer kept"):
        table.store.rows(2)
    with pytest.raises(ConfigError, match="no version 99"):
        table.store.rows(99)
    assert table.store.rows(23)["n"].to_pylist() == [23]


def test_a_delta_table_stays_as_large_as_what_was_written_lately(tmp_path: Path) -> None:
    """Data files, commits and checkpoints: each was for ever."""
    table = Table(tmp_path)
    table.put(count=25)
    assert len(table.data) >= 25, "files of versions that may still be read stay"
    sizes = []
    for _ in range(4):
        table.age()
        table.put(count=25)
        sizes.append((len(table.data), len(table.log)))
    assert sizes[-1] <= sizes[1], sizes
    assert sizes[-1][0] < 50, sizes
    assert sizes[-1][1] < 70, sizes
    check(table)
    assert DeltaTable(table.store.path).to_pyarrow_table()["n"].to_pylist() == [124]  # type: ignore[attr-defined]


def test_what_is_younger_than_the_retention_can_be_read_at_every_version(tmp_path: Path) -> None:
    table = Table(tmp_path, keys=())
    table.put(count=12)
    table.age()
    table.put(count=13)
    for version in range(12, 25):
        assert sorted(table.store.rows(version)["n"].to_pylist()) == list(range(version + 1))
    check(table)


def test_a_reader_of_the_version_before_goes_on(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put(count=9)
    table.age()
    theirs = DeltaTable(table.store.path)  # type: ignore[attr-defined]
    table.put(count=20)
    assert theirs.to_pyarrow_table()["n"].to_pylist() == [8]


class Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", STORES)
def test_whoever_is_killed_in_it_has_done_no_harm(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every removal and every rename, and once more in the run that begins then. Delta Lake takes long for each:
    there it is every third one, and all of them with DURAMEN_SPARK_LONG=1 (`make test-spark-matrix`).
    """
    step = 3 if kind == "delta" and os.environ.get("DURAMEN_SPARK_LONG") != "1" else 1
    steps = 0
    before = Table(tmp_path / "before", kind)
    before.put(count=12)
    before.age()
    before.put(count=2)
    for version in range(4, 8):  # not joined, as of a table that is older than that
        name = f"changes/{version:012}.parquet"
        pq.write_table(before.store._changes_of(before.store.commits()[version]), before.folder / name)
    before.store._joined(4).unlink()
    commit = before.store.commits()[-1]._replace(version=14 if kind == "delta" else 15)
    for fatal in range(0, 1000, step):
        shutil.copytree(before.folder, folder := tmp_path / str(fatal))
        table = Table(folder, kind)
        table.batches = before.batches
        steps = 0

        def counted(real: Any, fatal: int = fatal) -> Any:
            def call(*given: Any, **named: Any) -> Any:
                nonlocal steps
                steps += 1
                if steps == fatal + 1:
                    raise Killed
                return real(*given, **named)

            return call

        with monkeypatch.context() as dying:
            for module, name in ((os, "replace"), (os, "link"), (Path, "unlink")):
                dying.setattr(module, name, counted(getattr(module, name)))
            try:
                table.store._upkeep(commit, HOUR)
                table.store._join_changes(before.batches)
            except Killed:
                pass
            else:
                assert fatal > 10, "nothing to die at"
                return
        check(table)
        table.store = type(table.store).reopen(folder, table.store.shape)
        table.put(count=7)
        check(table)
        shutil.rmtree(folder)
    raise AssertionError(f"{steps} steps")


@pytest.mark.parametrize("kind", STORES)
def test_changes_are_few_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of versions with few rows there was a file each, for ever."""
    table = Table(tmp_path, kind)
    table.put(count=26)
    names = sorted(path.name for path in (tmp_path / "changes").iterdir())
    assert names == [
        *(f"{first:012}-{first + 3:012}.parquet" for first in range(0, 24, 4)),
        *(f"{version:012}.parquet" for version in (24, 25)),
    ]
    check(table)
    assert [rows["_version"].to_pylist() for rows in table.store.changes(after=21)] == [[22], [23], [24], [25]]
    for _, rows in table.store.caused_by(Cause("t", 0, 5)):
        assert rows.column_names == table.store.schema.names
    monkeypatch.setattr(stores, "CHANGES_BYTES_MAX", 1)
    table.put(count=10)
    assert len(list((tmp_path / "changes").iterdir())) == 6 + 12, "large ones stay as they are"
    check(table)
    table.store._joined(4).unlink()
    again = type(table.store).reopen(tmp_path, table.store.shape)
    with pytest.raises(StorageError, match="changes of version 4 are gone"):
        list(again.changes())


def test_changes_that_come_late_to_a_joined_file_are_not_lost(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put(count=3)
    table.store._join_changes(4)
    table.put(count=5)
    check(table)


def test_what_a_killed_writer_left_goes_as_well(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put(count=3)
    stray = tmp_path / "delta" / "part-00000-left.parquet"
    theirs = tmp_path / "delta" / "notes.txt"
    for path in (stray, theirs):
        path.write_bytes(b"")
    table.age()
    young = stray.with_name("part-00000-being-written.parquet")
    young.write_bytes(b"")
    table.put(count=2)
    assert not stray.exists()
    assert young.exists()
    assert theirs.exists()
    check(table)


def test_files_that_a_restore_by_hand_brought_back_stay(tmp_path: Path) -> None:
    table = Table(tmp_path, keys=())
    table.put(count=4)
    store = DeltaStore(tmp_path, TableShape(()), PLAIN)
    DeltaTable(store.path).optimize.compact()
    DeltaTable(store.path).restore(4)
    store._checkpoint()
    store._expire(time.time() + 10)
    assert len(table.log) == 2, "the last commit and its checkpoint"
    assert sorted(store.rows()["n"].to_pylist()) == [0, 1, 2, 3]


def test_a_log_that_grew_long_is_worked_off_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duramen.pipelines.tables.delta_log.FILES_MAX", 12)
    table = Table(tmp_path)
    table.put(count=40)
    table.age()
    lengths = []
    for _ in range(6):
        table.put(count=5)
        lengths.append(len(table.log))
    assert lengths[0] > 30
    assert lengths[-1] < lengths[0]
    check(table)


def test_the_setting_follows_the_declaration_and_other_tools_see_it(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.put(count=5)
    found = DeltaTable(table.store.path).metadata().configuration  # type: ignore[attr-defined]
    assert found["delta.deletedFileRetentionDuration"] == "interval 3600 seconds"
    pipeline = pipelines.Pipeline("tour", folder=tmp_path, retention=timedelta(days=30))
    assert pipeline.retention == timedelta(days=30)
    assert pipelines.Pipeline("tour", folder=tmp_path).retention == timedelta(days=7)
    with pytest.raises(ConfigError, match="at least"):
        pipelines.Pipeline("tour", folder=tmp_path, retention=timedelta(seconds=1))


@pytest.mark.parametrize("kind", STORES)
def test_the_archive_is_few_files_and_a_reader_misses_nothing_while_one_is_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("duramen.pipelines.tables.store.ARCHIVE_COMMITS", 20)
    table = Table(tmp_path, kind)
    for _ in range(9):
        table.put(count=10)
        table.age()
    table.put(count=10)
    check(table)
    files = list((tmp_path / "archive").iterdir())
    assert 2 <= len(files) <= 5
    reading, real = table.store, table.store._archives
    moved = files[0].with_name("000000000000-000000000099.json")

    def late() -> Iterator[Path]:
        found = real()
        if not moved.exists():
            os.replace(found[0], moved)
        return found  # type: ignore[return-value]

    reading._archives = late  # type: ignore[assignment,method-assign]
    assert [commit.version for commit in reading.commits()] == list(range(100))


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.timeout(600)
def test_a_table_is_the_fold_of_its_log_whatever_has_expired(kind: str, tmp_path: Path) -> None:
    for seed in range(40, 43):
        history, choose = History(seed, versioned=False), random.Random(seed)
        folder = tmp_path / f"{seed}"
        store = STORES[kind](folder, history.shape, SCHEMA)
        last: TableCommit | None = None
        for delivery in history.deliveries():
            commit = store.apply(delivery.table, delivery.sink, delivery.number, delivery.ends)
            if commit is None:
                continue
            last = commit
            if choose.random() < 0.5:
                for path in folder.rglob("*"):
                    os.utime(path, (0, 0))
            store.upkeep(commit, HOUR)
        wanted = history.expected()
        found = by_key(store.rows(), history.keys)
        assert found == {k: {n: v for n, v in row.items() if n != "_deleted"} for k, row in wanted.items()}, seed
        assert replayed(store) == wanted, f"seed {seed}"
        assert store.last() == last
        assert [commit.version for commit in store.commits()] == list(range(len(store.commits())))


def test_whoever_has_a_table_open_sees_what_another_wrote_though_the_log_was_cleaned_since(tmp_path: Path) -> None:
    early = Table(tmp_path)
    early.put(count=2)
    late = Table(tmp_path)
    late.batches = 2
    late.put()
    assert early.store.rows()["n"].to_pylist() == [2]
    late.put(count=20)
    late.age()
    late.put(count=10)
    assert min(late.log) > f"{10:020}"
    assert early.store.rows()["n"].to_pylist() == [32]
    assert early.store.applied("query") == 32
    shutil.rmtree(tmp_path / "delta")
    with pytest.raises(StorageError, match=re.escape(str(tmp_path / "delta"))):
        early.store.applied("query")
