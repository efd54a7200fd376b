"""Transactional ids that were told that transactions are not served, so that the node's log names each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

MOST_IDS = 1_000
"""Remembered, and named; a client can make up as many as it likes."""
MOST_OF_A_REQUEST = 100
"""Looked at: a request may ask about hundreds of thousands."""
SHOWN_CHARACTERS = 200


class RefusedTransactions:
    """`report` gets a line for each id, and with the last one that is remembered that no more follow."""

    __slots__ = ("_ids", "_report")

    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._ids: set[str] = set()

    def tell(self, ids: Iterable[str], client: str, peer: str) -> None:
        """A client asked for transactions under these ids."""
        for transactional_id in islice(ids, MOST_OF_A_REQUEST):
            shown = transactional_id[:SHOWN_CHARACTERS]
            if shown in self._ids or len(self._ids) >= MOST_IDS:
                continue
            self._ids.add(shown)
            told: dict[str, Any] = {
                "transactional_id": shown,
                "client": client[:SHOWN_CHARACTERS],
                "peer": peer,
                "reason": "transactions are not served in this release",
            }
            if len(self._ids) == MOST_IDS:
                told["more"] = "further ids are not named"
            self._report("transactions-refused", **told)
