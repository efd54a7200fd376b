"""Collects lines of generated Python and the constants that they refer to."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct as Packing
from typing import Any

from duramen.wire.runtime import SMALL


class FunctionSource:
    """A function under construction: indented lines, unique local names, packing constants."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self.namespace = namespace
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    def open(self, text: str) -> None:
        """A line that starts a block."""
        self.line(text)
        self._depth += 1

    def close(self) -> None:
        self._depth -= 1

    def fresh(self, prefix: str) -> str:
        """A local name not used before in this function."""
        self._names += 1
        return f"{prefix}{self._names}"

    def unpack(self, codes: str) -> str:
        """Name of the function that unpacks big-endian `codes` from (buffer, position)."""
        name = "U_" + _identifier(codes)
        if name not in self.namespace:
            self.namespace[name] = Packing(">" + codes).unpack_from
        return name

    def pack(self, codes: str) -> str:
        """Name of the function that packs its arguments big-endian by `codes`."""
        name = "P_" + _identifier(codes)
        if name not in self.namespace:
            self.namespace[name] = Packing(">" + codes).pack
        return name

    def pack_table(self, prefix: str, code: str) -> str:
        """Name of a list: its entry n packs `prefix` and n values of `code`, for n below SMALL."""
        name = f"T_{_identifier(prefix)}_{_identifier(code)}"
        if name not in self.namespace:
            self.namespace[name] = [Packing(f">{prefix}{count}{code}").pack for count in range(SMALL)]
        return name

    def unpack_table(self, code: str) -> str:
        """Name of a list: its entry n unpacks n values of `code`, for n below SMALL."""
        name = f"L_{_identifier(code)}"
        if name not in self.namespace:
            self.namespace[name] = [Packing(f">{count}{code}").unpack_from for count in range(SMALL)]
        return name

    def function(self, name: str, label: str) -> Callable[..., Any]:
        """Compile the collected lines, which define `name`."""
        exec(compile("\n".join(self._lines) + "\n", f"<{label}>", "exec"), self.namespace)
        function: Callable[..., Any] = self.namespace[name]
        return function

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def _identifier(codes: str) -> str:
    return codes.replace("?", "T").replace("16s", "U")
