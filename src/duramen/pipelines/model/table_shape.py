"""How the rows of a step become a table: keys, the column that orders them, and what its columns may be."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from duramen.errors import ConfigError

TIMESTAMP, ALSO = "_timestamp", "_also"
"""Columns of tables of several sources: when the latest record was written that a row comes from, and the others."""


class TableShape(NamedTuple):
    """How rows become the table.

    keys: one row per key; none for a history, to which every row is appended.
    version: the column that orders rows of a key that lie in several partitions.
    guarded: pass over records that the table contains. Not for aggregates, whose rows come from many records, nor for
    rows that Spark has held back.
    history: "scd2" for a row of each version of a key, with the interval in which it holds.
    """

    keys: tuple[str, ...] = ()
    version: str | None = None
    guarded: bool = True
    history: str | None = None

    @property
    def row_keys(self) -> tuple[str, ...]:
        """What a row is known by: the keys, and of several versions of them where each one begins."""
        return (*self.keys, "valid_from") if self.history else self.keys

    @property
    def added(self) -> tuple[str, ...]:
        """The columns that rows get beside their own."""
        return ("valid_from", "valid_to", "current") if self.history else ()

    def stored(self, schema: pa.Schema) -> pa.Schema:
        """The columns of the table for rows with these."""
        if not self.history:
            return schema
        kinds = [*[schema.field(self.version).type] * 2, pa.bool_()]
        return pa.schema([*schema, *map(pa.field, self.added, kinds)])

    def check(self, schema: pa.Schema) -> None:
        """ConfigError unless the columns named are there, once, and can be compared, and no other begins with an
        underscore."""
        for name in schema.names:
            if schema.names.count(name) > 1:
                raise ConfigError(f"there are two columns {name}: give one of them another name")
        for name in [*self.keys, *([self.version] if self.version else [])]:
            if name not in schema.names:
                raise ConfigError(f"there is no column {name} among {', '.join(schema.names)}")
            if pa.types.is_nested(kind := schema.field(name).type):
                what = "key" if name in self.keys else "version"
                raise ConfigError(f"the {what} {name} is a {kind}, which cannot be compared: take a column of it")
        for name in schema.names:
            if name in self.added:
                raise ConfigError(f"the column {name} is the table's own, which has history: give it another name")
            if name.startswith(("_", "#")) and name not in (TIMESTAMP, ALSO):
                raise ConfigError(
                    f"the column {name} begins with {name[0]}: such names are the store's own: give it another (alias)"
                )
