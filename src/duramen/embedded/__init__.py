"""The embedded log: `duramen.open(path)`."""

from duramen.dlsn import LogEnd
from duramen.embedded.log import EmbeddedLog, Topic, open_log
from duramen.embedded.records import Record, StoredRecord
from duramen.embedded.stream_writes import Writer
from duramen.embedded.topic_stream import TopicStream, TopicStreamState

__all__ = [
    "EmbeddedLog",
    "LogEnd",
    "Record",
    "StoredRecord",
    "Topic",
    "TopicStream",
    "TopicStreamState",
    "Writer",
    "open_log",
]
