"""Says on stderr what keeps a command waiting, and when that is over.

    warning: 3 messages for hello-0 are not acknowledged for 3 s: no connection to broker ...
    messages for hello-0 are acknowledged again

A thread looks a few times a second at what the clients of the process wait for (see tidemill.client.waits),
since the thread of the command may be the one that waits.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import click

from tidemill.cli.output import counted
from tidemill.client import waits
from tidemill.client.waits import Kind, Wait

LOOK_S = 0.2
SAID_AFTER_S = 2.5
"""A wait that lasts so long is said."""

GROUP_SAID_AFTER_S = 1.8
"""Sooner, as a heartbeat has to meet it first."""

TOGETHER_S = 1.0
"""With it those of the same reason that last so long: partitions of one broker are one line."""

SAID_AGAIN_S = 60.0
OVER_AFTER_S = 0.5
"""How long a wait must be gone before it is over: between two attempts nothing waits for a moment."""

NAMED_MAX = 3


class Sentence(NamedTuple):
    """What is said of one kind of waits, and after how many seconds."""

    waits: str
    is_over: str
    after_s: float = SAID_AFTER_S


SENTENCES = {
    Kind.ACKNOWLEDGEMENT: Sentence(
        "{count} for {names} not acknowledged for {seconds:.0f} s",
        "messages for {names} are acknowledged again",
    ),
    Kind.READ: Sentence("{names} cannot be read for {seconds:.0f} s", "{names} can be read again"),
    Kind.GROUP: Sentence(
        "group {names} waits for its coordinator for {seconds:.0f} s",
        "the coordinator of group {names} answers again",
        GROUP_SAID_AFTER_S,
    ),
    Kind.CLUSTER: Sentence("no answer for {seconds:.0f} s", "the cluster answers again"),
}


class Watch:
    """Decides what is said. No thread, no clock: ``look`` is told the time, ``say`` gets the lines."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: dict[tuple[Kind, str], float] = {}
        """By kind and subject when it was last said; monotonic seconds."""
        self._gone: dict[tuple[Kind, str], float] = {}
        """Of those, since when they wait no more."""
        self._others_at = 0.0
        """When something else than the cluster was last waited for."""

    def look(self, found: Sequence[Wait], now: float) -> None:
        """Says what has lasted for some seconds, once a minute, and what is over."""
        others = [wait for wait in found if wait.kind is not Kind.CLUSTER]
        if others or any(kind is not Kind.CLUSTER for kind, _ in self._said):
            # The answers that are missing are why the others wait.
            found = others
            self._others_at = now
        found = [
            wait._replace(since=max(wait.since, self._others_at)) if wait.kind is Kind.CLUSTER else wait
            for wait in found
        ]
        self._warn(found, now)
        self._end({(wait.kind, wait.subject) for wait in found}, now)

    def _warn(self, found: Sequence[Wait], now: float) -> None:
        due: dict[tuple[Kind, str], list[Wait]] = {}
        for wait in found:
            last = self._said.get((wait.kind, wait.subject))
            if now - wait.since >= TOGETHER_S and (last is None or now - last >= SAID_AGAIN_S):
                due.setdefault((wait.kind, wait.reason), []).append(wait)
        for (kind, reason), together in due.items():
            seconds = max(now - wait.since for wait in together)
            if seconds < SENTENCES[kind].after_s:
                continue
            subjects = sorted({wait.subject for wait in together})
            messages = sum(wait.messages for wait in together)
            said = SENTENCES[kind].waits.format(
                names=_names(subjects), count=counted(messages, "message"), seconds=seconds
            )
            limit_s = max(wait.tried_s for wait in together)
            tried = f"tried for {limit_s:g} s at most" if limit_s else "tried again"
            self._say(f"warning: {said}, and {tried}: {reason}")
            self._said.update({(kind, subject): now for subject in subjects})

    def _end(self, present: set[tuple[Kind, str]], now: float) -> None:
        over: dict[Kind, list[str]] = {}
        for key in list(self._said):
            if key in present:
                self._gone.pop(key, None)
            elif now - self._gone.setdefault(key, now) >= OVER_AFTER_S:
                del self._said[key], self._gone[key]
                over.setdefault(key[0], []).append(key[1])
        for kind, subjects in over.items():
            self._say(SENTENCES[kind].is_over.format(names=_names(sorted(subjects))))


def _names(subjects: Sequence[str]) -> str:
    if len(subjects) <= NAMED_MAX + 1:
        return ", ".join(subjects)
    return f"{', '.join(subjects[:NAMED_MAX])} and {len(subjects) - NAMED_MAX} others"


_ENDED: list[threading.Event] = []
"""Of the watches under way, the last one last."""


def say_no_more() -> None:
    """Ends the watch under way: what ends because its client does is no good news."""
    if _ENDED:
        _ENDED[-1].set()


@contextmanager
def watching() -> Iterator[None]:
    """Says during the block what any client of the process waits for."""
    watch = Watch(_say)
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(LOOK_S):
            try:
                found = waits.all_waits()
            except RuntimeError:
                continue  # What it looked at has changed under it: it looks again.
            if not ended.is_set():
                watch.look(found, time.monotonic())

    # The client's own warning of a coordinator comes later, for programs without this watch.
    own = logging.getLogger("tidemill.client.coordinator_trouble")
    level = own.level
    own.setLevel(logging.ERROR)
    thread = threading.Thread(target=run, name="tidemill-waiting", daemon=True)
    _ENDED.append(ended)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        _ENDED.remove(ended)
        thread.join()
        own.setLevel(level)


def _say(line: str) -> None:
    if sys.stderr.isatty():
        line = f"\r\x1b[K{line}"  # Over the line of a measurement under way.
    click.echo(line, err=True)
