"""What the demo shows while it works: progress bars on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

PLAIN_SECONDS = 2.0


class Display:
    """Named bars and sentences. Use as a context manager; `update` may be called as often as one likes."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = console.is_terminal
        self._progress = Progress(
            TextColumn("[bold]{task.description:<22}"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not self.live,
        )
        self._tasks: dict[str, TaskID] = {}
        self._totals: dict[str, int] = {}
        self._printed: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self._finished: set[str] = set()
        self._began = time.monotonic()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def say(self, sentence: str) -> None:
        """One line about what happens now."""
        clock = f"{time.monotonic() - self._began:6.1f} s"
        self.console.print(f"[dim]{clock}[/dim]  {sentence}", highlight=False, soft_wrap=True)

    def bar(self, name: str, total: int) -> None:
        """Add a bar."""
        self._totals[name] = total
        self._printed[name] = time.monotonic()
        self._counts[name] = 0
        self._tasks[name] = self._progress.add_task(name, total=total)

    def update(self, name: str, done: int) -> None:
        """Set a bar; without a terminal a line every few seconds while it moves, and one at the end."""
        total = self._totals[name]
        if self.live:
            self._progress.update(self._tasks[name], completed=min(done, total))
            return
        if name in self._finished:
            return
        now = time.monotonic()
        if done >= total:
            self._finished.add(name)
        elif now - self._printed[name] < PLAIN_SECONDS or done == self._counts[name]:
            return
        self._printed[name], self._counts[name] = now, done
        self.say(f"{name}: {done:,} of {total:,}")
