"""Makes the Python class of each struct of a message, and its constructor with a keyword for every field.

The constructor is a plain function: in CPython that takes half the time of calling a class that has an `__init__`, and
leaves the class free to be called without arguments by decoders, which set every field themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from duramen.wire.runtime import MISSING, StructValue, frozen
from duramen.wire.types import ZERO, Array, Field, Struct


class Classes:
    """The classes of one message, with what generated code needs to set defaults.

    constructors: by struct name. namespace: names that generated code may use, among them `C_<struct>` the class and
    `D_<struct>` its shared default.
    """

    def __init__(self, root: Struct) -> None:
        self.constructors: dict[str, Callable[..., Any]] = {}
        self.namespace: dict[str, Any] = {"MISSING": MISSING, "StructValue": StructValue, "ZERO_UUID": bytes(16)}
        self._define(root)

    def _define(self, struct: Struct) -> None:
        if struct.name in self.constructors:
            return
        for field in struct.fields:
            inner = field.type.element if isinstance(field.type, Array) else field.type
            if isinstance(inner, Struct):
                self._define(inner)
        name = struct.name
        source = _class_source(struct, [(field.name, self.default(field)) for field in struct.fields])
        exec(compile(source, f"<struct {name}>", "exec"), self.namespace)
        constructor = self.namespace[name]
        self.constructors[name] = constructor
        self.namespace[f"D_{name}"] = frozen(constructor())

    def default(self, field: Field) -> str:
        """Source text of the field's default; a mutable one is a new object each time it is evaluated."""
        value = field.zero
        if value is ZERO:
            return f"D_{field.type.name}" if isinstance(field.type, Struct) else "[]"
        if value == bytes(16):
            return "ZERO_UUID"
        return repr(value)


def _class_source(struct: Struct, defaults: list[tuple[str, str]]) -> str:
    names = ", ".join(repr(name) for name, _ in defaults)
    slots = f"({names},)" if names else "()"
    lines = [
        f"class {struct.name}(StructValue):",
        f"    __slots__ = {slots}",
        "    field_names = __slots__",
    ]
    arguments = ", ".join(f"{name}={'MISSING' if text == '[]' else text}" for name, text in defaults)
    lines.append(f"C_{struct.name} = {struct.name}")
    lines.append(f"def {struct.name}({'*, ' if arguments else ''}{arguments}):")
    lines.append(f"    new = C_{struct.name}()")
    for name, text in defaults:
        value = f"[] if {name} is MISSING else {name}" if text == "[]" else name
        lines.append(f"    new.{name} = {value}")
    lines.append("    return new")
    return "\n".join(lines) + "\n"
