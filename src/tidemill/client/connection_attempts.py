"""Opening connections: several brokers side by side, and what is remembered of those that failed."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from tidemill.client.config import ClientConfig
from tidemill.client.connection import Connection
from tidemill.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    NoAnswerYet,
)
from tidemill.model.errors import ErrorCode, TidemillError
from tidemill.wire.apis import API, ApiKey

HEAD_START_S = 1.0
"""How long a broker may take to answer before the next one is tried beside it."""

FORGOTTEN_S = 10.0
"""A broker that nobody has tried for so long after its pause has a new start."""


class Opener(NamedTuple):
    """A broker to try: what names the attempt, its address, and what opens a connection to it."""

    key: Hashable
    address: str
    open: Callable[[], Connection]


class Attempt:
    """A connection that a thread opens. ``connection`` or ``problem`` is there once ``done``."""

    __slots__ = ("address", "connection", "done", "problem")

    def __init__(self, address: str) -> None:
        self.address = address
        self.done = False
        self.connection: Connection | None = None
        self.problem: BaseException | None = None

    def __str__(self) -> str:
        return str(self.problem) if self.problem is not None else f"{self.address} has not answered"


class Openings:
    """The attempts of one client that are under way. For any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Notified when an attempt has ended."""
        self._attempts: dict[Hashable, Attempt] = {}
        self._since: dict[Connection, float] = {}
        self._closed = False

    def open(self, made: Connection) -> None:
        """Opens a connection. BrokerUnreachable with the reason; AuthenticationFailed."""
        self._since[made] = time.monotonic()
        try:
            made.open()
        finally:
            del self._since[made]

    def slow(self, than_s: float) -> list[tuple[float, Connection]]:
        """The connections whose opening takes longer, and since when, in monotonic seconds."""
        now = time.monotonic()
        return [(since, made) for made, since in list(self._since.items()) if now - since > than_s]

    def first(self, openers: Sequence[Opener], deadline: float) -> Connection:
        """The first connection that is open. The next broker is tried once one has failed, or is slow.

        NoAnswerYet at the ``deadline`` (monotonic; the first attempt has a second at least), and
        BrokerUnreachable when all have failed; AuthenticationFailed in their place where a login was refused.
        Slower attempts go on; the next call waits for them, too.
        """
        todo = deque(openers)
        attempts: list[Attempt] = []
        next_at = 0.0
        deadline = max(deadline, time.monotonic() + HEAD_START_S)
        with self._changed:
            while True:
                if self._closed:
                    raise ClientClosed("the client is closed", ErrorCode.NETWORK_EXCEPTION)
                for attempt in attempts:
                    if attempt.connection is not None and not attempt.connection.closed:
                        return attempt.connection
                    if attempt.problem is not None and not isinstance(attempt.problem, ClientError):
                        raise attempt.problem
                now = time.monotonic()
                is_waiting = any(not attempt.done for attempt in attempts)
                if todo and (not is_waiting or now >= next_at):
                    attempts.append(self._begin(todo.popleft()))
                    next_at = now + HEAD_START_S
                elif not is_waiting or now >= deadline:
                    for attempt in attempts:
                        if isinstance(attempt.problem, AuthenticationFailed):
                            raise attempt.problem  # To log in again would not help, and may lock the account.
                    kind = NoAnswerYet if is_waiting else BrokerUnreachable
                    raise kind("no broker can be reached: " + "; ".join(map(str, attempts)))
                else:
                    self._changed.wait(max(0.0, min(deadline, next_at if todo else deadline) - now))

    def _begin(self, opener: Opener) -> Attempt:
        """Has a thread open a connection, unless one does already. Under the lock."""
        running = self._attempts.get(opener.key)
        if running is not None:
            return running
        attempt = self._attempts[opener.key] = Attempt(opener.address)

        def run() -> None:
            try:
                attempt.connection = opener.open()
            except BaseException as problem:  # noqa: BLE001 - the thread that waits for it raises it
                attempt.problem = problem
            finally:
                with self._changed:
                    attempt.done = True
                    del self._attempts[opener.key]
                    self._changed.notify_all()

        threading.Thread(target=run, name=f"tidemill-connect-{opener.address}", daemon=True).start()
        return attempt

    def close(self) -> None:
        """Ends every :meth:`first`."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Failure(NamedTuple):
    """Attempts to use a broker that all failed, since its last success."""

    attempts: int
    until: float
    """When it may be tried again, in monotonic seconds."""
    since: float
    """When the first of them failed, in monotonic seconds."""
    reason: str


class Failures:
    """The brokers of one client that failed, by their ids."""

    def __init__(self, config: ClientConfig, randomness: random.Random) -> None:
        self._config = config
        self._random = randomness
        self._found: dict[int, Failure] = {}

    def failed(self, node_id: int, problem: TidemillError | None = None) -> None:
        """Notes a failure: the broker is left alone for a growing pause, with a fifth of jitter."""
        now = time.monotonic()
        before = self._found.get(node_id)
        if before is not None and now - before.until > FORGOTTEN_S:
            before = None
        count = before.attempts if before else 0
        base = self._config.seconds("reconnect.backoff.ms") * 2 ** min(count, 20)
        pause = min(base, self._config.seconds("reconnect.backoff.max.ms")) * self._random.uniform(0.8, 1.2)
        since = before.since if before else now
        reason = str(problem) if problem else before.reason if before else ""
        self._found[node_id] = Failure(count + 1, now + pause, since, reason)

    def ended(self, node_id: int) -> None:
        """Forgets the failures of a broker that has answered."""
        self._found.pop(node_id, None)

    def pause(self, node_id: int) -> float:
        """Seconds until a broker that failed may be tried again; 0 when now."""
        found = self._found.get(node_id)
        return max(0.0, found.until - time.monotonic()) if found else 0.0

    def reason(self, node_id: int) -> tuple[float, str] | None:
        """Since when a broker fails that is tried now, and why."""
        found = self._found.get(node_id)
        if found is None or not found.reason or time.monotonic() - found.until > FORGOTTEN_S:
            return None
        return found.since, found.reason

    def repeated(self, within_s: float) -> list[tuple[float, str]]:
        """The same of the brokers that were tried more than once, and a moment ago: somebody needs them."""
        now = time.monotonic()
        return [
            (found.since, found.reason)
            for found in list(self._found.values())
            if found.attempts > 1 and found.reason and now - found.until <= within_s
        ]


def slow_open(made: Connection) -> str:
    """What to say of a connection that takes long to open."""
    if made.fileno() < 0:
        return (
            f"broker {made.address} has not taken the connection; is it running, and is a firewall between?"
        )
    return f"broker {made.address} took the connection and has not answered; is it stopped or overloaded?"


def no_answer(connection: Connection, key: ApiKey) -> str:
    """What to say of a request that a broker leaves without an answer."""
    return (
        f"broker {connection.address} has not answered {API[key].name}; is it stopped or overloaded, or is "
        "the network cut?"
    )
