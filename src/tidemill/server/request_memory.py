"""The memory that requests may use: the size of the memory pool of all connections."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidemill.model.configs import BrokerConfig

REQUEST_BYTES_MIN: Final = 64 * 1024 * 1024
REQUEST_MEMORY_DIVISOR: Final = 4
"""Requests use at most a quarter of the memory, unless ``queued.max.request.bytes`` is set."""
CGROUP_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""The memory limit of a container, with version 2 and with version 1 of cgroups."""


def request_bytes_max(config: BrokerConfig) -> int:
    """The memory limit of all connections: ``queued.max.request.bytes``, or a share of the memory."""
    configured = config.int("queued.max.request.bytes")
    if configured > 0:
        return configured
    return max(REQUEST_BYTES_MIN, _usable_memory() // REQUEST_MEMORY_DIVISOR)


def _usable_memory() -> int:
    """Bytes of memory available to this process: of the machine, or of its container if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
            found.append(int(file.read()))
    return min(found)
