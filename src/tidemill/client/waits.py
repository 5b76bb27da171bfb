"""What the clients of this process wait for now, and why: for programs that tell their users.

Nothing here waits or changes anything. Each client registers itself, and answers what keeps its messages back
from what it knows: requests without an answer, connections that cannot be opened, refusals that are retried.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple, Protocol


class Kind(Enum):
    """What waits."""

    ACKNOWLEDGEMENT = "acknowledgement"
    """Messages of a partition that were handed to a producer."""

    READ = "read"
    """A partition of a consumer."""

    GROUP = "group"
    """A member of a group, for its coordinator."""

    CLUSTER = "cluster"
    """A question to any broker: the metadata, a command."""


class Wait(NamedTuple):
    """One thing that waits."""

    kind: Kind
    subject: str
    """``topic-partition``, or the name of the group; empty for the cluster."""
    reason: str
    """With the next step, where one is known."""
    since: float
    """Monotonic seconds."""
    messages: int = 0
    """How many wait, where that is known."""
    tried_s: float = 0.0
    """After how many seconds they are given up; 0: never, or by who waits."""


class Source(Protocol):
    """A client, or a part of it, that may wait."""

    def waits(self) -> list[Wait]:
        """What waits now. From any thread; it never blocks for long."""
        ...


_LOCK = threading.Lock()
_SOURCES: weakref.WeakSet[Source] = weakref.WeakSet()


def register(source: Source) -> None:
    """Has :func:`all_waits` ask ``source``, as long as it lives and is not unregistered."""
    with _LOCK:
        _SOURCES.add(source)


def unregister(source: Source) -> None:
    """Ends that."""
    with _LOCK:
        _SOURCES.discard(source)


@contextmanager
def waiting(kind: Kind, reason: str) -> Iterator[None]:
    """Has :func:`all_waits` name what the block waits for."""
    wait = Wait(kind, "", reason, time.monotonic())
    source = _OneWait(wait)
    register(source)
    try:
        yield
    finally:
        unregister(source)


class _OneWait:
    """A source with one wait."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait

    def waits(self) -> list[Wait]:
        return [self._wait]


def all_waits() -> list[Wait]:
    """What any client of this process waits for."""
    with _LOCK:
        sources = list(_SOURCES)
    return [wait for source in sources for wait in source.waits()]
