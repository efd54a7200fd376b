"""Streams on asyncio: `open` gives a namespace, whose names are those of `duramen.streams`.

async with await duramen.streams.aio.open("duramen://127.0.0.1:9092/finance") as finance:
    await (await finance.create("ledger")).append(b"first")
    async for record in await (await finance.stream("ledger")).reader():
        print(record.offset, record.value)
"""

from duramen.streams.aio.async_namespace import AsyncNamespace, AsyncNamespaceTree, open_async_namespace
from duramen.streams.aio.async_reader import AsyncMergedReader, AsyncReader
from duramen.streams.aio.async_stream import AsyncStream, AsyncStreamWriter

open = open_async_namespace

__all__ = [
    "AsyncMergedReader",
    "AsyncNamespace",
    "AsyncNamespaceTree",
    "AsyncReader",
    "AsyncStream",
    "AsyncStreamWriter",
    "open",
]
