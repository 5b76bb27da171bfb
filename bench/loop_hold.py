"""Measures how long a request blocks the event loop: every list of every API, with the maximum of items.

    .venv/bin/python bench/loop_hold.py [--items 99000] [--existing 10000] [--api NAME] [--json FILE]

A broker runs in a separate process, and each callback of its loop is timed. For each API with lists, and for
each list in its oldest and in its newest version, two requests are sent: one with different items, one with
equal items. With ``--existing`` the requests are on that many topics, which are created first
(bench/existing_topics.py): existing topics cost more than missing ones. The table has the longest processor
time for which the loop was blocked during the response, the time of the response, and the bytes of request
and response. A client sends ApiVersions continuously, and the table has its longest wait. The exit code is 1
if a request blocked the loop for more than ``--limit-ms``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import existing_topics

from tidemill.broker.api_registry import APIS
from tidemill.wire.apis import ApiKey, request_class
from tidemill.wire.codegen import allows_null, carries
from tidemill.wire.header import encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest
from tidemill.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from tidemill.wire.schema import BYTES, RECORDS, STRING, UUID, Field, Struct, WireType

LIMIT_MS = 10.0
TOPIC = "t"
TIMEOUT_S = 120.0
LATER_S = 3600
WARMING_TOPICS = 200
"""A request about so many is decoded in slices."""


class Case(NamedTuple):
    """A request: the list with the items, and whether they are all different."""

    api: ApiKey
    version: int
    path: tuple[str, ...]
    distinct: bool


def cases(only: str = "") -> Iterator[Case]:
    """Returns every list of every API in its oldest and in its newest version, which may have different
    handlers.
    """
    for key in sorted(APIS):
        api = ApiKey(key)
        if only and only.upper() != api.name:
            continue
        for version in sorted({APIS[key].first, APIS[key].last}):
            for path in lists_of(request_class(key), version):
                for distinct in (False, True):
                    yield Case(api, version, path, distinct)


def lists_of(cls: type[Struct], version: int) -> Iterator[tuple[str, ...]]:
    """Returns the paths of the lists of a message, including nested ones."""
    for one in cls.fields_:
        if not one.is_array or not carries(one, version):
            continue
        yield (one.name,)
        if isinstance(one.element, type):
            for path in lists_of(one.element, version):
                yield (one.name, *path)


def message(cls: type[Struct], case: Case, path: tuple[str, ...], items: int, number: int = 0) -> Struct:
    """Returns a request whose list at ``path`` has that many items, and each enclosing list one item."""
    values: dict[str, Any] = {}
    for one in cls.fields_:
        if not carries(one, case.version) or one.tag >= 0:
            continue
        if path and one.name == path[0]:
            count = items if len(path) == 1 else 1
            values[one.name] = [
                value_of(one, case, path[1:], items, at if case.distinct else 0) for at in range(count)
            ]
        elif one.is_array:
            values[one.name] = None if allows_null(one, case.version) and not path else []
        elif isinstance(one.element, WireType):
            values[one.name] = plain_value(one.element, one.name, number)
        elif not allows_null(one, case.version):
            values[one.name] = message(one.element, case, (), items)
        else:
            values[one.name] = None
    return cls(**values)


def value_of(one: Field, case: Case, path: tuple[str, ...], items: int, number: int) -> Any:
    """Returns one item of a list."""
    if isinstance(one.element, WireType):
        return plain_value(one.element, one.name, number)
    return message(one.element, case, path, items, number)


def plain_value(kind: WireType, name: str, number: int) -> Any:
    """Returns a plausible value that is different for each number."""
    if kind is STRING:
        if "topic" in name or name in ("name", "resource_name"):
            return TOPIC if number == 0 else f"t{number}"
        return f"g{number}"
    if kind is UUID:
        return number.to_bytes(16, "big")
    if kind in (BYTES, RECORDS):
        return b""
    if name == "timestamp":
        return 1_700_000_000_000
    if name in ("acks", "timeout_ms", "max_wait_ms", "session_id"):
        return 1 if name == "acks" else 0 if name == "session_id" else 1000
    if name in ("current_leader_epoch", "session_epoch", "replica_id", "leader_epoch", "member_epoch"):
        return -1
    if name in ("resource_type",):
        return 2
    if any(part in name for part in ("partition", "index")) or name == "partitions":
        return number
    return 0


# -- the broker


def serve(ready: Any, data: str) -> None:
    """Runs a broker whose loop reports over ``ready`` how long its callbacks took."""
    from tidemill.model.configs import BrokerConfig
    from tidemill.server import broker_server
    from tidemill.server.process import COLLECTOR_THRESHOLDS

    longest = [0.0]
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        # Processor time: other processes of this machine do not count.
        began = time.thread_time()
        run(handle)
        longest[0] = max(longest[0], time.thread_time() - began)

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]

    async def main() -> None:
        import gc

        settings = {"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": data}
        # Maintenance, which checks all logs, is not a part of requests.
        broker_server.FLUSH_CHECK_S = broker_server.REMOVAL_CHECK_S = LATER_S
        for key in ("log.retention.check", "replica.high.watermark.checkpoint"):
            settings[f"{key}.interval.ms"] = str(1000 * LATER_S)
        settings["log.cleaner.enable"] = settings["auto.create.topics.enable"] = "false"
        config = BrokerConfig.of({**settings, "log.initial.task.delay.ms": str(1000 * LATER_S)})
        async with broker_server.running(config) as server:
            gc.freeze()
            gc.set_threshold(*COLLECTOR_THRESHOLDS)
            ready.send(server.listeners[0][2])
            loop = asyncio.get_running_loop()
            while await loop.run_in_executor(None, ready.recv) == "longest":
                found, longest[0] = longest[0], 0.0
                ready.send(found)

    asyncio.run(main())


class Client:
    """A connection with one request at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def answer(self) -> int:
        """Returns the bytes of the next response; 0 if the connection was closed instead."""
        try:
            head = self.exactly(4)
            return 4 + len(self.exactly(struct.unpack(">i", head)[0])) if head else 0
        except ConnectionError:
            return 0

    def exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(min(size - len(data), 1 << 20))
            if not piece:
                return b""
            data += piece
        return bytes(data)

    def ask(self, key: int, version: int, request: Struct) -> int:
        self.send(encode_request(key, version, 1, "bench", request))
        return self.answer()


class ConcurrentClient(threading.Thread):
    """A concurrent client that records its longest wait."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.client = Client(port)
        self.slowest = 0.0
        self.ending = threading.Event()

    def run(self) -> None:
        request = ApiVersionsRequest(client_software_name="bench", client_software_version="1")
        while not self.ending.is_set():
            began = time.perf_counter()
            if not self.client.ask(ApiKey.API_VERSIONS, 3, request):
                return
            self.slowest = max(self.slowest, time.perf_counter() - began)
            time.sleep(0.001)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=99_000)
    parser.add_argument("--existing", type=int, default=0, help="of so many topics")
    parser.add_argument("--api", default="", help="only this one, as LIST_OFFSETS")
    parser.add_argument("--limit-ms", type=float, default=LIMIT_MS)
    parser.add_argument("--json", default="")
    parser.add_argument("--over", action="store_true", help="only those above the limit")
    arguments = parser.parse_args()
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    found = []
    with tempfile.TemporaryDirectory() as data:
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, data), daemon=True)
        process.start()
        port = ours.recv()
        topic = CreatableTopic(
            name=TOPIC, num_partitions=100, replication_factor=1, assignments=[], configs=[]
        )
        Client(port).ask(
            ApiKey.CREATE_TOPICS,
            7,
            CreateTopicsRequest(topics=[topic], timeout_ms=20_000, validate_only=False),
        )
        time.sleep(1)
        head = f"{'request':56} {'items':9} {'hold ms':>8} {'answer s':>8}"
        print(f"{head} {'bytes':>9} {'reply':>9} {'wait ms':>8}")
        for one in measurements(arguments, port, ours):
            found.append(one)
            if one["hold_ms"] > arguments.limit_ms or not arguments.over:
                print(
                    f"{one['request']:56} {one['items']:9} {one['hold_ms']:8.1f} {one['answer_s']:8.2f}"
                    f" {one['bytes']:9} {one['reply_bytes']:9} {one['witness_ms']:8.1f}",
                    flush=True,
                )
        ours.send("end")
        process.join(20)
        process.kill()
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
    over = [one for one in found if one["hold_ms"] > arguments.limit_ms]
    print(f"{len(found)} requests, {len(over)} held the loop for more than {arguments.limit_ms:g} ms")
    return 1 if over else 0


def measurements(arguments: argparse.Namespace, port: int, broker: Any) -> Iterator[dict[str, Any]]:
    """Sends each request, and prints the results."""
    if not arguments.existing:
        for case in cases(arguments.api):
            yield measured(case, arguments.items, port, broker)
        return
    first = Client(port)
    for asked in existing_topics.requests(WARMING_TOPICS, WARMING_TOPICS):
        # They import the handlers and compile the codecs, and the group gets a coordinator.
        first.ask(asked.api, asked.version, asked.request)
    first.socket.close()
    time.sleep(1)
    large = existing_topics.PARTITIONS_MAX
    for asked in existing_topics.requests(arguments.existing, large):
        frame = encode_request(asked.api, asked.version, 1, "bench", asked.request)
        name = f"{asked.api.name} {asked.version} {asked.what}"
        if not arguments.api or arguments.api.upper() in (asked.api.name, ApiKey.CREATE_TOPICS.name):
            yield {"request": name, "items": "existing", **sent(frame, port, broker)}


def measured(case: Case, items: int, port: int, broker: Any) -> dict[str, Any]:
    """Sends a request, after smaller ones of the same kind."""
    # The first of an API imports its handler and compiles its codecs, for small messages and for large ones.
    few = message(request_class(case.api), case, case.path, 3)
    some = message(request_class(case.api), case, case.path, 2000)
    for first in (few, some):
        warm = Client(port)
        warm.ask(case.api, case.version, first)
        warm.socket.close()
    request = message(request_class(case.api), case, case.path, items)
    return {
        "request": f"{case.api.name} {case.version} {'.'.join(case.path)}",
        "items": "distinct" if case.distinct else "alike",
        **sent(encode_request(case.api, case.version, 1, "bench", request), port, broker),
    }


def sent(frame: bytes, port: int, broker: Any) -> dict[str, Any]:
    """Sends a request, and waits for the response."""
    client, witness = Client(port), ConcurrentClient(port)
    witness.start()
    time.sleep(0.05)
    broker.send("longest")
    broker.recv()
    witness.slowest = 0.0
    began = time.perf_counter()
    client.send(frame)
    reply_bytes = client.answer()
    took = time.perf_counter() - began
    broker.send("longest")
    hold = broker.recv()
    witness.ending.set()
    witness.join()
    client.socket.close()
    witness.client.socket.close()
    return {
        "hold_ms": hold * 1000,
        "answer_s": took,
        "bytes": len(frame),
        "reply_bytes": reply_bytes,
        "witness_ms": witness.slowest * 1000,
    }


if __name__ == "__main__":
    sys.exit(main())
