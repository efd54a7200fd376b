"""Who may do what: the one question dispatch asks before a handler sees a request.

Operations and resource types are Kafka's (org.apache.kafka.common.acl.AclOperation, resource.ResourceType).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Protocol


class Operation(IntEnum):
    """AclOperation codes."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Resource(IntEnum):
    """ResourceType codes."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    NONE = 0


NOBODY: frozenset[str] = frozenset()
CLUSTER_NAME = "kafka-cluster"


class Authorizer(Protocol):
    """Decides for a principal, an operation and resources of one type."""

    def denied(
        self, principal: str, host: str, operation: Operation, resource: Resource, names: Iterable[str]
    ) -> frozenset[str]:
        """Those of `names` the principal may not touch this way."""


class AllowAll:
    """Everybody may do everything: the default until access control lists are configured."""

    def denied(
        self, principal: str, host: str, operation: Operation, resource: Resource, names: Iterable[str]
    ) -> frozenset[str]:
        return NOBODY


class AccessControl:
    """The authorizer in force, and questions to it."""

    __slots__ = ("authorizer",)

    def __init__(self) -> None:
        self.authorizer: Authorizer = AllowAll()
