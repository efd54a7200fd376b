"""Values of a table as JSON and people have them: Python has no moments beyond its years, and JSON none at all."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

_AS_THEY_ARE = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string)


def plain(found: pa.Scalar) -> Any:
    """Numbers, text and truth as they are, what is nested value by value, all else as text."""
    if not found.is_valid:
        return None
    kind = found.type
    if pa.types.is_struct(kind):
        return {field.name: plain(found[place]) for place, field in enumerate(kind)}
    if pa.types.is_map(kind):
        return {str(plain(pair[0])): plain(pair[1]) for pair in found.values}
    if pa.types.is_list(kind):
        return [plain(each) for each in found.values]
    if any(fits(kind) for fits in _AS_THEY_ARE):
        return found.as_py()
    value = as_python(found)
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def as_python(found: pa.Scalar) -> Any:
    """The value in Python; a text, or as JSON has it, where Python has none: a day, or a moment, outside of the years 1
    to 9999."""
    kind = found.type
    try:
        return found.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_nested(kind):
            return plain(found)
        # Arrow's own text counts the years to 32767, and then on from -32768.
        if pa.types.is_date32(kind):
            return f"{found.cast(pa.int32()).as_py()} days since 1970"
        return f"{found.cast(pa.int64()).as_py()} {kind.unit} since 1970"
