"""How much memory this process may use, and what of it requests and unread replies get.

A container's bound is that of its control group or of any group around it: cgroup v2's `memory.max`, v1's
`memory.limit_in_bytes`. Without one it is the machine's memory. What `ulimit` allows (`-v`, `-d`) counts, too.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path("/")
"""Where `proc` and `sys` are mounted."""

REQUEST_BYTES = 512 * 1024 * 1024
REPLY_BYTES = 256 * 1024 * 1024
"""What they get where there is memory enough."""

CONTROLLER_SHARE = 4
"""One part in so many of each of the two is what connections of the controller's listeners have beside it, for
themselves, and another one those of replicas: their requests are small, and may not wait for what clients hold."""

OWN_BYTES = 64 * 1024 * 1024
"""For the program itself, its logs' indexes and what the kernel keeps for its files and sockets."""

UNUSED_BYTES = {resource.RLIMIT_AS: 320 * 1024 * 1024, resource.RLIMIT_DATA: 48 * 1024 * 1024}
"""What counts there though it is no memory: code that is mapped, room for stacks and allocations of threads."""

SMALL_BYTES = 1024 * 1024 * 1024
SMALL_SOCKET_BYTES = 128 * 1024
"""Where there is less memory than that, a connection gets this from the kernel, which else gives it several MB."""


class MemoryShares(NamedTuple):
    """limit: what the process may use. requests, replies: bounds of their buffers. In bytes."""

    limit: int
    requests: int
    replies: int

    @property
    def socket_bytes(self) -> int:
        """What a connection's receive buffer in the kernel gets; -1: as the system likes."""
        return SMALL_SOCKET_BYTES if self.limit < SMALL_BYTES else -1


def memory_limit(root: Path | None = None) -> int:
    """Bytes that this process may use: the smallest of all the bounds there are."""
    bounds = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for kind, unused in UNUSED_BYTES.items():
        most = resource.getrlimit(kind)[0]
        if most != resource.RLIM_INFINITY:
            bounds.append(max(most - unused, most // 8))
    bounds.extend(_group_bounds(ROOT if root is None else root))
    return min(bounds)


def memory_shares(limit: int, queued_max_bytes: int = -1) -> MemoryShares:
    """The shares of so much memory; queued_max_bytes: a person's own bound of requests, where it is positive."""
    room = max(limit - OWN_BYTES, limit // 8)
    requests = queued_max_bytes if queued_max_bytes > 0 else min(REQUEST_BYTES, room // 4)
    return MemoryShares(limit, requests, min(REPLY_BYTES, room // 8))


def _group_bounds(root: Path) -> Iterator[int]:
    """Of this process's control group and of those around it, as far as they are mounted here."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            mounted, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            mounted, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # Inside a container the path may be the host's, which is not mounted: the mount's root is then our own group.
        names = [part for part in path.split("/") if part not in ("", "..")]
        for depth in range(len(names), -1, -1):
            text = _text(mounted.joinpath(*names[:depth], name)).strip()
            if text.isascii() and text.isdigit() and int(text) > 0:
                yield int(text)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
