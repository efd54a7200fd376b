"""Long work in steps that each fit into a turn of the loop."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

STEP = 100
"""Topics, partitions or the like in a step of what is done for a large request or reply: a millisecond."""


Steps = Generator[None, None, Any]
"""The way to what it returns, often a message object, by steps of about STEP entries."""
