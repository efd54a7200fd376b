"""What a listener is for: clients and brokers, or the controller."""

from __future__ import annotations

from enum import IntFlag


class ListenerType(IntFlag):
    """Whom one listener, or both, serve. The numbers are those of DescribeCluster's endpoint types (KIP-919)."""

    BROKER = 1
    CONTROLLER = 2
