"""Commands to a process of the test tools: a line of JSON on standard input, one on standard output."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

RECEIVE_BYTES = 65536


async def carry_out(ready: Mapping[str, Any], do: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    """Says ``ready``, and then the answer of ``do`` to each command, until standard input ends.

    What ``do`` raises is answered as ``error``.
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
                answer = do(json.loads(line))
            except Exception as problem:  # noqa: BLE001 - whoever asked is told
                answer = {"error": f"{type(problem).__name__}: {problem}"}
            _say(answer)

    loop.add_reader(0, on_input)
    _say(ready)
    await ended.wait()


def _say(answer: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()
