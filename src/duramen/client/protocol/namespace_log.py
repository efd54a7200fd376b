"""The records of namespaces, as their topic has them. Pure."""

from __future__ import annotations

from duramen.client.protocol.namespaces import NamespaceRecord, parse_record
from duramen.client.protocol.record_table import RecordTable


class NamespaceLog(RecordTable[NamespaceRecord]):
    """What the topic says, by path, as far as it was read."""

    def __init__(self) -> None:
        super().__init__("the namespaces", _parsed)


def _parsed(key: bytes | None, value: bytes) -> tuple[str, NamespaceRecord] | None:
    record = parse_record(key, value)
    return None if record is None else (record.path, record)
