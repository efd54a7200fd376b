"""What callers of an embedded log give beside records: TypeError for what cannot be, before anything is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

from duramen.partition.replica.partition import READ_COMMITTED, READ_UNCOMMITTED

Isolation = Literal["read_committed", "read_uncommitted"]
_LEVELS: Final = {"read_committed": READ_COMMITTED, "read_uncommitted": READ_UNCOMMITTED}


def texts(settings: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of the settings; TypeError for one that is no text, as in a file of properties all are."""
    for name, value in (settings or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"settings are texts, as in a .properties file: {name!r} is given as {value!r}")
    return dict(settings or {})


def check_name(name: object) -> None:
    """Of a topic."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a topic is text, not {name!r:.80}")


def level_of(isolation: object) -> int:
    """The number by which a partition knows this isolation."""
    level = _LEVELS.get(isolation) if isinstance(isolation, str) else None
    if level is None:
        raise TypeError(f"isolation is {' or '.join(map(repr, get_args(Isolation)))}, not {isolation!r:.80}")
    return level
