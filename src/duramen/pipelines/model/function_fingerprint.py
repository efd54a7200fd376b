"""What a version of a step was made by: its function's text, and what its sources declare beside that.

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

from duramen.pipelines.model.declaration import Step, StreamStep, TableStep, Topic

_WIDTHS: Sequence[Sequence[type[DataType]]] = (ByteType, ShortType, IntegerType, LongType), (FloatType, DoubleType)
"""As `schema_changes` has them for tables."""


def noted(step: Step) -> dict[str, Any]:
    """What a version's folder keeps of it."""
    told = [
        {"topic": source.name, "schema": source.schema, "key": source.key, "envelope": source.envelope}
        for source in step.sources
    ]
    looked_up = {"lookups": _lookups(step)} if step.lookups else {}
    source = {"source": told[0]} if len(told) == 1 else {"sources": told}
    return {"fingerprint": step.fingerprint, **source, **looked_up}


def other_logic(step: Step, about: Mapping[str, Any] | None) -> str | None:
    """How the step differs from what made a version, for an error; None where it does not, or nothing was made yet.

    about: what the version's folder tells. Versions of older releases tell less.
    """
    if about is None:
        return None
    if about.get("fingerprint") != step.fingerprint:
        return "was made by other logic than the code has now"
    if (had := about.get("lookups", [])) != (has := _lookups(step)):
        return (
            f"was made with lookups of {', '.join(had) or 'no table'}, and the code has {', '.join(has) or 'none'} now"
        )
    before = _sources(about)
    if (names := [source.name for source in step.sources]) != (given := _names(before, step.sources)):
        if len(names) == len(given) == 1:
            return f"was made with the topic {given[0]} of its source, which is {names[0]} now"
        return f"was made of {_listed(given)}, and the code names {_listed(names)} now"
    several = len(before) > 1
    each = (_other_source(now, old, several) for now, old in zip(step.sources, before, strict=True))
    return next((told for told in each if told is not None), None)


def other_sources(step: Step, about: Mapping[str, Any] | None) -> bool:
    """Whether the step has other topics than what made a version, or another order of them, and several before or now:
    Spark's checkpoint, which has a place for each, goes with no such change."""
    if about is None:
        return False
    before = _sources(about)
    names = [source.name for source in step.sources]
    return max(len(before), len(names)) > 1 and _names(before, step.sources) != names


def form_of(step: Step) -> dict[str, Any] | None:
    """How the step's rows are kept; None where they are records as they come."""
    return step.form if isinstance(step, TableStep | StreamStep) else None


def made_as(step: Step, about: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """How a version's rows are kept, or as `form_of` where its folder does not tell."""
    if about is None or "table" not in about:
        return form_of(step)
    found: dict[str, Any] | None = about["table"]
    return found


def at_a_glance(step: Step, about: Mapping[str, Any] | None) -> str:
    """How a version stands to the code, in two words: "ready", or what a run would stumble over.

    Without Spark, who alone can read a schema: whether a run goes on where that is another one, it has to find out.
    """
    if about is None:
        return "never run"
    if about.get("fingerprint") != step.fingerprint:
        return "code changed"
    before = _sources(about)
    if about.get("lookups", []) != _lookups(step):
        return "source changed"
    if _names(before, step.sources) != [source.name for source in step.sources]:
        return "source changed"
    pairs = list(zip(step.sources, before, strict=True))
    if any((old.get("key", now.key), old.get("envelope")) != (now.key, now.envelope) for now, old in pairs):
        return "source changed"
    if made_as(step, about) != form_of(step):
        return "table changed"
    return "ready" if all(old.get("schema", now.schema) == now.schema for now, old in pairs) else "schema changed"


def _lookups(step: Step) -> list[str]:
    return [each.name for each in step.lookups]


def _sources(about: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What a version's folder tells of each source, in the order of the declaration."""
    return about.get("sources") or [about.get("source") or _of_older(about)]


def _names(before: Sequence[Mapping[str, Any]], now: Sequence[Topic]) -> list[str]:
    """The topics that a version was made of; the one of a folder that tells none is that of now."""
    return [old.get("topic", now[0].name) for old in before]


def _listed(names: Sequence[str]) -> str:
    return f"the topic{'s' if len(names) > 1 else ''} {', '.join(names)}"


def _of_older(about: Mapping[str, Any]) -> dict[str, Any]:
    """Of the source what older releases have noted: the topic that is read, which behind a cut has another name."""
    return {} if about.get("generation") or "reads" not in about else {"topic": about["reads"]}


def _other_source(now: Topic, before: Mapping[str, Any], several: bool) -> str | None:
    """How a source differs from that of the same topic before. several: say which one it is."""
    of_it = f"its source {now.name}" if several else "its source"
    told = (
        ("key", before.get("key", now.key), now.key),
        ("envelope", before.get("envelope"), now.envelope),  # what is older had none
    )
    for what, old, new in told:
        if old != new:
            return f"was made with the {what} {old} of {of_it}, which is {new} now"
    old, new = before.get("schema", now.schema), now.schema
    if old == new:
        return None
    if old is None or new is None:
        had, has = ("no schema", "one") if old is None else ("a schema", "none")
        return f"was made with {had} of {of_it}, which has {has} now"
    kinds = {field.name: field.dataType for field in cast(StructType, StructType.fromDDL(new)).fields}
    for field in cast(StructType, StructType.fromDDL(old)).fields:
        if (kind := kinds.get(field.name)) is not None and not _goes_on(field.dataType, kind):
            was, became = field.dataType.simpleString(), kind.simpleString()
            return f"was made with the column {field.name} of {of_it} as {was}, which is {became} now"
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
