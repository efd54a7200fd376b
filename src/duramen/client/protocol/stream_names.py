"""Names: the stream `a/b/c` is the topic `a.b.c`, and a namespace is the path in front of a stream's name."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from duramen.errors import ConfigError
from duramen.model import INTERNAL_TOPICS

TOPIC_LENGTH_MAX: Final = 249
SEGMENT: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
OUR_OWN: Final = "_duramen_"
"""Topics whose names begin so are no streams."""

_TOPIC: Final = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", re.ASCII)
_SHOWN: Final = 80


def check_path(what: str, path: str) -> None:
    """ConfigError for a path that is not of segments of letters, digits, _ and -, with a / between them."""
    if not isinstance(path, str):
        raise ConfigError(f"{what} is a text, not {path!r:.80}")
    for segment in path.split("/"):
        if not SEGMENT.fullmatch(segment):
            where = f"{what} {path[:_SHOWN]!r}: {segment[:_SHOWN]!r}"
            raise ConfigError(f"{where} is no name; use letters, digits, _ and -, and / between")


def topic_of(namespace: str, name: str) -> str:
    """The topic of a stream in a namespace ("" is the root). ConfigError for a name that cannot be."""
    check_path("stream", name)
    topic = ".".join([*filter(None, namespace.split("/")), *name.split("/")])
    if len(topic) > TOPIC_LENGTH_MAX:
        shown = f"stream {name[:_SHOWN]!r}"
        raise ConfigError(f"{shown}: its path has {len(topic)} characters, {TOPIC_LENGTH_MAX} are the most")
    return topic


def name_of(namespace: str, topic: str) -> str | None:
    """The stream that a topic is in a namespace; None where it is none of it, or a topic of the nodes' own."""
    front = "".join(f"{segment}." for segment in filter(None, namespace.split("/")))
    if not topic.startswith(front) or topic in INTERNAL_TOPICS or topic.startswith(OUR_OWN):
        return None
    rest = topic[len(front) :]
    return rest.replace(".", "/") if _TOPIC.fullmatch(rest) else None


def names_in(namespace: str, topics: Iterable[str], prefix: str, after: str, limit: int) -> list[str]:
    """The streams of a namespace among topics that begin with `prefix`, sorted, after `after`, at most `limit`."""
    names = (name_of(namespace, topic) for topic in topics)
    return sorted(name for name in names if name is not None and name.startswith(prefix) and name > after)[:limit]
