"""A body of JSON objects one after another, cut into them while it comes. Pure.

Only braces and strings are looked at: where an object ends. What is in it is decoded by whom it is for.
"""

from __future__ import annotations

import re
from typing import Final

from duramen.gateway.edge.problem import ProblemError, bad_request

_OUTSIDE: Final = re.compile(rb'"[^"\\]*"|["{}]')
"""A string that ends in what has come and has no escape, or what changes where we are."""
_INSIDE: Final = re.compile(rb'["\\]')
_TEXT: Final = re.compile(rb"[^ \t\r\n]")


class ConcatenatedJson:
    """The objects of one body. Each byte is looked at twice at most, in whatever parts it comes."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._at = 0
        self._depth = 0
        self._in_string = False
        self._gone = 0
        self.wrong: ProblemError | None = None
        """Why the rest of the body cannot be cut: nothing more will be found."""

    @property
    def held(self) -> int:
        """Bytes of an object that has not ended."""
        return len(self._rest)

    def feed(self, part: bytes) -> list[bytes]:
        """The objects that end in this part of the body."""
        self._rest += part
        rest, found, start = self._rest, [], 0
        while self.wrong is None:
            if not self._depth:
                first = _TEXT.search(rest, start)
                start = self._at = len(rest) if first is None else first.start()
                if first is None:
                    break
                if first[0] != b"{":
                    self.wrong = bad_request(
                        "body", f"at byte {self._gone + start}: a record is a JSON object and begins with {{"
                    )
                    break
            if not self._to_end():
                break
            found.append(bytes(rest[start : self._at]))
            start = self._at
        del rest[:start]
        self._at -= start
        self._gone += start
        return found

    def end(self) -> list[bytes]:
        """The body is over: none, and a problem where an object has not ended."""
        if self._rest and self.wrong is None:
            self.wrong = bad_request("body", f"it ends in the middle of the record that begins at byte {self._gone}")
        return []

    def _to_end(self) -> bool:
        """Go on to the end of the object; whether it has come."""
        rest = self._rest
        while True:
            if self._in_string:
                mark = _INSIDE.search(rest, self._at)
                if mark is None:
                    self._at = len(rest)
                    return False
                if mark[0] == b"\\":
                    if mark.end() == len(rest):  # what is escaped has not come
                        self._at = mark.start()
                        return False
                    self._at = mark.end() + 1
                    continue
                self._in_string = False
                self._at = mark.end()
            for mark in _OUTSIDE.finditer(rest, self._at):
                sign = mark[0]
                if sign == b"{":
                    self._depth += 1
                elif sign == b"}":
                    self._depth -= 1
                    if not self._depth:
                        self._at = mark.end()
                        return True
                elif sign == b'"':
                    self._in_string = True
                    self._at = mark.end()
                    break
            else:
                self._at = len(rest)
                return False
