"""Regular expressions that groups subscribe with: RE2's, matched against whole topic names.

RE2 takes time in proportion to the name, whatever the expression; with Python's `re` one client could stop the loop.
Its library is loaded at the first expression, so a node that never sees one does not have it in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final

from duramen.errors import ErrorCode, KafkaError

LENGTH_MAX: Final = 32_767
"""Bytes; what a key of `__consumer_offsets` can hold of it."""
COUNT_MAX: Final = 100
"""Different expressions in one group: each is matched against every topic name."""
MEMORY_BYTES_MAX: Final = 1 << 20
"""What RE2 may use for one expression; a larger one is refused."""
_SHOWN: Final = 200

Matches = Callable[[str], bool]


def compile_expression(text: str) -> Matches:
    """Whether a whole name matches it. INVALID_REGULAR_EXPRESSION where RE2 does not take it."""
    if len(text.encode()) > LENGTH_MAX:
        raise _invalid(text, f"it is longer than {LENGTH_MAX} bytes")
    re2: Any = import_module("re2")
    options = re2.Options()
    options.max_mem = MEMORY_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0]
        raise _invalid(text, reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)) from None
    finally:
        re2.purge()  # it would keep the last 128, and what each has grown to
    return lambda name: compiled.fullmatch(name) is not None


def check_count(expressions: Iterable[str], another: str) -> None:
    """INVALID_REGULAR_EXPRESSION where `another` would be one too many for a group that has these."""
    present = set(expressions)
    if another not in present and len(present) >= COUNT_MAX:
        raise _invalid(another, f"its group has {COUNT_MAX} others")


def resolve(expressions: Iterable[str], names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The names that each matches, ascending; none for one that is not valid (an older release took it)."""
    ordered = sorted(set(names))
    return {text: _matching(text, ordered) for text in sorted(set(expressions))}


def _matching(text: str, names: list[str]) -> tuple[str, ...]:
    try:
        matches = compile_expression(text)
    except KafkaError:
        return ()
    return tuple(name for name in names if matches(name))


def _invalid(text: str, reason: str) -> KafkaError:
    shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return KafkaError(
        ErrorCode.INVALID_REGULAR_EXPRESSION,
        f"SubscribedTopicRegex `{shown}` is not a valid regular expression: {reason}.",
    )
