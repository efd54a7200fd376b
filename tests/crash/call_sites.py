"""Every place in the code that calls the Disk port: found by reading the sources, and found by running them.

A site is where a call ends: (module below `duramen`, line, column). What is read and what is run have to agree: a site
that was run and not read means that this module does not know some name under which files go; one that was read and
not run is a call that no error was ever tried in.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import duramen

SOURCES = Path(duramen.__file__).parent
PACKAGES = ("storage", "partition", "embedded", "cli", "server")
IMPLEMENTATION = "storage/files/os_disk.py"
"""The port's own side of the operating system; `tests/unit/storage/files/test_os_disk.py` has its errors."""

DISK_METHODS = frozenset(
    {"open", "exists", "list_directory", "make_directories", "rename", "remove", "sync_directory", "preallocate"}
    | {"lock", "volume_space", "modified_ms", "cache_bytes", "descriptor_limit"}
)
FILE_METHODS = frozenset(
    {"pread", "pread_nowait", "pwritev", "drop_cache", "backdate", "resident", "nonresident"}
    | {"read_cold", "read_back"}
)
"""Names that only files have."""
SHARED_METHODS = frozenset({"sync", "truncate", "size"})
"""Names that others have, too: who is meant tells the receiver's name."""
FILES = frozenset({"file", "_file", "source", "target", "index", "times", "following", "open_file()", "Subscript"})
DISKS = frozenset({"disk", "_disk", "RealDisk()"})
OTHERS = frozenset(
    {
        "loading",
        "self",
        "_disk",
        "flush_policy",
        "_flush_policy",
        "stream",
        "names",
        "hot",
        "log",
        "topic",
        "lock",
        "epochs",
    }
)
"""Receivers of shared names that are no files."""
PASSED_ON = frozenset({"patched"})
"""Receivers that are no files themselves, but read from one in a call of their own."""


HANDING_ON = frozenset({"_Readable.open", "_ReadableFile.pread"})
"""Of `storage/repair/overlay_disk.py`: whoever calls them is the site."""

UNREACHED = {
    ("storage/segment/segment.py", "Segment.files"): "asked by unit tests only",
    ("storage/repair/inspect_partition.py", "_Survey._mend"): "reads through Patched, whose own call is a site",
    **dict.fromkeys(
        [
            ("storage/checkpoint/formatter.py", "is_formatted"),
            ("storage/checkpoint/formatter.py", "Formatter.run"),
            ("storage/checkpoint/formatter.py", "Formatter._is_formatted"),
            ("storage/checkpoint/formatter.py", "Formatter._make_log"),
            ("storage/checkpoint/shared_cluster.py", "unmark_shared"),
        ],
        "`unit/storage/checkpoint/test_formatter.py` has an error at each call",
    ),
    **dict.fromkeys(
        [
            ("storage/checkpoint/snapshot_part.py", "SnapshotPart._write"),
            ("storage/checkpoint/snapshot_part.py", "SnapshotPart._finish"),
            ("storage/checkpoint/snapshot_part.py", "read_piece"),
        ],
        "`unit/storage/checkpoint/test_snapshot_part.py` has an error at each call",
    ),
    (
        "cli/commands/dev_cluster.py",
        "DevCluster._keep_plan",
    ): "a plan of nodes to try things with: no records are in it",
    ("cli/commands/dev_run.py", "is_used"): "a look whether a folder may go",
    ("storage/repair/overlay_disk.py", "_Readable.open"): "hands it on: whoever calls that is the site",
}
"""Functions whose calls no workload comes by, and why that is right."""


class Site(NamedTuple):
    """Where a call of the port ends, and which method it calls."""

    module: str
    line: int
    column: int
    method: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line} {self.method}"


def receiver(node: ast.expr) -> str:
    """The last name of what a method is called on."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Call):
        return receiver(node.func) + "()"
    return type(node).__name__


@cache
def written_sites() -> frozenset[Site]:
    """Every call of the port in the sources. ValueError for a receiver of which nobody knows whether it is a file."""
    found = set()
    unknown = []
    for package in PACKAGES:
        for path in sorted((SOURCES / package).rglob("*.py")):
            module = path.relative_to(SOURCES).as_posix()
            if module == IMPLEMENTATION:
                continue
            for node in _calls(module, ast.parse(path.read_text(encoding="utf-8"))):
                method, who = node.func.attr, receiver(node.func.value)
                if method in SHARED_METHODS and who not in FILES | OTHERS:
                    unknown.append(f"{module}:{node.lineno}: {who}.{method}()")
                shared = method in SHARED_METHODS and who in FILES
                if (
                    (method in FILE_METHODS and who not in PASSED_ON)
                    or shared
                    or (method in DISK_METHODS and who in DISKS)
                ):
                    found.add(Site(module, node.end_lineno, node.end_col_offset, method))
    if unknown:
        raise ValueError("say in call_sites.py whether these are files: " + ", ".join(unknown))
    return frozenset(found)


class _Call(NamedTuple):
    """A method's call in the sources."""

    func: ast.Attribute
    lineno: int
    end_lineno: int
    end_col_offset: int


def _calls(module: str, node: ast.AST, name: str = "") -> Iterator[_Call]:
    """Calls of methods below a node; functions that UNREACHED names are left out."""
    for child in ast.iter_child_nodes(node):
        inner = name
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{name}.{child.name}" if name else child.name
        if (module, inner) in UNREACHED:
            continue
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
            yield _Call(child.func, child.lineno, child.end_lineno or 0, child.end_col_offset or 0)
        yield from _calls(module, child, inner)


_known: dict[tuple[CodeType, int], tuple[str, int, int] | None] = {}


def calling_site(method: str, depth: int = 2) -> Site | None:
    """The site of the port's call that is under way `depth` frames up; None when it is not in the code base."""
    frame = sys._getframe(depth)
    if method == "pread" and frame.f_back is not None and frame.f_back.f_code.co_qualname == "_ReadableFile.pread":
        frame = frame.f_back
    while frame.f_back is not None and frame.f_code.co_qualname in HANDING_ON:
        frame = frame.f_back
    key = (frame.f_code, frame.f_lasti)
    if key not in _known:
        _known[key] = _locate(frame.f_code, frame.f_lasti)
    place = _known[key]
    return None if place is None else Site(*place, method)


def _locate(code: CodeType, instruction: int) -> tuple[str, int, int] | None:
    path = Path(code.co_filename)
    if SOURCES not in path.parents:
        return None
    module = path.relative_to(SOURCES).as_posix()
    if module == IMPLEMENTATION or module.split("/")[0] not in PACKAGES:
        return None
    _, line, _, column = list(code.co_positions())[instruction // 2]
    return module, line or 0, column or 0
