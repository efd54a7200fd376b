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
    guarded: pass over records that the table contains. Not for aggregates, whose rows come from many records.
    """

    keys: tuple[str, ...] = ()
    version: str | None = None
    guarded: bool = True

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
            if name.startswith(("_", "#")) and name not in (TIMESTAMP, ALSO):
                raise ConfigError(f"the column {name} begins with {name[0]}: such names are the store's own")
