"""Clients of gateways in a process of their own, which is killed: each keeps its ledger, a line in front of what it
does and one behind, and goes on from it when it is started again. They know HTTP and nothing of the log.

    python -m tests.torture.stream_clients '{"folder": ..., "gateways": [8082], "seed": 1, "actors": [...]}'

SIGTERM: writers bring to an end what they have begun, and end.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

ANSWER_SECONDS = 15.0
"""A gateway that says nothing for so long is left for another one."""
SILENCE_SECONDS = 20.0
"""Heartbeats come every 15 s."""
NEW_EPOCH = 0.3
JSON = "application/json"


class LostError(Exception):
    """No answer: what was asked for may have been done."""


class HttpReply(NamedTuple):
    """headers: by small letters."""

    status: int
    headers: dict[str, str]
    body: bytes


class LedgerFile:
    """Lines of JSON. A line is there whole, or it is not."""

    def __init__(self, path: Path) -> None:
        self.lines = read_lines(path)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._file, b"\n")

    def add(self, **fields: Any) -> None:
        os.write(self._file, json.dumps({**fields, "at": time.monotonic()}).encode() + b"\n")


def read_lines(path: Path) -> list[dict[str, Any]]:
    """What is whole of a ledger."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


class HttpClient:
    """One connection at a time, to one gateway of several; another one where it is lost."""

    def __init__(self, ports: list[int], chance: random.Random) -> None:
        self._ports = ports
        self._chance = chance
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> HttpReply:
        """LostError without an answer. headers: with _ for -."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader = await self._send(method, path, body, headers)
                status, found = await _head(reader)
                content = b""
                if method != "HEAD" and status not in (204, 304):
                    if found.get("transfer-encoding") == "chunked":
                        content = b"".join([chunk async for chunk in _chunks(reader)])
                    else:
                        content = await reader.readexactly(int(found.get("content-length", "0")))
        except (OSError, TimeoutError, EOFError, ValueError, IndexError) as error:
            self.close()
            raise LostError(str(error)) from None
        if found.get("connection") == "close":
            self.close()
        return HttpReply(status, found, content)

    async def events(self, path: str) -> AsyncIterator[tuple[str, str]]:
        """Server-sent events as (name, data), until they end. LostError where they do without an answer."""
        self.close()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                reader = await self._send("GET", path, b"", {})
                status, _ = await _head(reader)
            if status != 200:
                yield "status", str(status)
                return
            text = b""
            chunks = _chunks(reader)
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    chunk = await anext(chunks, None)
                if chunk is None:
                    return
                *blocks, text = (text + chunk).split(b"\n\n")
                for block in blocks:
                    fields = [line.partition(":")[::2] for line in block.decode().split("\n")]
                    for name in (value.strip() for field, value in fields if field == "event"):
                        yield name, "\n".join(value.removeprefix(" ") for field, value in fields if field == "data")
        except (OSError, TimeoutError, EOFError, ValueError, IndexError) as error:
            raise LostError(str(error)) from None
        finally:
            self.close()

    async def _send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> asyncio.StreamReader:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._chance.choice(self._ports))
        reader, writer = self._streams
        given = {"host": "localhost", **{name.replace("_", "-"): value for name, value in headers.items()}}
        if method == "POST" or body:
            given["content-length"] = str(len(body))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in given.items())
        writer.write(head.encode() + b"\r\n" + body)
        await writer.drain()
        return reader

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    status = int((await reader.readline()).split()[1])
    headers = {}
    while (line := (await reader.readline()).rstrip(b"\r\n")) != b"":
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip()
    return status, headers


async def _chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readline()
    await reader.readline()


class Actor:
    """One client with its ledger."""

    def __init__(self, spec: dict[str, Any], folder: Path, ports: list[int], chance: random.Random) -> None:
        self.name = str(spec["name"])
        self.path = str(spec["path"])
        self.pause_s = float(spec.get("pause_s", 0.02))
        self.chance = chance
        self.http = HttpClient(ports, chance)
        self.ledger = LedgerFile(folder / f"{self.name}.jsonl")
        self.stopping = False

    async def run(self) -> None:
        raise NotImplementedError

    async def rest(self, seconds: float = 0.3) -> None:
        await asyncio.sleep(seconds * self.chance.random())

    def bad(self, what: str, reply: HttpReply) -> None:
        """An answer that nobody should get; it is told once, and the client ends."""
        self.ledger.add(t="bad", what=what, status=reply.status, body=reply.body.decode("utf-8", "replace")[:500])
        self.stopping = True

    def values(self, number: int, count: int) -> list[dict[str, Any]]:
        """The records with these numbers."""
        return [
            {"w": self.name, "n": number + at, "pad": "x" * self.chance.choice((0, 30, 300))} for at in range(count)
        ]


class NamedWriter(Actor):
    """Sends each request again, unchanged, until it is answered: also in its next life, or in the next epoch not."""

    async def run(self) -> None:
        epoch, sequence, number, body = self._recalled()
        while body is not None or not self.stopping:
            if body is None:
                values = self.values(number, self.chance.choice((1, 1, 1, 4)))
                number += len(values)
                body = json.dumps(values)
                self.ledger.add(t="send", e=epoch, s=sequence, v=body, next=number)
            if await self._is_stored(epoch, sequence, body):
                body, sequence = None, sequence + 1
                await self.rest(self.pause_s)
            elif self.ledger.lines and self.ledger.lines[-1]["t"] == "bad":
                return
            else:
                await self.rest()

    def _recalled(self) -> tuple[int, int, int, str | None]:
        """Epoch, next sequence, next number, and what has no answer yet."""
        sent = [line for line in self.ledger.lines if line["t"] == "send"]
        if not sent:
            return 0, 0, 0, None
        last = sent[-1]
        answered = any(
            line["t"] == "ack" and (line["e"], line["s"]) == (last["e"], last["s"]) for line in self.ledger.lines
        )
        if self.chance.random() < NEW_EPOCH:
            return last["e"] + 1, 0, last["next"], None
        return last["e"], last["s"] + answered, last["next"], None if answered else last["v"]

    async def _is_stored(self, epoch: int, sequence: int, body: str) -> bool:
        identity = {"Producer_Id": self.name, "Producer_Epoch": str(epoch), "Producer_Seq": str(sequence)}
        try:
            reply = await self.http.ask("POST", self.path, body.encode(), Content_Type=JSON, **identity)
        except LostError:
            return False
        if reply.status in (200, 204):
            receipt = json.loads(reply.headers.get("stream-receipt", "{}"))
            self.ledger.add(t="ack", e=epoch, s=sequence, offset=receipt.get("offset", -1), again=reply.status == 204)
            return True
        if reply.status not in (429, 503, 504):
            self.bad(f"{self.name} {epoch} {sequence}", reply)
            self.ledger.lines.append({"t": "bad"})
        return False


class ExpectingWriter(Actor):
    """Appends without a name where it believes the stream to end; what has no answer it leaves open."""

    async def run(self) -> None:
        number = 1 + max((line["n"] for line in self.ledger.lines if line["t"] == "send"), default=-1)
        position = await self._end()
        while not self.stopping and position:
            (value,) = self.values(number, 1)
            body = json.dumps(value)
            self.ledger.add(t="send", n=number, v=body)
            number += 1
            position = await self._append(body, number - 1, position)
            await self.rest(self.pause_s)

    async def _append(self, body: str, number: int, position: str) -> str:
        """The position of the end behind that."""
        tries = 0
        while True:
            try:
                reply = await self.http.ask(
                    "POST", self.path, body.encode(), Content_Type=JSON, Stream_Expected_Offset=position
                )
            except LostError:
                reply = HttpReply(504, {}, b"")
            if reply.status == 204:
                receipt = json.loads(reply.headers["stream-receipt"])
                self.ledger.add(t="ack", n=number, offset=receipt["offset"], expected=position)
                return reply.headers["stream-next-offset"]
            if reply.status == 409 and b"end-is-elsewhere" in reply.body:
                if tries:
                    self.ledger.add(t="open", n=number)  # it may be what has moved the end
                    return reply.headers["stream-next-offset"]
                position = reply.headers["stream-next-offset"]
            elif reply.status == 504:
                tries += 1
                if self.stopping or tries > 3:
                    self.ledger.add(t="open", n=number)
                    return await self._end()
            elif reply.status not in (429, 503):
                self.bad(f"{self.name} {number}", reply)
                return ""
            if self.stopping and tries == 0:
                self.ledger.add(t="never", n=number)
                return position
            await self.rest(0.2)

    async def _end(self) -> str:
        while True:
            try:
                reply = await self.http.ask("HEAD", self.path)
            except LostError:
                reply = HttpReply(503, {}, b"")
            if reply.status == 200:
                return reply.headers["stream-next-offset"]
            if reply.status not in (429, 503, 504):
                self.bad(f"{self.name} HEAD", reply)
                return ""
            await self.rest()


class ExclusiveWriter(Actor):
    """Opens a stream that others have open, writes until it is fenced or has had enough, and opens it again."""

    async def run(self) -> None:
        number = 1 + max((line["n"] for line in self.ledger.lines if line["t"] == "send"), default=-1)
        while not self.stopping:
            writer = await self._open()
            sequence, most = 0, self.chance.choice((3, 20, 100))
            while writer and not self.stopping and sequence < most:
                (value,) = self.values(number, 1)
                self.ledger.add(t="send", n=number, s=writer)
                number += 1
                if not await self._is_stored(json.dumps(value), number - 1, writer, sequence):
                    break
                sequence += 1
                await self.rest(self.pause_s)
            if writer and self.chance.random() < 0.2:
                await self._give_up(writer)
            await self.rest(2.0)

    async def _open(self) -> str:
        """Its Stream-Writer; "" where it has to end."""
        while not self.stopping:
            try:
                body = json.dumps({"name": self.name}).encode()
                reply = await self.http.ask("PUT", f"{self.path}/.writer", body, Content_Type=JSON)
            except LostError:
                reply = HttpReply(503, {}, b"")
            if reply.status == 200:
                told = json.loads(reply.body)
                _, entry, slot = (int(part, 16) for part in told["dlsn"].split("-"))
                self.ledger.add(t="opened", s=str(told["writer"]), offset=entry + slot)
                return str(told["writer"])
            if reply.status not in (429, 503, 504):
                self.bad(f"{self.name} opens", reply)
            await self.rest()
        return ""

    async def _is_stored(self, body: str, number: int, writer: str, sequence: int) -> bool:
        while True:
            try:
                reply = await self.http.ask(
                    "POST", self.path, body.encode(), Content_Type=JSON, Stream_Writer=writer,
                    Stream_Writer_Seq=str(sequence),
                )  # fmt: skip
            except LostError:
                reply = HttpReply(504, {}, b"")
            if reply.status in (200, 204):
                receipt = json.loads(reply.headers.get("stream-receipt", "{}"))
                self.ledger.add(t="ack", n=number, offset=receipt.get("offset", -1))
                return True
            if reply.status == 403 and b"writer-fenced" in reply.body:
                self.ledger.add(t="open", n=number)  # the gateway may have sent it again to the next leader
                return False
            if reply.status not in (429, 503, 504):
                self.bad(f"{self.name} {writer} {sequence}", reply)
                return False
            await self.rest()

    async def _give_up(self, writer: str) -> None:
        try:
            reply = await self.http.ask("DELETE", f"{self.path}/.writer", Stream_Writer=writer)
        except LostError:
            return
        if reply.status not in (204, 403, 429, 503, 504):
            self.bad(f"{self.name} gives up", reply)


class RecordsWriter(Actor):
    """Writes keyed records to a topic of several partitions, each once: what has no answer it leaves open."""

    async def run(self) -> None:
        number = max((line["next"] for line in self.ledger.lines if line["t"] == "send"), default=0)
        while not self.stopping:
            values = self.values(number, self.chance.choice((1, 2, 10)))
            self.ledger.add(t="send", n=number, next=number + len(values))
            number += len(values)
            await self._write(values)
            await self.rest(self.pause_s)

    async def _write(self, values: list[dict[str, Any]]) -> None:
        body = json.dumps({"records": [{"key": f"{self.name}-{value['n'] % 7}", "value": value} for value in values]})
        try:
            reply = await self.http.ask("POST", self.path, body.encode(), Content_Type=JSON)
        except LostError:
            return
        if reply.status in (200, 207):
            for value, told in zip(values, json.loads(reply.body)["records"], strict=True):
                if "error" not in told:
                    self.ledger.add(t="ack", n=value["n"], partition=told["partition"], offset=told["offset"])
        elif reply.status not in (429, 503, 504):
            self.bad(f"{self.name} {values[0]['n']}", reply)


class StreamReader(Actor):
    """Follows a stream. What it gets and the position behind it are one line, so it has both or neither."""

    async def run(self) -> None:
        lines = [line for line in self.ledger.lines if line["t"] == "got"]
        self.position = lines[-1]["p"] if lines else "-1"
        self.closed = bool(lines) and lines[-1].get("closed", False)
        while not self.closed and not self.stopping:
            try:
                await self.read()
            except LostError:
                await self.rest()

    async def read(self) -> None:
        raise NotImplementedError

    def got(self, position: str, records: list[Any], *, closed: bool) -> None:
        if records or closed:
            self.ledger.add(t="got", p=position, r=[[each["w"], each["n"]] for each in records], closed=closed)
        self.position, self.closed = position, closed


class EventReader(StreamReader):
    """By server-sent events."""

    async def read(self) -> None:
        held: list[Any] = []
        async for name, data in self.http.events(f"{self.path}?offset={self.position}&live=sse"):
            if name == "data":
                held += json.loads(data)
            elif name == "control":
                told = json.loads(data)
                self.got(told["streamNextOffset"], held, closed=told.get("streamClosed", False))
                held = []
            elif name == "status" and data not in ("429", "503", "504"):
                self.bad(f"{self.name} at {self.position}", HttpReply(int(data), {}, b""))
                return
        await self.rest()


class PollingReader(StreamReader):
    """By long-polls."""

    async def read(self) -> None:
        reply = await self.http.ask("GET", f"{self.path}?offset={self.position}&live=long-poll")
        if reply.status in (200, 204):
            records = json.loads(reply.body) if reply.status == 200 else []
            closed = reply.headers.get("stream-closed") == "true" and reply.headers.get("stream-up-to-date") == "true"
            self.got(reply.headers["stream-next-offset"], records, closed=closed)
        elif reply.status in (429, 503, 504):
            await self.rest()
        else:
            self.bad(f"{self.name} at {self.position}", reply)


KINDS = {
    "named": NamedWriter,
    "expecting": ExpectingWriter,
    "exclusive": ExclusiveWriter,
    "records": RecordsWriter,
    "sse": EventReader,
    "poll": PollingReader,
}


async def act(spec: dict[str, Any]) -> None:
    """Everybody of one process, until all have ended."""
    chance = random.Random(spec["seed"])
    actors = [
        KINDS[each["kind"]](each, Path(spec["folder"]), spec["gateways"], random.Random(chance.random()))
        for each in spec["actors"]
    ]

    def stop() -> None:
        for actor in actors:
            actor.stopping = True

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop)
    await asyncio.gather(*(actor.run() for actor in actors))


if __name__ == "__main__":
    asyncio.run(act(json.loads(sys.argv[1])))
