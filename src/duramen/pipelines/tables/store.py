"""What every store of a table does: apply a batch once, tell its versions and offsets, read rows and changes.

A version of a table is one commit. It says which batch of which query made it, which records the table contains from
then on, and where the changes lie that made it. All of that is in the store's own atomic commit, so a batch that comes
again after a crash is found out by the store, not by the checkpoint.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from duramen.errors import ConfigError, StorageError
from duramen.pipelines.model.atomic_files import make_folder, read_json, write_json, write_parquet
from duramen.pipelines.model.offsets import Cause, Offsets
from duramen.pipelines.model.table_shape import ALSO, TableShape
from duramen.pipelines.tables.changelog import TRACE, alive, came_of, conform, fresh, latest, order
from duramen.pipelines.tables.intervals import of_keys, placed, versions
from duramen.pipelines.tables.schema_changes import as_wide, changes, hindrances, joined, ordered

SINKS_REMEMBERED = 8
CHANGES_JOINED = 100
"""Versions whose changes one file takes up. It names the files, so tables that are there are found by it."""
CHANGES_BYTES_MAX = 16 << 20
"""Larger changes than this, of so many versions, stay as they are: their files are not small."""
JOINS_MAX = 2
"""How many files of changes are made at a time."""
ARCHIVE_COMMITS = 1000
"""Of a file of the archive, about."""
_VERSION = pa.field("_version", pa.int64())


class TableCommit(NamedTuple):
    """One version of a table. offsets: what it contains; time_ms: Unix time; changes: the file with its changes."""

    version: int
    sink: str
    batch: int
    offsets: Offsets
    upserts: int
    deletes: int
    time_ms: int
    changes: str

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "offsets": self.offsets.to_json()}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> TableCommit:
        return cls(**{**found, "offsets": Offsets.from_json(found["offsets"])})


class VersionExpiredError(ConfigError):
    """The rows of a version are not kept any more; its offsets and its changes are."""

    def __init__(self, version: int, folder: Path) -> None:
        super().__init__(f"the rows of version {version} are no longer kept in {folder}")
        self.version = version


class TableStore(ABC):
    """A table in a folder. One writer at a time; any number of readers, who see whole versions."""

    UNFIT: ClassVar[Mapping[str, Callable[[pa.DataType], bool]]] = {
        "an interval of months": pa.types.is_interval,
        "a struct without fields": lambda kind: pa.types.is_struct(kind) and not kind.num_fields,
    }
    """What the files cannot hold, also within other types."""

    def __init__(self, folder: Path, shape: TableShape, schema: pa.Schema) -> None:
        """schema: the table's own columns, without those of the trace."""
        self.check(shape, schema)
        self.folder = folder
        self.shape = shape
        self._block: tuple[int, pa.Table] | None = None
        """Joined changes that were read last, by their first version."""
        own = pa.schema([field.with_nullable(True).remove_metadata() for field in schema])
        self.schema = pa.schema([*shape.stored(own), *TRACE])
        """As the code gives the columns. With the next batch the table has them, too."""

    @classmethod
    def check(cls, shape: TableShape, schema: pa.Schema) -> None:
        """ConfigError unless tables of this kind can have this shape and these columns."""
        shape.check(schema)
        for field in schema:
            if pa.types.is_null(field.type):
                raise ConfigError(f"the column {field.name} is always null and has no type: cast it to one")
            for kind in _kinds(field.type):
                for what, unfit in cls.UNFIT.items():
                    if unfit(kind):
                        raise ConfigError(f"the column {field.name} has {what}, which the table cannot hold: cast it")

    @classmethod
    def reopen(cls, folder: Path, shape: TableShape) -> Self:
        """The table that is there. ConfigError when there is none."""
        return cls(folder, shape, _own(cls.stored_schema(folder), shape))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for Spark's server, it is the same table opened there."""
        return _opened_there, (type(self), self.folder, self.shape, _own(self.schema, self.shape))

    @staticmethod
    @abstractmethod
    def stored_schema(folder: Path) -> pa.Schema:
        """The schema of the table in the folder. ConfigError when there is none."""

    @classmethod
    def as_stored(cls, schema: pa.Schema) -> pa.Schema:
        """The schema of a table of these columns, as `stored_schema` would tell it."""
        return schema

    @classmethod
    def other_columns(cls, folder: Path, shape: TableShape, schema: pa.Schema) -> tuple[str, bool]:
        """How these columns differ from those of the table in the folder, and whether it goes on with them. ConfigError
        when there is none."""
        stored, given = cls.stored_schema(folder), cls.as_stored(shape.stored(schema))
        return changes(stored, given), not hindrances(stored, given, shape)

    def _go_on_from(self, stored: pa.Schema) -> None:
        """Give the rows the order of the table's columns. ConfigError where the table cannot go on with these."""
        if other := hindrances(stored, self.as_stored(self.schema), self.shape):
            raise ConfigError(
                f"{self.folder} has other columns than the code gives, which {other}: `duramen spark reprocess` "
                "builds it again beside the old one"
            )
        self.schema = ordered(stored, self.schema)

    @abstractmethod
    def commits(self) -> list[TableCommit]:
        """Every version that is told of, oldest first."""

    @abstractmethod
    def last(self) -> TableCommit | None:
        """The version that readers see now; None before the first."""

    @abstractmethod
    def applied(self, sink: str) -> int:
        """The last batch of this query that is in the table; -1 for none."""

    @abstractmethod
    def files(self) -> list[str]:
        """The Parquet files that make up the table now."""

    @abstractmethod
    def _stored(self, version: int | None) -> pa.Table:
        """Every row of a version, markers of deleted keys too. ConfigError when the version is gone."""

    @abstractmethod
    def _commit(self, changes: pa.Table, commit: TableCommit) -> None:
        """Make `changes` and the commit visible together, and durable."""

    @abstractmethod
    def _sync(self) -> None:
        """Make durable what is visible: a writer that was killed may have left its last commit in the page cache."""

    def apply(self, batch: pa.Table, sink: str, number: int, offsets: Offsets) -> TableCommit | None:
        """Fold one batch in; None when it was in already. Durable on return.

        sink: the query; number: its batch, ascending; offsets: where the batch ends in every partition it reads.
        """
        if self.applied(sink) >= number:
            self._sync()
            return None
        before = self.last()
        contained = before.offsets if before else Offsets()
        given = pa.schema([field for field in self.schema if field.name not in self.shape.added])
        changes = conform(batch, given, self.shape.keys, self.shape.version)
        if self.shape.guarded:
            changes = fresh(changes, contained)
        if self.shape.history:
            changes = self._placed(changes)
        elif self.shape.keys:
            changes = latest(changes, self.shape.keys, self.shape.version)
        deletes = pc.sum(changes["_deleted"]).as_py() or 0
        version = before.version + 1 if before else 0
        name = f"changes/{version:012}.parquet" if changes.num_rows else ""
        if name:
            make_folder(self.folder / "changes")
            write_parquet(self.folder / name, changes)
        commit = TableCommit(
            version=version,
            sink=sink,
            batch=number,
            offsets=contained.joined(offsets),
            upserts=changes.num_rows - deletes,
            deletes=deletes,
            time_ms=time.time_ns() // 1_000_000,
            changes=name,
        )
        self._commit(changes, commit)
        return commit

    def _placed(self, rows: pa.Table) -> pa.Table:
        """What changes in the table, which keeps every version, where these come."""
        rows = versions(rows, self.shape).select(self.schema.names)
        if rows.num_rows == 0:
            return rows
        return placed(of_keys(self._near(rows), rows, self.shape), rows, self.shape)

    @abstractmethod
    def _near(self, rows: pa.Table) -> pa.Table:
        """Rows of the table as it is, deletions too: all that have a key of these, and maybe others."""

    def upkeep(self, commit: TableCommit, retention: timedelta) -> None:
        """What is to be done now and then behind a batch, `commit`: old versions go, small files become fewer.

        Of most batches nothing; the work has a bound. What is current stays, and for every version its offsets and its
        changes. Killed anywhere it has done no harm, and the next call goes on. Raises what the disk and the library
        raise. retention: how long the rows of older versions are kept, by stores that keep them for a time.
        """
        self._upkeep(commit, retention)
        if commit.version % CHANGES_JOINED == CHANGES_JOINED - 1:
            self._join_changes(commit.version + 1)

    def _joined(self, first: int) -> Path:
        return self.folder / "changes" / f"{first:012}-{first + CHANGES_JOINED - 1:012}.parquet"

    def _join_changes(self, end: int) -> None:
        """Make one file of those of every CHANGES_JOINED versions before `end`, with the version in each row."""
        there = (path for path in (self.folder / "changes").glob("[0-9]*.parquet") if path.stem.isdigit())
        blocks: dict[int, list[Path]] = {}
        for path in sorted(there):
            blocks.setdefault(int(path.stem) // CHANGES_JOINED * CHANGES_JOINED, []).append(path)
        joined = 0
        for first, paths in blocks.items():
            if first + CHANGES_JOINED > end or joined == JOINS_MAX:
                return
            if sum(path.stat().st_size for path in paths) <= CHANGES_BYTES_MAX:
                self._join(first, paths)
                joined += 1

    def _join(self, first: int, paths: Sequence[Path]) -> None:
        """Written before the others go, so that whoever does not find those finds it."""
        tables = [pq.read_table(self._joined(first), partitioning=None)] if self._joined(first).exists() else []
        known = set(tables[0]["_version"].to_pylist()) if tables else set()
        new = [path for path in paths if int(path.stem) not in known]
        if new:
            tables += [_versioned(pq.read_table(path, partitioning=None), int(path.stem)) for path in new]
            schema = self.schema.append(_VERSION)
            write_parquet(self._joined(first), pa.concat_tables([as_wide(table, schema) for table in tables]))
        for path in paths:
            path.unlink()

    def _changes_of(self, commit: TableCommit) -> pa.Table:
        """The changes of a version that has some. StorageError when they are gone."""
        return self._as_now(self._changes_then(commit))

    def _as_now(self, rows: pa.Table) -> pa.Table:
        """Rows of a version as the newest ones are: as the code gives them, or wider, where a reader was opened before
        the table went on with other columns."""
        return as_wide(rows, joined(self.schema, rows.schema))

    def _changes_then(self, commit: TableCommit) -> pa.Table:
        """See _changes_of; with the columns of that version, or of a later one."""
        first = commit.version // CHANGES_JOINED * CHANGES_JOINED
        try:
            return pq.read_table(self.folder / commit.changes, partitioning=None)
        except FileNotFoundError:
            with suppress(FileNotFoundError):
                for block in (self._block, None):
                    if block is None or block[0] != first:
                        block = self._block = (first, pq.read_table(self._joined(first), partitioning=None))
                    rows = block[1].filter(pc.equal(block[1]["_version"], commit.version))
                    if rows.num_rows:
                        return rows.drop_columns(["_version"])
        raise StorageError(f"{self.folder}: the changes of version {commit.version} are gone")

    @abstractmethod
    def _upkeep(self, commit: TableCommit, retention: timedelta) -> None:
        """See upkeep."""

    def _archive(self, commits: Sequence[TableCommit]) -> None:
        """Write down commits that the store's own log is about to lose. Durable on return."""
        if not commits:
            return
        make_folder(self.folder / "archive")
        last = self._archives()[-1:]
        there = [TableCommit.from_json(each) for path in last for each in read_json(path)]
        if len(there) >= ARCHIVE_COMMITS:
            last, there = [], []
        told = {commit.version: commit.to_json() for commit in (*there, *commits)}
        path = self.folder / "archive" / f"{min(told):012}-{max(told):012}.json"
        write_json(path, [told[version] for version in sorted(told)])
        for shorter in last:
            if shorter != path:
                shorter.unlink()

    def _archived(self) -> dict[int, TableCommit]:
        """The commits that were written down, by version."""
        while True:
            found = [read_json(path) for path in self._archives()]
            if None not in found:  # else the writer has just replaced it by a longer one
                return {commit.version: commit for each in found for commit in map(TableCommit.from_json, each)}

    def _archives(self) -> list[Path]:
        return sorted((self.folder / "archive").glob("[0-9]*.json"))

    def rows(self, version: int | None = None) -> pa.Table:
        """What a reader sees, now or at a version, each row with its record in `_topic`, `_partition`, `_offset`.

        Those from before a column came have null in it.
        VersionExpiredError for a version whose rows are not kept any more.
        """
        stored = self._as_now(self._stored(version))
        # A history keeps its deletions as rows: they happened.
        return alive(stored) if self.shape.keys else stored

    def changes(self, after: int = -1) -> Iterator[pa.Table]:
        """The table's changelog: for each version after `after`, its upserts and deletes, with `_version`.

        Those from before a column came have null in it.
        """
        for commit in self.commits():
            if commit.version > after and commit.changes:
                yield _versioned(self._changes_of(commit), commit.version)

    def changes_between(self, first: int, end: int) -> Iterator[tuple[TableCommit, pa.Table]]:
        """The versions from `first` up to `end`, which is left out, with their changes. ConfigError where the table
        lacks one, StorageError where its changes are gone."""
        found = {commit.version: commit for commit in self.commits() if first <= commit.version < end}
        for version in range(first, end):
            if version not in found:
                raise ConfigError(f"{self.folder} has no version {version}: it was put back or built again")
            commit = found[version]
            yield commit, self._changes_of(commit) if commit.changes else self.schema.empty_table()

    def caused_by(self, cause: Cause) -> Iterator[tuple[TableCommit, pa.Table]]:
        """The versions whose changes came from this record, alone or with others, with those rows."""
        for commit in self.commits():
            if commit.changes and commit.offsets.contains(cause):
                rows = self._changes_of(commit)
                if (found := rows.filter(came_of(rows, cause))).num_rows:
                    yield commit, found

    def superseded(self, cause: Cause, keys: Mapping[str, Any]) -> tuple[TableCommit, Cause, bool] | None:
        """The first record that took the place of this one's row with these keys: version, record, whether it deleted
        the row. With a version column it may have come before: then this one took no effect.
        """
        first = self.first_with(cause)
        rows = list(self._changed(keys)) if first is not None else []
        ranks = [self._rank(row) for _, row in rows if cause in _causes(row)] if self.shape.version else []
        ours = max(ranks, default=None)
        for commit, row in rows:
            found, *others = _causes(row)
            if ours is not None:
                later = self._rank(row) > ours
            else:
                later = commit.version >= cast(TableCommit, first).version and cause not in (found, *others)
                later = later and (found.offset > cause.offset or found[:2] != cause[:2])
            if later:
                return commit, found, row["_deleted"]
        return None

    def _changed(self, keys: Mapping[str, Any]) -> Iterator[tuple[TableCommit, dict[str, Any]]]:
        """Every change of the row with these keys, oldest version first."""
        for commit in self.commits():
            if commit.changes:
                rows = self._changes_of(commit)
                for name, value in keys.items():
                    rows = rows.filter(pc.equal(rows[name], pa.scalar(value, rows.schema.field(name).type)))
                wanted = dict.fromkeys([*self._order(), *TRACE.names])
                yield from ((commit, row) for row in rows.select(list(wanted)).to_pylist())

    def _rank(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        """Of two rows of a key the one that ranks higher is later."""
        return tuple(part for name in self._order() for part in (row[name] is not None, row[name]))

    def _order(self) -> list[str]:
        return order(self.shape.version, self.schema.names)

    def first_with(self, *causes: Cause) -> TableCommit | None:
        """The first version that contains these records; None when none does."""
        return next((commit for commit in self.commits() if all(map(commit.offsets.contains, causes))), None)


def _versioned(rows: pa.Table, version: int) -> pa.Table:
    return rows.append_column(_VERSION, pa.repeat(pa.scalar(version, _VERSION.type), rows.num_rows))


def _kinds(kind: pa.DataType) -> Iterator[pa.DataType]:
    """A type, and those within it."""
    yield kind
    for index in range(kind.num_fields):
        yield from _kinds(kind.field(index).type)


def _causes(row: Mapping[str, Any]) -> list[Cause]:
    """The records that a row came from, its own first."""
    others = (row.get(ALSO) or "").split()
    return [Cause(row["_topic"], row["_partition"], row["_offset"]), *map(Cause.parse, others)]


def remembered(sinks: dict[str, int], sink: str, batch: int) -> dict[str, int]:
    """The last batch of each query, newest queries last; long gone ones are forgotten."""
    kept = {name: number for name, number in sinks.items() if name != sink} | {sink: batch}
    return dict(list(kept.items())[-SINKS_REMEMBERED:])


def encoded(commit: TableCommit) -> str:
    """A commit as one line of JSON."""
    return json.dumps(commit.to_json(), separators=(",", ":"))


def _own(stored: pa.Schema, shape: TableShape) -> pa.Schema:
    """The table's own columns, as the code gives them."""
    beside = {*TRACE.names, *shape.added}
    return pa.schema([field for field in stored if field.name not in beside])


def _opened_there(kind: type[TableStore], folder: Path, shape: TableShape, schema: pa.Schema) -> TableStore:
    """The table in another process, which has to find it."""
    try:
        kind.stored_schema(folder)
    except ConfigError:
        raise ConfigError(
            f"Spark's server finds no table in {folder}, which this run has made: the pipeline's folder has to be the "
            "same one for both, on one machine or on storage that they share"
        ) from None
    return kind(folder, shape, schema)
