"""What a store owes beyond the fold: all of it on the disk, its whole history, and a refusal of what it cannot keep."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from duramen.errors import ConfigError, StorageError
from duramen.pipelines.model.declaration import DEFAULT_RETENTION
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables import delta_rewrite, delta_store, parquet_store
from duramen.pipelines.tables.changelog import TRACE, ChangelogError
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableCommit, TableStore

STORES: dict[str, type[TableStore]] = {"parquet": ParquetStore, "delta": DeltaStore}
PLAIN = pa.schema([("k", pa.string()), ("n", pa.int64())])
MONTH_SECONDS = 31 * 86_400


def put(store: TableStore, batch: int, **columns: Any) -> TableCommit | None:
    """One row of record `batch`, as batch of that number."""
    row = {"k": f"k{batch}", "n": batch, **columns}
    row |= {"_topic": "t", "_partition": 0, "_offset": batch, "_deleted": False}
    given = pa.Table.from_pylist([row], schema=store.schema)
    commit = store.apply(given, "query", batch, Offsets({("t", 0): batch + 1}))
    if commit is not None:
        store.upkeep(commit, DEFAULT_RETENTION)
    return commit


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Of every file that was synced, the bytes it had then."""
    found: dict[str, int] = {}
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        found[os.readlink(f"/proc/self/fd/{descriptor}")] = os.fstat(descriptor).st_size

    if not Path("/proc/self/fd").exists():
        pytest.skip("only Linux tells the name of a descriptor")
    monkeypatch.setattr(os, "fsync", fsync)
    return found


def unsynced(folder: Path, synced: dict[str, int]) -> list[str]:
    """What a power cut may take of a Delta table: of its log, and of the files that the log names."""
    log = folder / "delta" / "_delta_log"
    needed = [*log.iterdir()]
    for commit in log.glob("*.json"):
        told = [json.loads(line) for line in commit.read_text().splitlines()]
        needed += [folder / "delta" / unquote(entry["add"]["path"]) for entry in told if "add" in entry]
    # A checkpoint is written beside, synced there and renamed.
    beside = folder / "checkpointing" / "_delta_log"
    sizes = {path: [synced.get(str(at)) for at in (path, beside / path.name)] for path in needed}
    return sorted(path.name for path, told in sizes.items() if path.stat().st_size not in told)


@pytest.mark.parametrize("keys", [("k",), ()], ids=["table", "history"])
def test_all_that_a_delta_table_needs_is_on_the_disk(
    keys: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: dict[str, int]
) -> None:
    """Also what the library writes beside the batches: the table's beginning, compactions and checkpoints."""
    monkeypatch.setattr(delta_store, "COMPACT_EVERY", 3)
    store = DeltaStore(tmp_path, TableShape(keys), PLAIN)
    for batch in range(5):
        put(store, batch)
        assert unsynced(tmp_path, synced) == []
    assert list((tmp_path / "delta" / "_delta_log").glob("*.checkpoint.parquet"))
    DeltaTable(store.path).optimize.compact()  # by hand
    assert unsynced(tmp_path, synced) != []
    put(DeltaStore(tmp_path, TableShape(keys), PLAIN), 5)
    assert unsynced(tmp_path, synced) == []


@pytest.mark.parametrize("kind", STORES)
def test_a_batch_that_comes_again_is_told_of_only_when_it_is_on_the_disk(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: dict[str, int]
) -> None:
    """The driver was killed between the commit and its sync: Spark would note the batch, and a power cut take it."""
    store = STORES[kind](tmp_path, TableShape(("k",)), PLAIN)
    put(store, 0)
    module = f"duramen.pipelines.{'model.atomic_files' if kind == 'parquet' else 'tables.delta_store'}.sync"
    before = store.last()

    def killed(path: Path) -> None:
        if store.last() != before:
            raise KeyboardInterrupt
        os.close(os.open(path, os.O_RDONLY))

    with monkeypatch.context() as dying:
        dying.setattr(module, killed)
        with pytest.raises(KeyboardInterrupt):
            put(store, 1)
    synced.clear()
    again = STORES[kind](tmp_path, TableShape(("k",)), PLAIN)
    assert put(again, 1) is None
    assert sorted(again.rows()["n"].to_pylist()) == [0, 1]
    if kind == "delta":
        assert unsynced(tmp_path, synced) == []
    else:
        assert str(tmp_path) in synced, "the manifest's name"


def test_a_checkpoint_has_its_name_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: dict[str, int]
) -> None:
    """Delta reads the newest that it finds, and one of which a power cut left a part makes the table unreadable."""
    monkeypatch.setattr(delta_store, "COMPACT_EVERY", 3)
    store, seen = DeltaStore(tmp_path, TableShape(("k",)), PLAIN), []
    log = tmp_path / "delta" / "_delta_log"
    real = os.fsync

    def fsync(descriptor: int) -> None:
        seen.extend(unsynced(tmp_path, synced))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for batch in range(3):
        put(store, batch)
    assert list(log.glob("*.checkpoint.parquet"))
    assert [name for name in seen if "checkpoint" in name] == []


def test_versions_are_told_right_behind_a_commit_that_a_power_cut_emptied(tmp_path: Path) -> None:
    """Such a commit says nothing, and counts as a version all the same."""
    store = DeltaStore(tmp_path, TableShape(("k",)), PLAIN)
    for batch in range(4):
        put(store, batch, k="same")
    max((tmp_path / "delta" / "_delta_log").glob("*.json")).write_bytes(b"")
    again = DeltaStore(tmp_path, TableShape(("k",)), PLAIN)
    put(again, 3, k="same")
    put(again, 4, k="same")
    assert [again.rows(version)["n"].to_pylist() for version in range(5)] == [[n] for n in range(5)]


def test_a_batch_that_changes_nothing_is_told_of_beside_a_commit_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A vacuum commits, too; a merge that finds nothing to do does not."""
    store = DeltaStore(tmp_path, TableShape(("k",)), PLAIN)
    for batch in range(3):
        put(store, batch, k="same")
    merge = DeltaStore._merge

    def beside(*given: Any) -> None:
        merge(*given)
        DeltaTable(store.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    monkeypatch.setattr(DeltaStore, "_merge", beside)
    row = {"k": "absent", "n": None, "_topic": "t", "_partition": 0, "_offset": 3, "_deleted": True}
    store.apply(pa.Table.from_pylist([row], schema=store.schema), "query", 3, Offsets({("t", 0): 4}))
    assert store.applied("query") == 3
    last = store.last()
    assert last is not None
    assert last.offsets.end("t", 0) == 4


def test_the_files_of_a_table_can_be_opened_wherever_it_is(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path / "a folder, 100% ours", TableShape(("k",)), PLAIN)
    put(store, 0)
    assert all(Path(file).exists() for file in store.files())


@pytest.mark.parametrize("told", [True, False], ids=["new", "made before it was told so"])
def test_the_history_of_a_delta_table_is_kept_for_longer_than_a_month(
    told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits tell which records a version contains and where its changes lie; Delta removes old ones unless told."""
    monkeypatch.setattr(delta_store, "COMPACT_EVERY", 10)
    if not told:
        DeltaTable.create(str(tmp_path / "delta"), pa.schema([*PLAIN, *TRACE]))
    store = DeltaStore(tmp_path, TableShape(()), PLAIN)
    for batch in range(120):
        put(store, batch)
        if batch == 15:
            for path in (tmp_path / "delta" / "_delta_log").iterdir():
                old = path.stat().st_mtime - MONTH_SECONDS
                os.utime(path, (old, old))
    assert [commit.version for commit in store.commits()] == list(range(120))
    assert [rows["n"].to_pylist() for rows in store.changes()] == [[batch] for batch in range(120)]


@pytest.mark.parametrize("cleaned", [False, True], ids=["whole", "cleaned by hand"])
def test_a_batch_is_taken_where_a_power_cut_took_what_delta_does_without(
    cleaned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: dict[str, int]
) -> None:
    """The name of the last checkpoint, which others write without a sync: Delta lists the log then."""
    monkeypatch.setattr(delta_store, "COMPACT_EVERY", 3)
    store = DeltaStore(tmp_path, TableShape(()), PLAIN)
    for batch in range(7):
        put(store, batch)
    log = tmp_path / "delta" / "_delta_log"
    for path in log.glob("*.json"):
        if cleaned and path.name < max(log.glob("*.checkpoint.parquet")).name[:20]:
            path.unlink()
    (log / "_last_checkpoint").write_bytes(b"")
    synced.clear()
    again = DeltaStore(tmp_path, TableShape(()), PLAIN)
    put(again, 7)
    assert sorted(again.rows()["n"].to_pylist()) == list(range(8))
    assert not [name for name in unsynced(tmp_path, synced) if name.endswith(".json")]


@pytest.mark.parametrize("kind", STORES)
def test_a_column_of_another_type_is_refused_before_anything_is_cast(kind: str, tmp_path: Path) -> None:
    """The topic's schema is no part of the function's text, so nothing else sees that it was changed."""
    put(STORES[kind](tmp_path, TableShape(("k",)), PLAIN), 0)
    wider = pa.schema([("k", pa.string()), ("n", pa.float64())])
    with pytest.raises(ConfigError, match=r"than the code gives, which changes n int64 to double: .*reprocess"):
        put(STORES[kind](tmp_path, TableShape(("k",)), wider), 1, n=2.7)


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("batches", [[0.0, -0.0], [-0.0, 0.0]], ids=str)
@pytest.mark.parametrize("together", [True, False])
def test_zero_is_one_key(kind: str, batches: list[float], together: bool, tmp_path: Path) -> None:
    """It has two signs. One store kept two rows, the other could not merge them."""
    schema = pa.schema([("k", pa.float64()), ("n", pa.int64())])
    store = STORES[kind](tmp_path, TableShape(("k",)), schema)
    put(store, 0, k=batches[0])
    if not together:
        put(store, 1, k=batches[1])
    trace = {"_topic": "t", "_partition": 0, "_deleted": False}
    rows = [{"k": key, "n": 2 + n, "_offset": 2 + n, **trace} for n, key in enumerate(batches)]
    store.apply(pa.Table.from_pylist(rows, schema=store.schema), "query", 2, Offsets({("t", 0): 4}))
    assert [(row["k"], row["n"]) for row in store.rows().to_pylist()] == [(0.0, 3)]


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("column", ["k", "v"])
def test_a_number_that_is_none_is_neither_key_nor_order(kind: str, column: str, tmp_path: Path) -> None:
    """It is before, behind and beside every number: which row was later depended on who compared."""
    schema = pa.schema([("k", pa.float64()), ("v", pa.float64())])
    store = STORES[kind](tmp_path, TableShape(("k",), "v"), schema)
    row = {"k": 1.0, "v": 1.0, "_topic": "t", "_partition": 3, "_offset": 7, "_deleted": False}
    given = pa.Table.from_pylist([{**row, column: float("nan")}], schema=store.schema)
    with pytest.raises(ChangelogError, match=rf"t-3@7: .*{column} is NaN"):
        store.apply(given, "query", 0, Offsets({("t", 3): 8}))


@pytest.mark.parametrize("kind", STORES)
def test_a_trace_goes_by_what_orders_the_table(kind: str, tmp_path: Path) -> None:
    """A row that came late with an older version took no effect; it was called the current one, by which the other was
    superseded."""
    store = STORES[kind](tmp_path, TableShape(("k",), "n"), PLAIN)
    for batch, n in enumerate([5, 3, None, 8, 6]):
        put(store, batch, k="same", n=n)
    found = [store.superseded(Cause("t", 0, batch), {"k": "same"}) for batch in range(5)]
    assert [each and (each[0].version, each[1].offset) for each in found] == [(3, 3), (0, 0), (0, 0), None, (3, 3)]


@pytest.mark.parametrize("kind", STORES)
def test_text_that_is_none_is_refused_by_its_record(kind: str, tmp_path: Path) -> None:
    """Spark hands on a record's key as it is. Delta took it once, and could not read the table any more."""
    store = STORES[kind](tmp_path, TableShape(("k",)), PLAIN)
    put(store, 0)
    text = pa.array([b"good", b"\xff\xfe", b"\xfe"], pa.binary()).view(pa.string())
    trace = {"_topic": ["t"] * 3, "_partition": pa.array([0] * 3, pa.int32()), "_offset": [1, 2, 3]}
    given = pa.table({"k": text, "n": [1, 2, 3], **trace, "_deleted": [False] * 3})
    with pytest.raises(ChangelogError, match="t-0@2: k is no text in UTF-8"):
        store.apply(given, "query", 1, Offsets({("t", 0): 4}))
    put(store, 1)
    assert sorted(store.rows()["n"].to_pylist()) == [0, 1]


@pytest.mark.parametrize("text", ["a\x85b", "a\u2028b", "a\u2029b", "a\x0b\x0c\x1c\x1d\x1e\r\nb", ""], ids=ascii)
@pytest.mark.parametrize("keys", [("k",), ()], ids=["merged by the library", "history"])
def test_text_may_hold_what_ends_a_line_elsewhere(
    keys: tuple[str, ...], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands in the statistics of Delta's commits. The commit was taken for torn, and the table took no batch."""
    monkeypatch.setattr(delta_rewrite, "ROWS_MAX", -1)
    schema = pa.schema([("k", pa.string()), ("n", pa.int64()), (f"x{text}", pa.string())])
    store = DeltaStore(tmp_path, TableShape(keys), schema)
    for batch in range(3):
        put(store, batch, k=f"{text}{batch}")
    again = DeltaStore(tmp_path, TableShape(keys), schema)
    put(again, 3, k="plain")
    assert sorted(again.rows()["k"].to_pylist()) == sorted(["plain", *(f"{text}{batch}" for batch in range(3))])
    assert [commit.version for commit in again.commits()] == [0, 1, 2, 3]


@pytest.mark.parametrize("keys", [("k",), ()], ids=["table", "history"])
@pytest.mark.parametrize("day", [-719_163, 2_932_897, 2**31 - 1], ids=["year 0", "year 10000", "year 5881580"])
def test_a_day_that_readers_of_delta_do_not_know_is_refused_by_its_record(
    keys: tuple[str, ...], day: int, tmp_path: Path
) -> None:
    """It was taken, and by its statistics nobody could read the table any more."""
    schema = pa.schema([("k", pa.string()), ("seen", pa.date32())])
    trace = {"_topic": ["t"] * 3, "_partition": pa.array([0] * 3, pa.int32()), "_offset": [0, 1, 2]}

    def given(*days: int | None) -> pa.Table:
        seen = pa.array(days, pa.int32()).cast(pa.date32())
        return pa.table({"k": ["a", "b", "c"], "seen": seen, **trace, "_deleted": [False] * 3})

    store = DeltaStore(tmp_path / "delta", TableShape(keys), schema)
    with pytest.raises(ChangelogError, match="t-0@1: seen is a day outside of the years 1 to 9999"):
        store.apply(given(None, day, 0), "query", 0, Offsets({("t", 0): 3}))
    store.apply(given(-719_162, 2_932_896, None), "query", 0, Offsets({("t", 0): 3}))
    assert store.rows().num_rows == 3
    ParquetStore(tmp_path / "parquet", TableShape(keys), schema).apply(given(None, day, 0), "query", 0, Offsets())


@pytest.mark.parametrize("kind", STORES)
@pytest.mark.parametrize("keys", [("k",), ()])
@pytest.mark.parametrize("lacking", [("_topic", "_partition", "_offset", "_deleted"), ("_deleted",)])
def test_a_row_without_a_record_is_refused(
    lacking: tuple[str, ...], keys: tuple[str, ...], kind: str, tmp_path: Path
) -> None:
    """Such as an outer join makes: it was in the table's changes, and not in the table, without a word."""
    store = STORES[kind](tmp_path, TableShape(keys), PLAIN)
    for batch in range(2):  # of the first the guard has nothing to pass over
        row = {"k": "x", "n": batch, "_topic": "t", "_partition": 0, "_offset": batch, "_deleted": False}
        given = pa.Table.from_pylist([row, {**row, "k": "y", **dict.fromkeys(lacking)}], schema=store.schema)
        with pytest.raises(ChangelogError, match=r"1 rows tell no record .* _cause is null"):
            store.apply(given, "query", batch, Offsets({("t", 0): batch + 1}))
        put(store, batch)
    assert store.rows().num_rows == 2


def test_a_key_has_a_type_that_can_be_compared() -> None:
    schema = pa.schema([("k", pa.struct([("a", pa.int64())])), ("n", pa.int64())])
    with pytest.raises(ConfigError, match="the key k is a struct"):
        TableShape(("k",)).check(schema)


@pytest.mark.parametrize("kind", STORES)
def test_a_column_that_the_files_cannot_hold_is_named_before_anything_is_written(kind: str, tmp_path: Path) -> None:
    def refused(column: pa.DataType) -> str:
        with pytest.raises(ConfigError) as told:
            STORES[kind](tmp_path / "t", TableShape(("k",)), pa.schema([("k", pa.string()), ("x", column)]))
        return str(told.value)

    assert refused(pa.null()).startswith("the column x is always null")
    assert refused(pa.month_day_nano_interval()).startswith("the column x has an interval of months")
    assert refused(pa.list_(pa.struct([]))).startswith("the column x has a struct without fields")
    if kind == "delta":
        assert refused(pa.struct([("d", pa.duration("us"))])).startswith("the column x has a duration")
        assert refused(pa.time64("us")).startswith("the column x has a time of day")
    assert not list(tmp_path.iterdir())
    store = ParquetStore(tmp_path / "p", TableShape(("k",)), pa.schema([("k", pa.string()), ("x", pa.duration("us"))]))
    row = {"k": "a", "x": timedelta(days=1), "_topic": "t", "_partition": 0, "_offset": 0, "_deleted": False}
    store.apply(pa.Table.from_pylist([row], schema=store.schema), "query", 0, Offsets({("t", 0): 1}))
    assert store.rows()["x"].to_pylist() == [timedelta(days=1)]


@pytest.mark.parametrize("kind", STORES)
def test_keys_may_be_bytes_that_are_no_text(kind: str, tmp_path: Path) -> None:
    schema = pa.schema([("k", pa.binary()), ("n", pa.int64())])
    store = STORES[kind](tmp_path, TableShape(("k",)), schema)
    for batch, key in enumerate([b"\xff\xfe", b"\xff", b"\xff\xfe"]):
        put(store, batch, k=key)
    assert {row["k"]: row["n"] for row in store.rows().to_pylist()} == {b"\xff": 1, b"\xff\xfe": 2}


@pytest.mark.parametrize("kind", STORES)
def test_a_table_without_a_batch_is_a_table(kind: str, tmp_path: Path) -> None:
    """Of an empty topic, or when the run was killed before the first one. `status`, `trace` and `reprocess` open it."""
    shape = TableShape(("k",))
    made = STORES[kind](tmp_path, shape, PLAIN)
    for store in (made, STORES[kind].reopen(tmp_path, shape)):
        assert (store.last(), store.commits(), store.files(), store.rows().num_rows) == (None, [], [], 0)
        assert (list(store.changes()), store.applied("query"), store.schema) == ([], -1, made.schema)
        with pytest.raises(ConfigError, match="has no version 0"):
            store.rows(0)
    assert put(STORES[kind].reopen(tmp_path, shape), 0) is not None
    assert made.rows()["k"].to_pylist() == ["k0"]


def test_a_version_whose_commit_never_came_has_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its manifest may be there by its number; the batch comes again, and may be another one then."""
    store = ParquetStore(tmp_path, TableShape(("k",)), PLAIN)
    put(store, 0)
    written = parquet_store.write_json

    def killed(path: Path, value: object) -> None:
        if path.name == "manifest.json":
            raise KeyboardInterrupt
        written(path, value)

    monkeypatch.setattr(parquet_store, "write_json", killed)
    with pytest.raises(KeyboardInterrupt):
        put(store, 1)
    monkeypatch.undo()
    again = ParquetStore.reopen(tmp_path, TableShape(("k",)))
    assert [commit.version for commit in again.commits()] == [0]
    with pytest.raises(ConfigError, match="has no version 1"):
        again.rows(1)
    assert put(again, 1, n=7) is not None
    assert sorted(again.rows(1)["n"].to_pylist()) == [0, 7]


@pytest.mark.timeout(60)
def test_a_file_that_is_gone_is_told_and_not_waited_for(tmp_path: Path) -> None:
    store = ParquetStore(tmp_path, TableShape(("k",)), PLAIN)
    put(store, 0)
    Path(store.files()[0]).unlink()
    with pytest.raises(StorageError, match="names is gone"):
        store.rows()


def test_a_delta_table_goes_on_behind_a_vacuum_by_hand(tmp_path: Path) -> None:
    store = DeltaStore(tmp_path, TableShape(("k",)), PLAIN)
    for batch in range(5):
        put(store, batch, k="same")
    gone = DeltaTable(store.path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(gone) == 4, "files of older versions stay until then"
    again = DeltaStore(tmp_path, TableShape(("k",)), PLAIN)
    put(again, 5, k="same")
    assert again.rows()["n"].to_pylist() == [5]
    assert [rows["n"].to_pylist() for rows in again.changes()] == [[batch] for batch in range(6)]
    with pytest.raises(ConfigError, match="version 1 are no longer kept"):
        again.rows(1)
    for file in again.files():
        Path(file).unlink()
    with pytest.raises(StorageError, match="is gone"):
        again.rows()


def test_a_rows_later_records_are_told_beside_moments_that_python_has_not(tmp_path: Path) -> None:
    """`duramen spark trace --record` ended with an error of Python's calendar."""
    at = pa.timestamp("us", "UTC")
    store = ParquetStore(tmp_path, TableShape(("k",)), pa.schema([("k", pa.string()), ("n", pa.int64()), ("at", at)]))
    for batch in range(2):
        put(store, batch, k="same", at=pa.scalar(2**62, pa.int64()).cast(at))
    found = store.superseded(Cause("t", 0, 0), {"k": "same"})
    assert found is not None
    assert found[1:] == (Cause("t", 0, 1), False)
