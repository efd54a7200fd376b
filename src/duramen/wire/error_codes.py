"""The error codes in a message, wherever its structs have them: what a reply tells of errors, for who counts them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Final

from duramen.wire.schema import Message
from duramen.wire.source import FunctionSource
from duramen.wire.types import INT16, Array, Field, Struct

Codes = dict[int, int]
"""How often each code but 0 is there."""

NAME: Final = "error_code"


def error_codes(message: Message, value: Any) -> Codes:
    """Those in an object of the message; any thread."""
    return _counter(message)(value)


@cache
def _counter(message: Message) -> Callable[[Any], Codes]:
    """Compiled, like decoders: nested loops in line, for every reply is looked at."""
    source = FunctionSource({})
    source.open("def count(value):")
    source.line("found = {}")
    _look_into(source, message.struct, "value")
    source.line("return found")
    return source.function("count", f"error codes of {message.name}")


def _look_into(source: FunctionSource, struct: Struct, value: str) -> None:
    for field in struct.fields:
        below = _struct_of(field)
        if field.name == NAME and field.type is INT16:
            source.line(f"code = {value}.{NAME}")
            source.open("if code:")
            source.line("found[code] = found.get(code, 0) + 1")
            source.close()
        elif below is not None and _has_codes(below):
            inner = source.fresh("inner")
            if isinstance(field.type, Array):
                source.open(f"for {inner} in {value}.{field.name} or ():")
            else:
                source.line(f"{inner} = {value}.{field.name}")
                source.open(f"if {inner} is not None:")
            _look_into(source, below, inner)
            source.close()


def _has_codes(struct: Struct) -> bool:
    inside = [_struct_of(field) for field in struct.fields]
    told = any(field.name == NAME and field.type is INT16 for field in struct.fields)
    return told or any(below is not None and _has_codes(below) for below in inside)


def _struct_of(field: Field) -> Struct | None:
    inner = field.type.element if isinstance(field.type, Array) else field.type
    return inner if isinstance(inner, Struct) else None
