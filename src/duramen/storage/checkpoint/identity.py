"""Whose directory it is, by meta.properties and by the manifest, which are held against each other."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from contextlib import suppress

from duramen.errors import StorageError
from duramen.ports import Disk
from duramen.storage.checkpoint.kafka_files import META_PROPERTIES, MetaProperties, decode_meta, encode_meta
from duramen.storage.checkpoint.manifest import MANIFEST, decode_manifest
from duramen.storage.files.atomic import read_file, replace_file

MISSING = "it is missing"


def compare_identity(disk: Disk, path: str) -> tuple[MetaProperties | None, list[tuple[str, bool, str]]]:
    """Whose directory it is, and what is wrong with the files that say so; nothing is changed.

    Each finding: the file, whether the next start makes it again by itself, and what is wrong. None: nobody knows.
    """
    content = read_file(disk, posixpath.join(path, MANIFEST))
    manifest = None if content is None else decode_manifest(content)
    wrong = []
    if manifest is None and content is not None:
        wrong.append((posixpath.join(path, MANIFEST), True, "it is damaged"))
    name = posixpath.join(path, META_PROPERTIES)
    content = read_file(disk, name)
    try:
        found = None if content is None else decode_meta(content, name)
    except StorageError as error:
        found = None
        wrong.append((name, manifest is not None, str(error)))
    if content is None:
        wrong.append((name, manifest is not None, MISSING))
    if manifest is not None and found is not None and found != manifest.identity:
        what = f"it says {_named(found)}, {MANIFEST} says {_named(manifest.identity)}: one of them is damaged"
        wrong.append((name, False, what))
    return found or (None if manifest is None else manifest.identity), wrong


def known_cluster(disk: Disk, paths: Iterable[str]) -> str | None:
    """The cluster that these log directories belong to, by the first that says so; None where all are new.

    Whether they agree, their starts find out.
    """
    for path in paths:
        with suppress(OSError):  # its own start says what is wrong there
            known, _ = compare_identity(disk, path)
            if known is not None:
                return known.cluster_id
    return None


def check_identity(disk: Disk, path: str, damage: list[str]) -> None:
    """Hold `meta.properties` against what we keep of it: made again when unreadable; StorageError when it differs."""
    content = read_file(disk, posixpath.join(path, MANIFEST))
    manifest = None if content is None else decode_manifest(content)
    if manifest is None:
        if content is not None:
            damage.append(f"{posixpath.join(path, MANIFEST)}: it is damaged; it is made again")
        return
    name = posixpath.join(path, META_PROPERTIES)
    content = read_file(disk, name)
    try:
        found = None if content is None else decode_meta(content, name)
    except StorageError:
        found = None
    if found is None:
        replace_file(disk, name, encode_meta(manifest.identity))
        damage.append(f"{name}: it was missing or damaged; it was made again from {MANIFEST}")
    else:
        _refuse_other(name, found, manifest.identity)


def refuse_other_identity(disk: Disk, path: str) -> None:
    """StorageError where a start refuses, for `meta.properties` and what we keep of it differ."""
    content = read_file(disk, posixpath.join(path, MANIFEST))
    manifest = None if content is None else decode_manifest(content)
    name = posixpath.join(path, META_PROPERTIES)
    content = read_file(disk, name)
    if manifest is not None and content is not None:
        _refuse_other(name, decode_meta(content, name), manifest.identity)


def _refuse_other(name: str, found: MetaProperties, kept: MetaProperties) -> None:
    if found != kept:
        raise StorageError(
            f"{name} says {_named(found)}, {MANIFEST} says {_named(kept)}: one of them is damaged. "
            f"Correct {META_PROPERTIES}, or remove {MANIFEST} if that is wrong"
        )


def _named(meta: MetaProperties) -> str:
    return f"cluster {meta.cluster_id!r}, node {meta.node_id}, directory {meta.directory_id!r}"
