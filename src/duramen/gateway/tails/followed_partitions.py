"""One reader of several partitions: what comes in any of them, each in its order, and one position for all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from duramen.dlsn import Dlsn
from duramen.gateway.tails.partition_follower import UNBOUNDED, PartitionFollower, Portion
from duramen.gateway.tails.shared_tails import SharedTails


class FollowedPartitions:
    """The reader. It has to `leave`. position_text: of the positions of `followers`, in their order."""

    def __init__(
        self,
        tails: SharedTails,
        followers: Sequence[PartitionFollower],
        position_text: Callable[[Sequence[Dlsn]], str],
    ) -> None:
        self._tails = tails
        self._followers = followers
        self._position_text = position_text
        self._next = 0

    @property
    def position(self) -> str:
        """After all that it got."""
        return self._position_text([each.position for each in self._followers])

    @property
    def up_to_date(self) -> bool:
        """Nothing was known after that."""
        return all(each.up_to_date for each in self._followers)

    @property
    def closed(self) -> bool:
        """Nothing will come."""
        return all(each.closed for each in self._followers)

    @property
    def advanced(self) -> bool:
        """Records that were truncated were passed over."""
        return any(each.advanced for each in self._followers)

    def leave(self) -> None:
        """It gets nothing any more."""
        for each in self._followers:
            each.leave()

    async def next(self, most: int = UNBOUNDED) -> Portion | None:
        """What comes next in one of them, by turns; None where there is nothing now. Errors as of each."""
        for _ in range(len(self._followers)):
            follower = self._followers[self._next]
            self._next = (self._next + 1) % len(self._followers)
            found = await follower.next(most)
            if found is not None:
                return found
        return None

    async def page(self, max_bytes: int) -> bytes:
        """What comes next of each of them until it is so long; b"" where there is nothing now.

        Which is the first depends on the positions, so that none is passed over for ever.
        """
        self._next = sum(each.position.offset for each in self._followers) % len(self._followers)
        found: list[bytes] = []
        size = 0
        for _ in range(len(self._followers)):
            follower = self._followers[self._next]
            self._next = (self._next + 1) % len(self._followers)
            portion = await follower.next()
            if portion is not None:
                found.append(portion.lines)
                size += len(portion.lines)
            if size >= max_bytes:
                break
        return b"".join(found)

    async def wait(self, now_s: float, until_s: float, left: asyncio.Future[None] | None) -> None:
        """Until something may have come, the time (monotonic, s) is there, the gateway ends or `left` is done."""
        if any(each.has_more for each in self._followers):
            return
        waits = any(each.is_asked_again for each in self._followers)
        readers = [each.reader for each in self._followers if each.reader is not None]
        await self._tails.wait(readers, now_s if waits else until_s, left=left)
