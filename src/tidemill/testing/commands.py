"""Commands to a process of the test tools: one line of JSON on standard input, one on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

RECEIVE_BYTES = 65536


async def serve_commands(
    ready: Mapping[str, Any], handle: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> None:
    """Writes ``ready``, and then the response of ``handle`` to each command, until standard input ends.

    An exception of ``handle`` becomes a response with ``error``.
    """
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    received = bytearray()

    def on_input() -> None:
        data = os.read(0, RECEIVE_BYTES)
        if not data:
            loop.remove_reader(0)
            ended.set()
            return
        received.extend(data)
        *lines, rest = received.split(b"\n")
        received[:] = rest
        for line in lines:
            try:
                response = handle(json.loads(line))
            except Exception as problem:  # noqa: BLE001 - reported to the sender of the command
                response = {"error": f"{type(problem).__name__}: {problem}"}
            _write_line(response)

    loop.add_reader(0, on_input)
    _write_line(ready)
    await ended.wait()


def _write_line(response: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(response) + "\n")
    sys.stdout.flush()
