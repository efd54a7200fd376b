"""The embedded log: `duramen.open(path)`."""

from duramen.embedded.log import EmbeddedLog, Topic, open_log
from duramen.embedded.records import Record, StoredRecord

__all__ = ["EmbeddedLog", "Record", "StoredRecord", "Topic", "open_log"]
