"""Patterns in the place of topics' names: `*`, `?` and `[ab]`, as a shell has them."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Sequence

import click

from duramen.cli.shared.connection import ClusterAccess, internal_topics, partitions_of
from duramen.cli.shared.output import note


def named_topics(cluster: ClusterAccess, topics: Sequence[str]) -> list[str]:
    """The topics that are named, each once, and those there are now of each pattern."""
    if not any(is_pattern(text) for text in topics):
        return list(dict.fromkeys(topics))
    admin = cluster.admin()
    there = partitions_of(cluster, admin, None)
    known = sorted(there.keys() - internal_topics(cluster, admin, there))
    names: list[str] = []
    for text in topics:
        found = fnmatch.filter(known, text) if is_pattern(text) else [text]
        if not found:
            raise click.ClickException(f"no topic matches {text!r}; `duramen topic list` shows those there are.")
        names += found
    return list(dict.fromkeys(names))


def matching(shown: Sequence[str], known: Collection[str], patterns: Iterable[str]) -> list[str]:
    """Those of the topics that are named, of all that are known, or match; what nothing matches is told."""
    chosen: set[str] = set()
    for text in patterns:
        found = fnmatch.filter(shown, text) if is_pattern(text) else {text} & set(known)
        if not found:
            hidden = is_pattern(text) and any(fnmatch.filter(known, text))
            note(f"no topic matches {text!r}" + ("; internal ones do, which --internal shows" if hidden else ""))
        chosen |= set(found)
    return sorted(chosen)


def is_pattern(text: str) -> bool:
    """Whether it is no name: none has these characters."""
    if text.startswith("^"):
        raise click.UsageError(f"{text!r}: a pattern is written with * and ?, as 'orders.*'.")
    return any(sign in text for sign in "*?[")
