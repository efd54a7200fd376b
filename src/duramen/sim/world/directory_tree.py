"""The simulated name space: directories whose entries are cached and durable separately, and what a power cut keeps.

Every create, rename and remove is a pending change of its directory until `sync` makes that directory's names
durable. A power cut keeps none of the pending changes, or a seeded prefix or subset of them. A rename is one change
even between two directories: it is kept or lost as a whole.
"""

from __future__ import annotations

import errno
import os.path
from dataclasses import dataclass
from functools import lru_cache
from random import Random

from duramen.sim.world.inode import Inode


@dataclass(eq=False, slots=True)
class Change:
    """One pending change of names. `source` loses `source_name`, `target` gains `target_name` for `node`."""

    node: Inode | Directory
    source: Directory | None
    source_name: str
    target: Directory | None
    target_name: str

    def settle(self) -> None:
        """Apply the change to the durable names."""
        if self.source is not None and self.source.stable.get(self.source_name) is self.node:
            del self.source.stable[self.source_name]
        if self.target is not None:
            self.target.stable[self.target_name] = self.node


class Directory:
    """A directory: names as programs see them, and names as the platter has them."""

    __slots__ = ("names", "stable")

    def __init__(self) -> None:
        self.names: dict[str, Inode | Directory] = {}
        self.stable: dict[str, Inode | Directory] = {}


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "No such file or directory", path)


class DirectoryTree:
    """The tree of directories below `/` and its pending changes, oldest first."""

    def __init__(self) -> None:
        self.root = Directory()
        self.pending: list[Change] = []
        self._inodes = 0

    def find(self, path: str) -> Inode | Directory:
        """The file or directory with this name; FileNotFoundError or NotADirectoryError."""
        node: Inode | Directory = self.root
        for name in _split(path):
            if not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
            found = node.names.get(name)
            if found is None:
                raise _missing(path)
            node = found
        return node

    def has(self, path: str) -> bool:
        """Whether something has this name."""
        try:
            self.find(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def directory(self, path: str) -> Directory:
        """The directory with this name."""
        node = self.find(path)
        if not isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return node

    def parent(self, path: str) -> tuple[Directory, str]:
        """The directory that holds the last name of the path, and that name."""
        parts = _split(path)
        if not parts:
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        return self.directory("/" + "/".join(parts[:-1])), parts[-1]

    def create_file(self, path: str) -> Inode:
        """A new empty file under a name not in use."""
        directory, name = self.parent(path)
        self._inodes += 1
        inode = Inode(self._inodes)
        directory.names[name] = inode
        self.pending.append(Change(inode, None, "", directory, name))
        return inode

    def make_directories(self, path: str) -> None:
        """Create what is missing of the path."""
        node = self.root
        for name in _split(path):
            found = node.names.get(name)
            if found is None:
                found = Directory()
                node.names[name] = found
                self.pending.append(Change(found, None, "", node, name))
            if not isinstance(found, Directory):
                raise FileExistsError(errno.EEXIST, "File exists", path)
            node = found

    def rename(self, source: str, target: str) -> None:
        """As rename(2): replaces a file, refuses to replace a directory that has entries."""
        node = self.find(source)
        from_directory, from_name = self.parent(source)
        to_directory, to_name = self.parent(target)
        old = to_directory.names.get(to_name)
        if old is node:
            return
        if isinstance(old, Directory):
            if not isinstance(node, Directory):
                raise IsADirectoryError(errno.EISDIR, "Is a directory", target)
            if old.names:
                raise OSError(errno.ENOTEMPTY, "Directory not empty", target)
        elif old is not None and isinstance(node, Directory):
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", target)
        del from_directory.names[from_name]
        to_directory.names[to_name] = node
        self.pending.append(Change(node, from_directory, from_name, to_directory, to_name))

    def remove(self, path: str) -> None:
        """Remove a file, or a directory's entries one by one and then the directory."""
        node = self.find(path)
        if isinstance(node, Directory):
            for name in sorted(node.names):
                self.remove(os.path.join(path, name))
        directory, name = self.parent(path)
        del directory.names[name]
        self.pending.append(Change(node, directory, name, None, ""))

    def is_pending(self, directory: Directory) -> bool:
        """Whether a change of this directory's names waits for a sync."""
        return any(change.source is directory or change.target is directory for change in self.pending)

    def settle(self, directory: Directory) -> None:
        """Make the names in this directory durable; a rename into or out of it becomes durable on both sides."""
        rest: list[Change] = []
        for change in self.pending:
            if change.source is directory or change.target is directory:
                change.settle()
            else:
                rest.append(change)
        self.pending = rest

    def crash(self, random: Random | None) -> list[Inode]:
        """Power is gone: drop the pending changes (or, with `random`, all but some); returns the files left."""
        if random is not None and self.pending:
            if random.random() < 0.5:
                kept = self.pending[: random.randint(0, len(self.pending))]
            else:
                kept = [change for change in self.pending if random.random() < 0.5]
            for change in kept:
                change.settle()
        self.pending = []
        left: list[Inode] = []
        _reset(self.root, left)
        return left

    def copy(self) -> DirectoryTree:
        """The same tree and the same pending changes, of nodes of its own."""
        other = DirectoryTree()
        other._inodes = self._inodes
        files: dict[Inode, Inode] = {}
        directories = {self.root: other.root}
        waiting = [self.root]

        def twin(node: Inode | Directory) -> Inode | Directory:
            if isinstance(node, Directory):
                return directory(node)
            if node not in files:
                files[node] = node.copy()
            return files[node]

        def directory(node: Directory) -> Directory:
            if node not in directories:
                directories[node] = Directory()
                waiting.append(node)
            return directories[node]

        for change in self.pending:
            source = change.source and directory(change.source)
            target = change.target and directory(change.target)
            node = twin(change.node)
            other.pending.append(Change(node, source, change.source_name, target, change.target_name))
        for node in waiting:
            directories[node].names = {name: twin(each) for name, each in node.names.items()}
            directories[node].stable = {name: twin(each) for name, each in node.stable.items()}
        return other

    def file_bytes(self) -> int:
        """Bytes in all files, as programs see them."""
        total = 0
        directories = [self.root]
        for directory in directories:
            for node in directory.names.values():
                if isinstance(node, Directory):
                    directories.append(node)
                else:
                    total += len(node.cache)
        return total

    def walk(self) -> list[tuple[str, Inode]]:
        """Every file with its path, in the order of the paths."""
        found: list[tuple[str, Inode]] = []
        _walk(self.root, "", found)
        return found


@lru_cache(maxsize=4096)
def _split(path: str) -> tuple[str, ...]:
    """The names in the path; kept, for a run asks for the same few paths all the time."""
    return tuple(part for part in os.path.normpath(os.path.join("/", path)).split("/") if part)


def _reset(directory: Directory, left: list[Inode]) -> None:
    directory.names = dict(directory.stable)
    for name in sorted(directory.names):
        node = directory.names[name]
        if isinstance(node, Directory):
            _reset(node, left)
        else:
            left.append(node)


def _walk(directory: Directory, prefix: str, found: list[tuple[str, Inode]]) -> None:
    for name in sorted(directory.names):
        node = directory.names[name]
        if isinstance(node, Directory):
            _walk(node, f"{prefix}/{name}", found)
        else:
            found.append((f"{prefix}/{name}", node))
