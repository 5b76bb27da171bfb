"""The processes of a query: Java processes above and below a Python process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def java_above(pid: int) -> int:
    """Returns the process id of the Java process that has started this one, directly or not."""
    while pid > 1:
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rsplit(")", 1)[1].split()[1])
        with open(f"/proc/{pid}/comm") as file:
            if file.read().strip() == "java":
                return pid
    raise RuntimeError("no Java process has started this one")


def java_below(pid: int) -> list[int]:
    """Returns the process ids of the Java processes that a process has started itself."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            with open(f"/proc/{entry}/stat") as file:
                name, rest = file.read().rsplit(")", 1)
        except (OSError, ValueError):
            continue
        if entry.isdecimal() and name.endswith("(java") and int(rest.split()[1]) == pid:
            found.append(int(entry))
    return found


def await_true(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Waits until the condition is true; returns False after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
