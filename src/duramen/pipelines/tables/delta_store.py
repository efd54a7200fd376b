"""A table in Delta Lake's format, by the `deltalake` package: every Delta reader can open it.

The batch number of the query (Delta's application transaction) and our description of the version are part of the same
commit as the data.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError

from duramen.errors import ConfigError, StorageError
from duramen.pipelines.model.atomic_files import make_folder, read_json, sync
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables import delta_log
from duramen.pipelines.tables import delta_rewrite as rewrite
from duramen.pipelines.tables.changelog import order, refuse_far_days
from duramen.pipelines.tables.intervals import of_keys
from duramen.pipelines.tables.schema_changes import as_wide, changes, is_any_wider
from duramen.pipelines.tables.store import TableCommit, TableStore, VersionExpiredError, encoded

COMPACT_EVERY = 50  # versions
REWRITES_MAX = 5
"""How often a batch is folded in anew because somebody else's commit came between."""
_OURS = "duramen"
_COMPACTED = "OPTIMIZE"
# Delta removes commits of more than a month ago, and with them what they tell: which records a version contains, and
# where its changes lie. Ours are removed by `upkeep`, which writes that down before.
_SETTINGS = {"delta.enableExpiredLogCleanup": "false"}
# The library's own checkpoints would come when nobody syncs them.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
# The library would put a commit of its own making behind those of others that it did not see.
_ONCE = CommitProperties(max_commit_retries=0)


class DeltaStore(TableStore):
    """See the module. A version of ours is a Delta version whose commit describes it; others may lie between."""

    UNFIT: ClassVar = {**TableStore.UNFIT, "a duration": pa.types.is_duration, "a time of day": pa.types.is_time}

    def __init__(self, folder: Path, shape: TableShape, schema: pa.Schema) -> None:
        super().__init__(folder, shape, schema)
        self.path = str(folder / "delta")
        if not DeltaTable.is_deltatable(self.path):
            make_folder(Path(self.path))
            DeltaTable.create(self.path, self.schema, configuration=_SETTINGS)
        self._log = Path(self.path) / "_delta_log"
        self._opened: DeltaTable | None = None
        """The table as this object last saw it."""
        self._seen: tuple[int, int] | None = None
        """The identity of its last commit."""
        self._unsynced: int | None = None
        """The first Delta version that this object has not synced; None until it has looked."""
        self._strays: list[str] | None = None
        """Old files that no version names, yet to be removed; None until it has looked."""
        self._columns_change = True
        """Whether the table may have to take other columns; False once they were compared."""
        # Where the types differ the library would cast to the table's: 2.7 to 2.
        self._go_on_from(self._columns())

    @classmethod
    def check(cls, shape: TableShape, schema: pa.Schema) -> None:
        """See Store. The library's merge takes a backtick for a delimiter, however it is quoted."""
        super().check(shape, schema)
        if shape.keys and (names := [name for name in schema.names if "`" in name]):
            raise ConfigError(
                f'the column {names[0]} has a backtick: give it another name, or the table store="parquet"'
            )

    @staticmethod
    def stored_schema(folder: Path) -> pa.Schema:
        """See Store."""
        path = str(folder / "delta")
        if not DeltaTable.is_deltatable(path):
            raise ConfigError(f"there is no table in {folder}")
        return pa.schema(DeltaTable(path).schema().to_arrow())

    @classmethod
    def as_stored(cls, schema: pa.Schema) -> pa.Schema:
        """See Store. Types as Delta has them."""
        return pa.schema(Schema.from_arrow(schema).to_arrow())

    def _table(self, version: int | None = None) -> DeltaTable:
        """Of the newest version: what this object saw last, brought up to it, which costs an eighth of opening it."""
        try:
            if version is not None:
                return DeltaTable(self.path, version=version)
            if self._opened is not None:
                # Somebody may have deleted the folder and made another table there, of as many versions or more.
                if self._seen is None or delta_log.identity(self._log, self._opened.version()) != self._seen:
                    self._opened = None
                else:
                    with suppress(DeltaError):
                        self._opened.update_incremental()
            # Others may have cleaned the log beyond what this object saw: then it cannot be brought up to date.
            if self._opened is None or [self._opened.version()] != delta_log.commits(self._log)[:1]:
                self._opened = DeltaTable(self.path)
            self._seen = delta_log.identity(self._log, self._opened.version())
            return self._opened
        except (TableNotFoundError, DeltaError, FileNotFoundError) as error:
            if self._log.is_dir():
                delta_log.check(self._log)
            raise StorageError(f"{self.path}: {str(error).splitlines()[0]}") from None

    def _described(self) -> Iterator[tuple[int, TableCommit]]:
        """Delta version and commit, newest first, of what the log has."""
        for number in delta_log.commits(self._log):
            found = delta_log.actions(self._log, number)
            for told in (action.get("commitInfo", {}) for action in found):
                if _OURS in told:
                    commit = TableCommit.from_json(json.loads(told[_OURS]))
                    # It is the last line. What the first one tells holds only with the others.
                    batch = {"txn": {"appId": commit.sink, "version": commit.batch}}
                    if told["operation"] != _COMPACTED and not any(batch.items() <= each.items() for each in found):
                        raise delta_log.torn(self._log, number)
                    yield number, commit

    def commits(self) -> list[TableCommit]:
        # Compacting tells the version again that it keeps. What leaves the log is in the archive before, so that is
        # read last.
        found = {commit.version: commit for _, commit in self._described()} | self._archived()
        return [found[version] for version in sorted(found)]

    def last(self) -> TableCommit | None:
        found = next(self._described(), None)
        return found[1] if found else next(reversed(self.commits()), None)

    def applied(self, sink: str) -> int:
        found = self._table().transaction_version(sink)
        return -1 if found is None else found

    def files(self) -> list[str]:
        table = self._table()
        if "deletionVectors" in (table.protocol().reader_features or []):
            raise ConfigError(f"{self.path} has deletion vectors: read it with a Delta reader")
        return [unquote(uri) for uri in table.file_uris()]

    def _stored(self, version: int | None) -> pa.Table:
        number = None
        if version is not None:
            number = next((delta for delta, commit in self._described() if commit.version == version), None)
            if number is None and version in self._archived():
                raise VersionExpiredError(version, self.folder)
            if number is None:
                raise ConfigError(f"{self.path} has no version {version}")
        try:
            found: pa.Table = self._table(number).to_pyarrow_table()
        except FileNotFoundError as error:
            if version is None:
                raise StorageError(f"{self.path}: a file of the table is gone: {error}") from None
            raise VersionExpiredError(version, self.folder) from None
        return found

    def _near(self, rows: pa.Table) -> pa.Table:
        """See Store. Read part by part, for the table may be large. Without a filter of the library's: that goes by
        least and greatest values, which not every file has."""
        batches = self._table().to_pyarrow_dataset().to_batches()
        parts = (as_wide(pa.Table.from_batches([each]), self.schema) for each in batches)
        return pa.concat_tables([self.schema.empty_table(), *(of_keys(part, rows, self.shape) for part in parts)])

    def _columns(self) -> pa.Schema:
        """Of the table as it is now."""
        return pa.schema(self._table().schema().to_arrow())

    def _commit(self, changes: pa.Table, commit: TableCommit) -> None:
        refuse_far_days(changes)
        if (undone := delta_log.undone(self._log, _OURS)) is not None:
            raise ConfigError(
                f"{self.path} was put back by hand and lacks what versions since then had: RESTORE it to version "
                f"{undone}, or build it again with `duramen spark reprocess`"
            )
        if self._columns_change:
            self._change_columns()
        told = CommitProperties(
            custom_metadata={_OURS: encoded(commit)},
            app_transactions=[Transaction(commit.sink, commit.batch)],
        )
        if self.shape.keys and changes.num_rows and not self._rewrite(changes, commit):
            self._merge(self._table(), changes, told)
        # A merge that finds nothing to do (deletes of keys that are not there) commits nothing; the batch must be told.
        if self.applied(commit.sink) < commit.batch:
            rows = self.schema.empty_table() if self.shape.keys else changes
            write_deltalake(
                self._table(), rows, mode="append", commit_properties=told, post_commithook_properties=_NO_HOOKS
            )
        self._sync()

    def _change_columns(self) -> None:
        """Give the table the columns of the rows that come, in a commit before theirs: its rows stay the same, so a
        reader in between sees a whole version, and whoever is killed in between finds nothing left to change."""
        for left in reversed(range(REWRITES_MAX)):
            stored, wanted = self._columns(), self.as_stored(self.schema)
            if not changes(stored, wanted):
                self._columns_change = False
                return
            try:
                self._widen(wanted) if is_any_wider(stored, wanted) else self._add(stored, wanted)
            except CommitFailedError:  # upkeep by hand came between
                if not left:
                    raise
            self._sync()

    def _add(self, stored: pa.Schema, wanted: pa.Schema) -> None:
        fields = Schema.from_arrow(pa.schema([field for field in wanted if field.name not in stored.names])).fields
        self._table().alter.add_columns(fields, commit_properties=_ONCE, post_commithook_properties=_NO_HOOKS)

    def _widen(self, wanted: pa.Schema) -> None:
        """Write every file again: readers of Delta take a file's types for those of the table."""
        table = self._table()
        rows = table.to_pyarrow_dataset().to_batches()
        found = (batch for each in rows for batch in as_wide(pa.Table.from_batches([each]), wanted).to_batches())
        write_deltalake(
            table,
            pa.RecordBatchReader.from_batches(wanted, found),
            mode="overwrite",
            schema_mode="overwrite",
            commit_properties=_ONCE,
            post_commithook_properties=_NO_HOOKS,
        )

    def _rewrite(self, changes: pa.Table, commit: TableCommit) -> bool:
        """Fold the changes in by Arrow; False where the library has to do it."""
        told = CommitProperties(
            custom_metadata={_OURS: encoded(commit)},
            app_transactions=[Transaction(commit.sink, commit.batch)],
            # The library would put it behind a compaction of the files that go: their rows would come twice.
            max_commit_retries=0,
        )
        for left in reversed(range(REWRITES_MAX)):
            table = self._table()
            found = rewrite.actions(table, Path(self.path), self.schema, changes, self.shape, commit.time_ms)
            if not found:
                return found is not None
            try:
                table.create_write_transaction(
                    found, "append", table.schema(), commit_properties=told, post_commithook_properties=_NO_HOOKS
                )
            except CommitFailedError:
                # Upkeep by hand came between: once more, from what it left. Not behind another one's batch.
                last = self.last()
                if not left or (last is not None and last.version >= commit.version):
                    raise
            else:
                break
        return True

    def _upkeep(self, commit: TableCommit, retention: timedelta) -> None:
        """See Store."""
        if commit.version % COMPACT_EVERY == COMPACT_EVERY - 1:
            try:
                self._keep_up(commit, retention)
            except DeltaError as error:
                raise StorageError(f"{self.path}: {error}") from None

    def _keep_up(self, commit: TableCommit, retention: timedelta) -> None:
        keep = CommitProperties(custom_metadata={_OURS: encoded(commit)})
        self._table().optimize.compact(commit_properties=keep, post_commithook_properties=_NO_HOOKS)
        self._sync()
        self._set(retention)
        self._checkpoint()
        self._expire(time.time() - retention.total_seconds())
        self._remove_strays()

    def _set(self, retention: timedelta) -> None:
        """Tell the table what to keep: its checkpoints name removed files for as long, and other tools leave them.

        A table that was made before it was told so would lose old commits with its checkpoint.
        """
        wanted = {**_SETTINGS, delta_log.RETENTION: delta_log.interval(retention)}
        table = self._table()
        if not table.metadata().configuration.items() >= wanted.items():
            table.alter.set_table_properties(wanted, post_commithook_properties=_NO_HOOKS)
            self._sync()

    def _checkpoint(self) -> None:
        """Write a checkpoint that is there when it has its name: the library would not sync it, and one of which a
        power cut left a part makes the table unreadable. So it is written in a copy of the log."""
        since = self._sync_checkpoint() or 0
        copy = self.folder / "checkpointing"
        shutil.rmtree(copy, ignore_errors=True)
        (copy / "_delta_log").mkdir(parents=True)
        for path in delta_log.files(self._log, since, None):
            os.link(path, copy / "_delta_log" / path.name)
        table = DeltaTable(str(copy))
        table.create_checkpoint()
        for path in (copy / "_delta_log").glob(f"{table.version():020}.checkpoint*"):
            self._move(path)
        self._move(copy / "_delta_log" / "_last_checkpoint")
        shutil.rmtree(copy)

    def _move(self, path: Path) -> None:
        sync(path)
        os.replace(path, self._log / path.name)
        sync(self._log)

    def _expire(self, before: float) -> None:
        """Remove the versions that had a successor before that moment: files, then what the log tells of them.

        The log goes last and its oldest part first, so whoever is killed finds the same again.
        """
        end = delta_log.expired_end(self._log, before)
        numbers = [number for number in delta_log.commits(self._log) if number < end][::-1]
        found = [action for number in numbers for action in delta_log.actions(self._log, number)]
        told = [action["commitInfo"][_OURS] for action in found if _OURS in action.get("commitInfo", {})]
        self._archive([TableCommit.from_json(json.loads(text)) for text in told])
        removed = {unquote(action["remove"]["path"]) for action in found if "remove" in action}
        self._remove(removed)
        for path in delta_log.files(self._log, 0, end):
            path.unlink(missing_ok=True)

    def _remove(self, names: Iterable[str]) -> None:
        """Remove data files, but for those of the current version: a restore by hand brings removed ones back."""
        current = {path.name for path in map(Path, self.files())}
        for name in names:
            if Path(name).name == name and name not in current:  # a clone names files of another table
                (Path(self.path) / name).unlink(missing_ok=True)

    def _remove_strays(self) -> None:
        """Remove what killed writers left, and versions whose log somebody else has cleaned. Looked for once a run, for
        it takes a look at every file; a retention ago they were as old."""
        if self._strays is None:
            found = self._table().vacuum(dry_run=True, full=True)
            self._strays = [name for name in found if name.endswith(".parquet")]
        now, self._strays = self._strays[: delta_log.FILES_MAX], self._strays[delta_log.FILES_MAX :]
        self._remove(now)

    def _sync(self) -> None:
        """See Store. The library leaves all that it writes in the page cache.

        Every commit counts, for one that lacks makes the table unreadable: also those of a process that was killed
        before it came to this, and other people's. Before the last checkpoint all was synced.
        """
        if self._unsynced is None:
            checkpoint = self._sync_checkpoint()
            first = min((int(path.stem) for path in self._log.glob("[0-9]*.json")), default=0)
            self._unsynced = first if checkpoint is None else checkpoint
        while (commit := self._log / f"{self._unsynced:020}.json").exists():
            delta_log.sync_added(Path(self.path), self._log, self._unsynced)
            sync(commit)
            self._unsynced += 1
        for folder in (self._log, Path(self.path)):
            sync(folder)

    def _sync_checkpoint(self) -> int | None:
        """The version of the last checkpoint, which is on the disk on return; None when none is named."""
        hint = None
        with suppress(StorageError):  # a power cut took what nobody synced; Delta goes on without it
            hint = read_json(self._log / "_last_checkpoint")
        if hint is None:
            return None
        for path in (*self._log.glob(f"{hint['version']:020}.checkpoint*"), self._log / "_last_checkpoint", self._log):
            sync(path)
        version: int = hint["version"]
        return version

    def _merge(self, table: DeltaTable, changes: pa.Table, told: CommitProperties) -> None:
        same = " AND ".join(f"target.{_quoted(key)} = source.{_quoted(key)}" for key in self.shape.row_keys)
        merge = table.merge(
            changes,
            same,
            source_alias="source",
            target_alias="target",
            commit_properties=told,
            post_commithook_properties=_NO_HOOKS,
        )
        if self.shape.version:
            later = _not_older(order(self.shape.version, self.schema.names))
            merge.when_matched_update_all(predicate=later).when_not_matched_insert_all().execute()
            return
        merge = merge.when_matched_delete(predicate="source._deleted").when_matched_update_all()
        merge.when_not_matched_insert_all(predicate="NOT source._deleted").execute()


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _not_older(names: list[str]) -> str:
    """SQL for: the source's row comes after the target's or is it; a null comes before everything."""
    decided = "TRUE"
    for name in reversed(names):
        ours, theirs = f"source.{_quoted(name)}", f"target.{_quoted(name)}"
        greater = f"({ours} > {theirs} OR ({ours} IS NOT NULL AND {theirs} IS NULL))"
        same = f"({ours} = {theirs} OR ({ours} IS NULL AND {theirs} IS NULL))"
        decided = f"({greater} OR ({same} AND {decided}))"
    return decided
