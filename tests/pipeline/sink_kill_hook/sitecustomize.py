"""Kills a process at one request of the exactly-once sink. Python imports it first, from PYTHONPATH.

``SINK_KILL`` has a plan of :mod:`sink_kill_plan` as JSON. The number of matching requests of all processes
together is the size of a file.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
from typing import Any


def _count(path: str) -> int:
    """Counts an event of any process; returns its number, from 1 on."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b".")
        file.flush()
        return os.fstat(file.fileno()).st_size


def _kill(plan: dict[str, Any]) -> None:
    target = plan["target"]
    if target == "driver":
        with open(plan["driver_file"]) as file:
            os.killpg(int(file.read()), signal.SIGKILL)
    elif target == "worker":
        os.kill(os.getpid(), signal.SIGKILL)
    else:
        os.kill(int(plan["broker_pid"]), signal.SIGKILL)


def _install(plan: dict[str, Any]) -> None:
    from tidemill.pipeline.exactly_once.sink_cluster import SinkCluster

    carry_out = SinkCluster.carry_out

    def hooked(self: SinkCluster, request: Any, rows: Any) -> Any:
        is_meant = type(request).__name__ == plan["request"]
        if is_meant and not plan["is_after"] and _count(plan["counter"]) == plan["number"]:
            _kill(plan)
        result = carry_out(self, request, rows)
        if is_meant and plan["is_after"] and _count(plan["counter"]) == plan["number"]:
            _kill(plan)
        return result

    SinkCluster.carry_out = hooked  # type: ignore[method-assign]


if os.environ.get("SINK_KILL"):
    _install(json.loads(os.environ["SINK_KILL"]))
