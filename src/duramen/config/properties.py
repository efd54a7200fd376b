"""Java's `.properties` syntax: text in, an ordered mapping of keys to values out."""

from __future__ import annotations

import re
from collections.abc import Iterator

from duramen.errors import ConfigError

_BLANKS = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_LINE_END = re.compile(r"\r\n|\r|\n")
_HEX = re.compile(r"[0-9A-Fa-f]{4}", re.ASCII)


def parse_properties(text: str) -> dict[str, str]:
    """The keys and values of a .properties file, as java.util.Properties reads it; of a repeated key the last counts.

    Raises ConfigError, with the line, for a malformed `\\uXXXX` escape.
    """
    result: dict[str, str] = {}
    for number, line in _logical_lines(text.removeprefix("\ufeff")):
        key_end, value_start = _split(line)
        result[_unescape(line[:key_end], number)] = _unescape(line[value_start:], number)
    return result


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines without comments and blanks, continuations joined, each with the number of its first line."""
    pending: list[str] = []
    start = 0
    for number, raw in enumerate(_LINE_END.split(text), 1):
        line = raw.lstrip(_BLANKS)
        if not pending:
            if not line or line[0] in "#!":
                continue
            start = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            pending.append(line[:-1])
            continue
        yield start, "".join(pending) + line
        pending.clear()
    if pending:
        yield start, "".join(pending)


def _split(line: str) -> tuple[int, int]:
    """Where the key ends and where the value starts."""
    index = 0
    while index < len(line) and line[index] not in "=:" + _BLANKS:
        index += 2 if line[index] == "\\" else 1
    key_end = min(index, len(line))
    index = key_end
    while index < len(line) and line[index] in _BLANKS:
        index += 1
    if index < len(line) and line[index] in "=:":
        index += 1
        while index < len(line) and line[index] in _BLANKS:
            index += 1
    return key_end, index


def _unescape(text: str, line_number: int) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        char = text[index]
        index += 1
        if char != "\\" or index == len(text):
            if char != "\\":
                out.append(char)
            continue
        char = text[index]
        index += 1
        if char == "u":
            digits = text[index : index + 4]
            if not _HEX.fullmatch(digits):
                raise ConfigError(f"line {line_number}: \\u must be followed by four hexadecimal digits")
            out.append(chr(int(digits, 16)))
            index += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Two escapes may spell one character beyond 16 bits as a surrogate pair.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
