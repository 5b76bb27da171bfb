"""Prints on stderr why a command waits, and when the wait is over.

    warning: 3 messages for hello-0 not acknowledged for 3 s, retried for 120 s at most: no connection ...
    messages for hello-0 are acknowledged again

A thread reads the waits of the clients of the process a few times a second (see
tidemill.client.wait_reasons), because the thread of the command may be the one that waits.
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
from tidemill.client import wait_reasons
from tidemill.client.wait_reasons import Kind, Wait

POLL_S = 0.2
REPORT_AFTER_S = 2.5
"""A wait that lasts this long is reported."""

GROUP_REPORT_AFTER_S = 1.8
"""Shorter than for other waits, because a wait for a coordinator is noticed only at a heartbeat."""

GROUP_WAITS_AFTER_S = 1.0
"""Waits of the same reason that last this long are reported in one line, as for partitions of a broker."""

REPORT_AGAIN_S = 60.0
RESOLVED_AFTER_S = 0.5
"""A wait is over after it was absent for this time: between two attempts nothing waits for a moment."""

NAMED_MAX = 3


class WaitMessage(NamedTuple):
    """Messages of one kind of wait, and the seconds before the first one."""

    waiting: str
    resolved: str
    after_s: float = REPORT_AFTER_S


SENTENCES = {
    Kind.ACKNOWLEDGEMENT: WaitMessage(
        "{count} for {names} not acknowledged for {seconds:.0f} s",
        "messages for {names} are acknowledged again",
    ),
    Kind.READ: WaitMessage("{names} cannot be read for {seconds:.0f} s", "{names} can be read again"),
    Kind.GROUP: WaitMessage(
        "group {names} waits for its coordinator for {seconds:.0f} s",
        "the coordinator of group {names} responds again",
        GROUP_REPORT_AFTER_S,
    ),
    Kind.TRANSACTIONAL_ID: WaitMessage(
        "transactional id {names} waits for its coordinator for {seconds:.0f} s",
        "the coordinator of transactional id {names} responds again",
        GROUP_REPORT_AFTER_S,
    ),
    Kind.CLUSTER: WaitMessage("no response for {seconds:.0f} s", "the cluster responds again"),
}


class Watch:
    """Selects the lines to print. It has no thread and no clock: ``update`` receives the time."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._say = print_line
        self._reported: dict[tuple[Kind, str], float] = {}
        """Time of the last report by kind and subject; monotonic seconds."""
        self._absent_since: dict[tuple[Kind, str], float] = {}
        """The time since which each reported wait is absent."""
        self._others_at = 0.0
        """Time of the last wait for anything but the cluster."""

    def update(self, found: Sequence[Wait], now: float) -> None:
        """Reports waits that have lasted for some seconds, once a minute, and waits that are over."""
        others = [wait for wait in found if wait.kind is not Kind.CLUSTER]
        if others or any(kind is not Kind.CLUSTER for kind, _ in self._reported):
            # The missing responses of the cluster cause the other waits.
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
            last = self._reported.get((wait.kind, wait.subject))
            if now - wait.since >= GROUP_WAITS_AFTER_S and (last is None or now - last >= REPORT_AGAIN_S):
                due.setdefault((wait.kind, wait.reason), []).append(wait)
        for (kind, reason), together in due.items():
            seconds = max(now - wait.since for wait in together)
            if seconds < SENTENCES[kind].after_s:
                continue
            subjects = sorted({wait.subject for wait in together})
            messages = sum(wait.messages for wait in together)
            message = SENTENCES[kind].waiting.format(
                names=_names(subjects), count=counted(messages, "message"), seconds=seconds
            )
            limit_s = max(wait.tried_s for wait in together)
            tried = f"retried for {limit_s:g} s at most" if limit_s else "retried"
            self._say(f"warning: {message}, {tried}: {reason}")
            self._reported.update({(kind, subject): now for subject in subjects})

    def _end(self, present: set[tuple[Kind, str]], now: float) -> None:
        over: dict[Kind, list[str]] = {}
        for key in list(self._reported):
            if key in present:
                self._absent_since.pop(key, None)
            elif now - self._absent_since.setdefault(key, now) >= RESOLVED_AFTER_S:
                del self._reported[key], self._absent_since[key]
                over.setdefault(key[0], []).append(key[1])
        for kind, subjects in over.items():
            self._say(SENTENCES[kind].resolved.format(names=_names(sorted(subjects))))


def _names(subjects: Sequence[str]) -> str:
    if len(subjects) <= NAMED_MAX + 1:
        return ", ".join(subjects)
    return f"{', '.join(subjects[:NAMED_MAX])} and {len(subjects) - NAMED_MAX} others"


OWN_WARNINGS = ("tidemill.client.coordinator_warnings", "tidemill.client.missing_topic_warnings")
"""The loggers of the client's own warnings of waits."""

_ENDED: list[threading.Event] = []
"""Stop events of the active watches, the most recent one last."""


def stop_watching() -> None:
    """Stops the most recent watch: a wait that ends because its client closes is not resolved."""
    if _ENDED:
        _ENDED[-1].set()


@contextmanager
def watching() -> Iterator[None]:
    """Prints the waits of all clients of the process during the block."""
    watch = Watch(_say)
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(POLL_S):
            try:
                found = wait_reasons.all_waits()
            except RuntimeError:
                continue  # The waits changed during the reading: it reads them again.
            if not ended.is_set():
                watch.update(found, time.monotonic())

    # The client's own warnings come later; they are for programs without this watch.
    levels = {name: logging.getLogger(name).level for name in OWN_WARNINGS}
    for name in levels:
        logging.getLogger(name).setLevel(logging.ERROR)
    thread = threading.Thread(target=run, name="tidemill-waiting", daemon=True)
    _ENDED.append(ended)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        _ENDED.remove(ended)
        thread.join()
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)


def _say(line: str) -> None:
    if sys.stderr.isatty():
        line = f"\r\x1b[K{line}"  # Overwrites the line of a running measurement.
    click.echo(line, err=True)
