"""A table in Delta Lake's format, by the `deltalake` package: every Delta reader can open it.

The batch number of the query (Delta's application transaction) and our description of the version are part of the same
commit as the data.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from duramen.errors import ConfigError, StorageError
from duramen.pipelines.changelog import order
from duramen.pipelines.durable import read_json, sync
from duramen.pipelines.store import Commit, Shape, Store, columns, encoded

COMPACT_EVERY = 50  # versions
HISTORY_LOOK_BACK = 8  # commits of others (a hand-run optimize) between two of ours
_OURS = "duramen"
# Delta removes commits of more than a month ago, and with them what they tell: which records a version contains, and
# where its changes lie.
_SETTINGS = {"delta.enableExpiredLogCleanup": "false"}
# The library's own checkpoints would come when nobody syncs them.
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class DeltaStore(Store):
    """See the module. A version of ours is a Delta version whose commit describes it; others may lie between."""

    def __init__(self, folder: Path, shape: Shape, schema: pa.Schema) -> None:
        super().__init__(folder, shape, schema)
        self.path = str(folder / "delta")
        if not DeltaTable.is_deltatable(self.path):
            Path(self.path).mkdir(parents=True, exist_ok=True)
            DeltaTable.create(self.path, self.schema, configuration=_SETTINGS)
        self._log = Path(self.path) / "_delta_log"
        self._unsynced: int | None = None
        """The first Delta version that this object has not synced; None until it has looked."""
        found = self._table().schema()
        # Types as Delta has them, for the library would cast to the table's: 2.7 to 2.
        if [(f.name, f.type) for f in found.fields] != [
            (f.name, f.type) for f in Schema.from_arrow(self.schema).fields
        ]:
            told = columns(pa.schema(found.to_arrow()))
            raise ConfigError(f"{folder} holds {told}, not {columns(self.schema)}; build it anew: reprocess")

    @staticmethod
    def stored_schema(folder: Path) -> pa.Schema:
        """See Store."""
        path = str(folder / "delta")
        if not DeltaTable.is_deltatable(path):
            raise ConfigError(f"there is no table in {folder}")
        return pa.schema(DeltaTable(path).schema().to_arrow())

    def _table(self, version: int | None = None) -> DeltaTable:
        try:
            return DeltaTable(self.path, version=version)
        except (TableNotFoundError, DeltaError) as error:
            raise StorageError(f"{self.path}: {error}") from None

    def _described(self, limit: int | None = None) -> list[tuple[int, Commit]]:
        """Delta version and commit, newest first."""
        found = self._table().history(limit)
        return [(entry["version"], Commit.from_json(json.loads(entry[_OURS]))) for entry in found if _OURS in entry]

    def commits(self) -> list[Commit]:
        # Compacting tells the version again that it keeps.
        return list({commit.version: commit for _, commit in reversed(self._described())}.values())

    def last(self) -> Commit | None:
        found = self._described(HISTORY_LOOK_BACK) or self._described()
        return found[0][1] if found else None

    def applied(self, sink: str) -> int:
        found = self._table().transaction_version(sink)
        return -1 if found is None else found

    def files(self) -> list[str]:
        table = self._table()
        if "deletionVectors" in (table.protocol().reader_features or []):
            raise ConfigError(f"{self.path} has deletion vectors: read it with a Delta reader")
        return table.file_uris()

    def _stored(self, version: int | None) -> pa.Table:
        number = None
        if version is not None:
            number = next((delta for delta, commit in self._described() if commit.version == version), None)
            if number is None:
                raise ConfigError(f"{self.path} has no version {version}")
        try:
            found: pa.Table = self._table(number).to_pyarrow_table()
        except FileNotFoundError as error:
            if version is None:
                raise StorageError(f"{self.path}: a file of the table is gone: {error}") from None
            raise ConfigError(f"the rows of version {version} are no longer kept in {self.folder}") from None
        return found.select(self.schema.names).cast(self.schema)

    def _commit(self, changes: pa.Table, commit: Commit) -> None:
        table = self._table()
        told = CommitProperties(
            custom_metadata={_OURS: encoded(commit)},
            app_transactions=[Transaction(commit.sink, commit.batch)],
        )
        before = table.version()
        if self.shape.keys and changes.num_rows:
            self._merge(table, changes, told)
        # A merge that finds nothing to do (deletes of keys that are not there) commits nothing; the batch must be told.
        if not self.shape.keys or self._table().version() == before:
            rows = self.schema.empty_table() if self.shape.keys else changes
            write_deltalake(table, rows, mode="append", commit_properties=told, post_commithook_properties=_NO_HOOKS)
        self._sync()
        if commit.version % COMPACT_EVERY == COMPACT_EVERY - 1:
            keep = CommitProperties(custom_metadata={_OURS: encoded(commit)})
            self._table().optimize.compact(commit_properties=keep, post_commithook_properties=_NO_HOOKS)
            self._sync()
            self._keep_history()
            self._table().create_checkpoint()
            self._sync_checkpoint()

    def _keep_history(self) -> None:
        """A table that was made before it was told so would lose old commits with its checkpoint."""
        table = self._table()
        if not table.metadata().configuration.items() >= _SETTINGS.items():
            table.alter.set_table_properties(_SETTINGS, post_commithook_properties=_NO_HOOKS)
            self._sync()

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
            for line in commit.read_text(encoding="utf-8").splitlines():
                if added := json.loads(line).get("add"):
                    with suppress(FileNotFoundError):  # of an older version, and somebody vacuumed
                        sync(Path(self.path) / unquote(added["path"]))
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
        same = " AND ".join(f"target.{_quoted(key)} = source.{_quoted(key)}" for key in self.shape.keys)
        merge = table.merge(
            changes,
            same,
            source_alias="source",
            target_alias="target",
            commit_properties=told,
            post_commithook_properties=_NO_HOOKS,
        )
        if self.shape.version:
            later = _not_older(order(self.shape.version))
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
