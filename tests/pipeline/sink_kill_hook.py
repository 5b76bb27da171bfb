"""Causes an event at one request of the exactly-once sink, in a process of a query.

The plan is that of ``tests/pipeline/sink_kills.py``. The number of matching requests of all processes
together is the size of a file. Most events are the work of the program that has started the driver: this
module describes them in a file, and waits until that file has gone.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from typing import Any

SLOW_S = 4.0
"""Long enough for Spark to start the task a second time beside the first."""
PATIENCE_S = 120.0


def _count(path: str) -> int:
    """Counts a request of any process; returns its number, from 1 on."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b".")
        file.flush()
        return os.fstat(file.fileno()).st_size


def _occur(plan: dict[str, Any], request: Any) -> None:
    event = plan["event"]
    if event == "kill worker":
        os.kill(os.getpid(), signal.SIGKILL)
    elif event == "fail":
        raise RuntimeError("planted failure")
    elif event == "wait":
        time.sleep(SLOW_S)
    else:
        _ask(plan, request)


def _ask(plan: dict[str, Any], request: Any) -> None:
    """Asks for the event, and waits until it has happened."""
    transaction = getattr(request, "transaction", None)
    text = json.dumps({"pid": os.getpid(), "transactional_id": transaction and transaction.transactional_id})
    with open(f"{plan['asked']}.new", "w") as file:
        file.write(text)
    os.replace(f"{plan['asked']}.new", plan["asked"])
    deadline = time.monotonic() + PATIENCE_S
    while os.path.exists(plan["asked"]) and time.monotonic() < deadline:
        time.sleep(0.02)


def install(text: str) -> None:
    """Causes the event of a plan, given as JSON."""
    from tidemill.pipeline.exactly_once.sink_cluster import SinkCluster

    plan: dict[str, Any] = json.loads(text)
    execute = SinkCluster.execute

    def hooked(self: SinkCluster, request: Any, rows: Any) -> Any:
        is_meant = type(request).__name__ == plan["request"]
        if is_meant and not plan["is_after"] and _count(plan["counter"]) == plan["number"]:
            _occur(plan, request)
        result = execute(self, request, rows)
        if is_meant and plan["is_after"] and _count(plan["counter"]) == plan["number"]:
            _occur(plan, request)
        return result

    SinkCluster.execute = hooked  # type: ignore[method-assign]
