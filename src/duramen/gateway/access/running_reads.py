"""Reads that go on, and the end of those whose reader has lost the permission meanwhile."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers

from duramen.gateway.access.authenticator import Authenticator
from duramen.gateway.access.request_right import RequestRight


class RunningReads:
    """The reads of one gateway, by the tasks that answer them."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._running: dict[asyncio.Task[object], tuple[Headers, RequestRight]] = {}
        self._cut: set[asyncio.Task[object]] = set()

    def begin(self, headers: Headers, right: RequestRight) -> None:
        """The current task reads, with this right."""
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = (headers, right)

    def end(self) -> None:
        """The current task has done with it, if it ever began."""
        task = asyncio.current_task()
        if task is not None:
            self._running.pop(task, None)

    def recheck(self) -> int:
        """Cancel those that are not allowed any more; how many they are."""
        lost = [
            task
            for task, (headers, right) in self._running.items()
            if not self._authenticator.is_allowed(headers, right.right, right.name)
        ]
        for task in lost:
            del self._running[task]
            self._cut.add(task)
            task.cancel()
        return len(lost)

    def was_cut(self) -> bool:
        """Whether it was `recheck` that has cancelled the current task; it goes on then."""
        task = asyncio.current_task()
        if task is None or task not in self._cut:
            return False
        self._cut.discard(task)
        task.uncancel()
        return True
