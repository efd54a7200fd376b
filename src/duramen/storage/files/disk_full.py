"""Disk-full errors (ENOSPC, EDQUOT): retriable, unlike an I/O error, which fences the directory.

Where too many files are open (EMFILE, ENFILE) it is the same: nothing was done, and the same can be done later.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

E = TypeVar("E", bound=OSError)

OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT)
OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
"""Only opening a file says so, or looking into a directory."""


class NoRoomError(OSError):
    """A write found no room for all its bytes, a name none in its directory, or a file none among those that are open.

    It can be done again, at its place.

    Never what a sync of a file or of a directory said that others rely on: the kernel has let go of pages then.
    """


def without_traceback(error: E) -> E:
    """The error without the frames in which it was raised: files that they name would stay open."""
    return type(error)(error.errno, error.strerror, error.filename)


def is_disk_full(error: BaseException | None) -> bool:
    """Whether a full disk is its cause."""
    if error is None or isinstance(error, OSError):
        return error is not None and error.errno in OUT_OF_SPACE
    return is_disk_full(error.__cause__)


def lacks_files(error: BaseException | None) -> bool:
    """Whether too many open files are its cause."""
    if error is None or isinstance(error, OSError):
        return error is not None and error.errno in OUT_OF_FILES
    return lacks_files(error.__cause__)


def what_lacks(error: OSError) -> str:
    """What a directory lacks that said so."""
    return f"cannot open files ({error})" if lacks_files(error) else f"has no room ({error})"


def as_disk_full(error: OSError) -> OSError:
    """The error of a write, as a NoRoomError where it is that."""
    if error.errno in OUT_OF_SPACE + OUT_OF_FILES and not isinstance(error, NoRoomError):
        return NoRoomError(error.errno, error.strerror, error.filename)
    return error


@contextmanager
def retriable_write() -> Iterator[None]:
    """Only what can be done again from its beginning goes in here. NoRoomError, OSError."""
    try:
        yield
    except OSError as error:
        if as_disk_full(error) is error:
            raise  # not from itself: it would not go away, nor would the files that its frames have open
        raise as_disk_full(error) from error


@contextmanager
def retriable_open() -> Iterator[None]:
    """What can be done again from its beginning, with syncs in it: only too many open files are told. NoRoomError."""
    try:
        yield
    except OSError as error:
        if error.errno not in OUT_OF_FILES or as_disk_full(error) is error:
            raise
        raise as_disk_full(error) from error
