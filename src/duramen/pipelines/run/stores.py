"""The store classes by the names that declarations use, and the table of a version, opened as it was made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from duramen.pipelines.model.declaration import TableStep
from duramen.pipelines.model.table_shape import TableShape
from duramen.pipelines.tables.delta_store import DeltaStore
from duramen.pipelines.tables.parquet_store import ParquetStore
from duramen.pipelines.tables.store import TableStore

STORES: Mapping[str, type[TableStore]] = {"delta": DeltaStore, "parquet": ParquetStore}


def open_version(step: TableStep, table: Path, about: Mapping[str, Any]) -> TableStore:
    """A version's table, as it was made; `about`: what the version's folder says. ConfigError when there is none."""
    return open_as(table, about, step.form)


def open_as(table: Path, about: Mapping[str, Any], form: Mapping[str, Any]) -> TableStore:
    """See open_version. form: how it was made where the folder does not say."""
    form = about.get("table") or form
    shape = TableShape(tuple(form["keys"]), form["version"], form["guarded"], form.get("history"))
    return STORES[form["store"]].reopen(table, shape)
