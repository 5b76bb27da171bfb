"""Reports the waits of the clients of this process, with their reasons, to programs that show them.

This module neither waits nor changes state. Each client registers itself and reports the reasons of a delay
that it knows: requests without a response, connections that cannot be opened, errors that are retried.
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
    """The kind of operation that waits."""

    ACKNOWLEDGEMENT = "acknowledgement"
    """Messages of a partition that were passed to a producer."""

    READ = "read"
    """A partition of a consumer."""

    GROUP = "group"
    """A member of a group that waits for its coordinator."""

    TRANSACTIONAL_ID = "transactional id"
    """A producer that waits for the coordinator of its transactional id."""

    CLUSTER = "cluster"
    """A request to any broker: for metadata, or of a command."""


class Wait(NamedTuple):
    """An operation that waits."""

    kind: Kind
    subject: str
    """``topic-partition``, or the name of the group or transactional id; empty for the cluster."""
    reason: str
    """The reason, with the user's next step if one is known."""
    since: float
    """When the wait began, in monotonic seconds."""
    messages: int = 0
    """The number of messages that wait, if known."""
    tried_s: float = 0.0
    """The timeout in seconds after which the messages fail; 0: none, or set by the caller."""


class Source(Protocol):
    """A client, or a component of a client, that may wait."""

    def waits(self) -> list[Wait]:
        """Returns the current waits. From any thread; never blocks for long."""
        ...


_LOCK = threading.Lock()
_SOURCES: weakref.WeakSet[Source] = weakref.WeakSet()


def register(source: Source) -> None:
    """Adds ``source`` to :func:`all_waits` until it is unregistered or garbage-collected."""
    with _LOCK:
        _SOURCES.add(source)


def unregister(source: Source) -> None:
    """Removes ``source`` from :func:`all_waits`."""
    with _LOCK:
        _SOURCES.discard(source)


@contextmanager
def waiting(kind: Kind, reason: str) -> Iterator[None]:
    """Reports a wait to :func:`all_waits` while the block runs."""
    wait = Wait(kind, "", reason, time.monotonic())
    source = _OneWait(wait)
    register(source)
    try:
        yield
    finally:
        unregister(source)


class _OneWait:
    """A source of one fixed wait."""

    def __init__(self, wait: Wait) -> None:
        self._wait = wait

    def waits(self) -> list[Wait]:
        return [self._wait]


def all_waits() -> list[Wait]:
    """Returns the current waits of all clients of this process."""
    with _LOCK:
        sources = list(_SOURCES)
    return [wait for source in sources for wait in source.waits()]
