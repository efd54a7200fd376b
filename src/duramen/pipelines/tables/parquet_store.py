"""A table as Parquet files and a manifest that is replaced atomically; needs nothing but pyarrow.

Rows lie in buckets by a hash of their key, one file a bucket; a batch rewrites the buckets that it touches. A history
has one bucket of many files. `manifest.json` names the files of the current version, `versions/` those of every
version; data files of versions older than the last few are removed.
"""

from __future__ import annotations

import base64
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duramen.errors import ConfigError, StorageError
from duramen.pipelines.model.atomic_files import make_folder, read_json, sync, write_json, write_parquet
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables.changelog import merged
from duramen.pipelines.tables.schema_changes import as_wide, joined
from duramen.pipelines.tables.store import TableCommit, TableStore, VersionExpiredError, remembered

BUCKETS = 16
VERSIONS_READABLE = 20
FORGOTTEN_MAX = 1000
"""Versions, at a time."""
HISTORY_FILES_MAX = 64  # then they are joined to one


class ParquetStore(TableStore):
    """See the module."""

    def __init__(self, folder: Path, shape: TableShape, schema: pa.Schema) -> None:
        super().__init__(folder, shape, schema)
        manifest = self._manifest()
        if manifest is None:
            make_folder(folder / "data")
            make_folder(folder / "versions")
        if manifest is None or (manifest["commit"] is None and self.stored_schema(folder) != self.schema):
            # A table from now on, for who opens it before the first batch, which may be long in coming.
            write_json(folder / "manifest.json", self._document(None, {}, {}))
        else:
            self._go_on_from(self.stored_schema(folder))

    @staticmethod
    def stored_schema(folder: Path) -> pa.Schema:
        """See Store."""
        manifest = read_json(folder / "manifest.json")
        if manifest is None:
            raise ConfigError(f"there is no table in {folder}")
        return _schema_of(manifest)

    def _manifest(self, version: int | None = None) -> dict[str, Any] | None:
        name = "manifest.json" if version is None else f"versions/{version:012}.json"
        found: dict[str, Any] | None = read_json(self.folder / name)
        return found

    def _document(
        self, commit: TableCommit | None, sinks: dict[str, int], buckets: dict[str, list[str]]
    ) -> dict[str, Any]:
        """A manifest. commit: None before the first one."""
        return {
            "commit": None if commit is None else commit.to_json(),
            "sinks": sinks,
            "buckets": buckets,
            "schema": base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
        }

    def commits(self) -> list[TableCommit]:
        last = self.last()
        if last is None:
            return []
        told = (read_json(path) for path in (self.folder / "versions").glob("*.json"))
        found = {commit.version: commit for f in told if f for commit in [TableCommit.from_json(f["commit"])]}
        # Read last, for what leaves the folder is in the archive before.
        found |= self._archived()
        # A version whose commit never came may lie behind the last one.
        return [found[version] for version in sorted(found) if version <= last.version]

    def last(self) -> TableCommit | None:
        manifest = self._manifest()
        return None if manifest is None or manifest["commit"] is None else TableCommit.from_json(manifest["commit"])

    def applied(self, sink: str) -> int:
        manifest = self._manifest()
        return -1 if manifest is None else manifest["sinks"].get(sink, -1)

    def files(self) -> list[str]:
        manifest = self._manifest()
        if manifest is None:
            return []
        return [str(self.folder / "data" / name) for names in manifest["buckets"].values() for name in names]

    def _stored(self, version: int | None) -> pa.Table:
        last = self.last()
        if version is not None and (last is None or version > last.version):
            # One whose commit never came may have its manifest.
            raise ConfigError(f"{self.folder} has no version {version}")
        while True:
            manifest = self._manifest(version)
            if manifest is None and version in self._archived():
                raise VersionExpiredError(version, self.folder)
            if manifest is None and version is not None:
                raise ConfigError(f"{self.folder} has no version {version}")
            names = [name for names in manifest["buckets"].values() for name in names] if manifest else []
            try:
                return self._read(names, joined(self.schema, _schema_of(manifest)) if manifest else self.schema)
            except FileNotFoundError:
                if version is not None:
                    raise VersionExpiredError(version, self.folder) from None
                if manifest == self._manifest():
                    raise StorageError(f"a file that {self.folder / 'manifest.json'} names is gone") from None
                # The writer has gone many versions on while we read: the files of the current one are there.

    def _read(self, names: list[str], schema: pa.Schema) -> pa.Table:
        """The rows of these files. schema: as wide as each of theirs."""
        tables = [pq.read_table(self.folder / "data" / name, partitioning=None) for name in names]
        return pa.concat_tables([schema.empty_table(), *(as_wide(table, schema) for table in tables)])

    def _commit(self, changes: pa.Table, commit: TableCommit) -> None:
        manifest = self._manifest()
        buckets: dict[str, list[str]] = manifest["buckets"] if manifest else {}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            files = pool.map(lambda each: self._files(each, buckets.get(each[0], []), commit), self._by_bucket(changes))
            buckets = buckets | dict(files)
        sync(self.folder / "data")
        sinks = remembered(manifest["sinks"] if manifest else {}, commit.sink, commit.batch)
        document = self._document(commit, sinks, buckets)
        write_json(self.folder / "versions" / f"{commit.version:012}.json", document)
        write_json(self.folder / "manifest.json", document)

    def _sync(self) -> None:
        """See Store. Before the manifest gets its name, all that it names is on the disk."""
        sync(self.folder)

    def _files(self, change: tuple[str, pa.Table], files: list[str], commit: TableCommit) -> tuple[str, list[str]]:
        """A bucket, and its files with the rows that come to it."""
        bucket, rows = change
        kept: list[str] = []
        if self.shape.keys:
            rows = merged(self._read(files, self.schema), rows, self.shape.row_keys, self.shape.version)
        elif len(files) < HISTORY_FILES_MAX:
            kept = files
        else:
            rows = pa.concat_tables([self._read(files, self.schema), rows])
        name = f"{commit.version:012}-{bucket}.parquet"
        write_parquet(self._data(name), rows, durable_name=False)
        return bucket, [*kept, name]

    def _near(self, rows: pa.Table) -> pa.Table:
        """See Store. Those of the same buckets."""
        manifest = self._manifest()
        buckets = manifest["buckets"] if manifest else {}
        return self._read([name for at, _ in self._by_bucket(rows) for name in buckets.get(at, [])], self.schema)

    def _by_bucket(self, changes: pa.Table) -> list[tuple[str, pa.Table]]:
        if changes.num_rows == 0:
            return []
        if not self.shape.keys:
            return [("all", changes)]
        joined = pc.binary_join_element_wise(*(_as_bytes(changes[key]) for key in self.shape.keys), b"\0").to_pylist()
        hashes = np.fromiter((zlib.crc32(key) % BUCKETS for key in joined), np.int64, len(joined))
        return [(f"{b:02}", changes.filter(pa.array(hashes == b))) for b in range(BUCKETS) if (hashes == b).any()]

    def _data(self, name: str) -> Path:
        return self.folder / "data" / name

    def _upkeep(self, commit: TableCommit, retention: timedelta) -> None:
        """See Store. Remove the data files that no readable version names: those that just fell out, and what crashes
        left. It goes by versions, not by time."""
        version = commit.version
        if version % VERSIONS_READABLE:
            return
        kept = set()
        for number in range(max(0, version - VERSIONS_READABLE + 1), version + 1):
            manifest = self._manifest(number)
            kept |= {name for names in manifest["buckets"].values() for name in names} if manifest else set()
        for path in (self.folder / "data").glob("*.parquet"):
            if path.name not in kept:
                path.unlink()
        self._forget(version - VERSIONS_READABLE + 1)

    def _forget(self, first: int) -> None:
        """Write down what older manifests tell of their versions, and remove them, the oldest first."""
        there = sorted((self.folder / "versions").glob("*.json"))
        old = [path for path in there if int(path.stem) < first][:FORGOTTEN_MAX]
        self._archive([TableCommit.from_json(read_json(path)["commit"]) for path in old])
        for path in old:
            path.unlink()


def _schema_of(manifest: dict[str, Any]) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(manifest["schema"])))


def _as_bytes(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A key's text in UTF-8; bytes as they are, which may be no text."""
    return pc.cast(column if pa.types.is_binary(column.type) else pc.cast(column, pa.string()), pa.binary())
