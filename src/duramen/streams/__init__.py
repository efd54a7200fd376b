"""Streams as a library: namespaces, appends with receipts, readers by position. `open` gives a namespace.

with duramen.streams.open("duramen://127.0.0.1:9092/finance") as finance:
    receipt = finance.create("ledger").append(b"first")
    for record in finance.stream("ledger").reader():
        print(record.offset, record.value)
"""

from duramen.streams.errors import (
    AppendTooLargeError,
    NamespaceExistsError,
    NamespaceNotEmptyError,
    NoSuchNamespaceError,
    NoSuchStreamError,
    PositionDivergedError,
    StreamEndMovedError,
    StreamExistsError,
    TruncatedError,
    TxidMissingError,
    TxidOutOfOrderError,
    WriterFencedError,
    WriterSequenceError,
)
from duramen.streams.merge_cursor import MergedRecord
from duramen.streams.merged_reader import MergedReader
from duramen.streams.namespace import Namespace, open_namespace
from duramen.streams.namespace_tree import NamespaceTree
from duramen.streams.namespace_tree_calls import NamespaceInfo
from duramen.streams.positions.file_positions import FilePositions
from duramen.streams.positions.group_positions import GroupPositions
from duramen.streams.positions.output_positions import POSITION_HEADER, OutputPositions
from duramen.streams.positions.position_store import NoTransactionError, PositionStore, PositionTakenError
from duramen.streams.positions.postgres_positions import PostgresPositions
from duramen.streams.positions.sqlite_positions import SqlitePositions
from duramen.streams.positions.topic_positions import TopicPositions
from duramen.streams.read_positions import Position, Txid
from duramen.streams.reader import Reader
from duramen.streams.receipt import Receipt
from duramen.streams.records import NewStreamRecord, StreamRecord
from duramen.streams.stream import Stream
from duramen.streams.writer import StreamWriter

open = open_namespace

__all__ = [
    "POSITION_HEADER",
    "AppendTooLargeError",
    "FilePositions",
    "GroupPositions",
    "MergedReader",
    "MergedRecord",
    "Namespace",
    "NamespaceExistsError",
    "NamespaceInfo",
    "NamespaceNotEmptyError",
    "NamespaceTree",
    "NewStreamRecord",
    "NoSuchNamespaceError",
    "NoSuchStreamError",
    "NoTransactionError",
    "OutputPositions",
    "Position",
    "PositionDivergedError",
    "PositionStore",
    "PositionTakenError",
    "PostgresPositions",
    "Reader",
    "Receipt",
    "SqlitePositions",
    "Stream",
    "StreamEndMovedError",
    "StreamExistsError",
    "StreamRecord",
    "StreamWriter",
    "TopicPositions",
    "TruncatedError",
    "Txid",
    "TxidMissingError",
    "TxidOutOfOrderError",
    "WriterFencedError",
    "WriterSequenceError",
    "open",
]
