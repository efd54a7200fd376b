"""What a version of a step was made by: its function's text, and what its source declares beside that.

A function may read another topic, another key or a column of another type without a change of its text. Columns that
came, or went, or whose numbers became wider, are no other logic: the function's own columns tell what it makes of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

from duramen.pipelines.model.declaration import Step, TableStep, Topic

_WIDTHS: Sequence[Sequence[type[DataType]]] = (ByteType, ShortType, IntegerType, LongType), (FloatType, DoubleType)
"""As `schema_changes` has them for tables."""


def noted(step: Step) -> dict[str, Any]:
    """What a version's folder keeps of it."""
    source = step.source
    return {
        "fingerprint": step.fingerprint,
        "source": {"topic": source.name, "schema": source.schema, "key": source.key},
    }


def other_logic(step: Step, about: Mapping[str, Any] | None) -> str | None:
    """How the step differs from what made a version, for an error; None where it does not, or nothing was made yet.

    about: what the version's folder tells. Versions of older releases tell less.
    """
    if about is None:
        return None
    if about.get("fingerprint") != step.fingerprint:
        return "was made by other logic than the code has now"
    return _other_source(step.source, about.get("source") or _of_older(about))


def form_of(step: Step) -> dict[str, Any] | None:
    """How the step's table is kept; None where it has none."""
    return step.form if isinstance(step, TableStep) else None


def made_as(step: Step, about: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How a version's table is kept, or as `form_of` where its folder does not tell."""
    found: dict[str, Any] | None = (about or {}).get("table")
    return found or form_of(step)


def at_a_glance(step: Step, about: Mapping[str, Any] | None) -> str:
    """How a version stands to the code, in two words: "ready", or what a run would stumble over.

    Without Spark, who alone can read a schema: whether a run goes on where that is another one, it has to find out.
    """
    if about is None:
        return "never run"
    if about.get("fingerprint") != step.fingerprint:
        return "code changed"
    now, before = step.source, about.get("source") or _of_older(about)
    if (before.get("topic", now.name), before.get("key", now.key)) != (now.name, now.key):
        return "source changed"
    if made_as(step, about) != form_of(step):
        return "table changed"
    return "ready" if before.get("schema", now.schema) == now.schema else "schema changed"


def _of_older(about: Mapping[str, Any]) -> dict[str, Any]:
    """Of the source what older releases have noted: the topic that is read, which behind a cut has another name."""
    return {} if about.get("generation") or "reads" not in about else {"topic": about["reads"]}


def _other_source(now: Topic, before: Mapping[str, Any]) -> str | None:
    told = ("topic", before.get("topic", now.name), now.name), ("key", before.get("key", now.key), now.key)
    for what, old, new in told:
        if old != new:
            return f"was made with the {what} {old} of its source, which is {new} now"
    old, new = before.get("schema", now.schema), now.schema
    if old == new:
        return None
    if old is None or new is None:
        had, has = ("no schema", "one") if old is None else ("a schema", "none")
        return f"was made with {had} of its source, which has {has} now"
    kinds = {field.name: field.dataType for field in cast(StructType, StructType.fromDDL(new)).fields}
    for field in cast(StructType, StructType.fromDDL(old)).fields:
        if (kind := kinds.get(field.name)) is not None and not _goes_on(field.dataType, kind):
            was, became = field.dataType.simpleString(), kind.simpleString()
            return f"was made with the column {field.name} of its source as {was}, which is {became} now"
    return None


def _goes_on(old: DataType, new: DataType) -> bool:
    """Whether what both have is of the same types, or of wider ones."""
    if isinstance(old, StructType) and isinstance(new, StructType):
        kinds = {field.name: field.dataType for field in new.fields}
        return all(_goes_on(field.dataType, kinds.get(field.name, field.dataType)) for field in old.fields)
    if isinstance(old, ArrayType) and isinstance(new, ArrayType):
        return _goes_on(old.elementType, new.elementType)
    if isinstance(old, MapType) and isinstance(new, MapType):
        return old.keyType == new.keyType and _goes_on(old.valueType, new.valueType)
    was, is_now = type(old), type(new)
    return old == new or any(
        was in wide and is_now in wide and wide.index(was) < wide.index(is_now) for wide in _WIDTHS
    )
