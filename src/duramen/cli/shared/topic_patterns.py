"""Patterns in the place of topics' names: `*`, `?` and `[ab]`, as a shell has them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

import click

from duramen.cli.shared.connection import ClusterAccess, internal_topics, partitions_of


def named_topics(cluster: ClusterAccess, topics: Sequence[str]) -> list[str]:
    """The topics that are named, each once, and those there are now of each pattern."""
    if not any(is_pattern(text) for text in topics):
        return list(dict.fromkeys(topics))
    admin = cluster.admin()
    there = partitions_of(cluster, admin, None)
    known = sorted(there.keys() - internal_topics(cluster, admin, there))
    names: list[str] = []
    for text in topics:
        names += matching(known, text) if is_pattern(text) else [text]
    return list(dict.fromkeys(names))


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """Those of the names that a pattern stands for; one that no name has ends the command."""
    found = fnmatch.filter(names, pattern)
    if not found:
        raise click.ClickException(f"no topic matches {pattern!r}; `duramen topic list` shows those there are.")
    return found


def is_pattern(text: str) -> bool:
    """Whether it is no name: none has these characters."""
    if text.startswith("^"):
        raise click.UsageError(f"{text!r}: a pattern is written with * and ?, as 'orders.*'.")
    return any(sign in text for sign in "*?[")
