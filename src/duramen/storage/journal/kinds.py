"""The kinds of journal entries: what a log tells the journal, and what recovery replays."""

from __future__ import annotations

from typing import Final

BATCH: Final = 1
"""A record batch: its bytes follow."""
EXTENT: Final = 2
"""A batch that went to its synced segment past the journal: position, length and CRC only."""
ROLL: Final = 3
"""A new active segment."""
TRUNCATE: Final = 4
"""Everything from an offset on was removed."""
LOG_START: Final = 5
"""Records below an offset are gone for readers."""
EPOCH: Final = 6
"""A leader epoch starts at an offset."""
DELETE: Final = 7
"""The partition was deleted."""
CREATE: Final = 8
"""The partition's directory exists."""
DURABILITY: Final = 9
"""From a position on, batches are not journaled (page-cache), or are again (stable)."""
MARK: Final = 10
"""No change; records how far the journal was durable when it went idle."""
SWAP: Final = 11
"""A compacted segment takes the place of those from a segment base up to an offset, which were all synced."""
