"""Opens connections to several brokers in parallel, and remembers the brokers that failed."""

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
    ConnectionAttemptPending,
)
from tidemill.model.errors import ErrorCode, TidemillError
from tidemill.wire.apis import API, ApiKey

HEAD_START_S = 1.0
"""How long an attempt may take before the next broker is tried in parallel."""

FORGOTTEN_S = 10.0
"""The failures of a broker that was not tried for this long after its pause are forgotten."""


class Opener(NamedTuple):
    """A broker to try: the key of the attempt, the address, and a function that opens a connection."""

    key: Hashable
    address: str
    open: Callable[[], Connection]


class Attempt:
    """A connection that a thread opens. Once ``done``, ``connection`` or ``problem`` is set."""

    __slots__ = ("address", "connection", "done", "problem")

    def __init__(self, address: str) -> None:
        self.address = address
        self.done = False
        self.connection: Connection | None = None
        self.problem: BaseException | None = None

    def __str__(self) -> str:
        return str(self.problem) if self.problem is not None else f"{self.address} has not answered"


class ConnectionAttempts:
    """The attempts of one client that are in progress. For any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        """Notified when an attempt has ended."""
        self._attempts: dict[Hashable, Attempt] = {}
        self._since: dict[Connection, float] = {}
        self._closed = False

    def open(self, made: Connection) -> None:
        """Opens a connection. Raises BrokerUnreachable with the reason, or AuthenticationFailed."""
        self._since[made] = time.monotonic()
        try:
            made.open()
        finally:
            del self._since[made]

    def slow_attempts(self, than_s: float) -> list[tuple[float, Connection]]:
        """Returns the connections whose opening takes longer, each after its start in monotonic seconds."""
        now = time.monotonic()
        return [(since, made) for made, since in list(self._since.items()) if now - since > than_s]

    def open_first(self, openers: Sequence[Opener], deadline: float) -> Connection:
        """Returns the first connection that opens. Tries the next broker once one has failed or is slow.

        Raises ConnectionAttemptPending at ``deadline`` (monotonic; the first attempt has at least a second),
        and BrokerUnreachable if all have failed; AuthenticationFailed instead if a login was refused.
        Slower attempts continue; the next call waits for them as well.
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
                    attempts.append(self._start(todo.popleft()))
                    next_at = now + HEAD_START_S
                elif not is_waiting or now >= deadline:
                    for attempt in attempts:
                        if isinstance(attempt.problem, AuthenticationFailed):
                            raise attempt.problem  # Another login would not help, and may lock the account.
                    kind = ConnectionAttemptPending if is_waiting else BrokerUnreachable
                    raise kind("no broker can be reached: " + "; ".join(map(str, attempts)))
                else:
                    self._changed.wait(max(0.0, min(deadline, next_at if todo else deadline) - now))

    def _start(self, opener: Opener) -> Attempt:
        """Starts a thread that opens a connection, unless one is running. The caller holds the lock."""
        running = self._attempts.get(opener.key)
        if running is not None:
            return running
        attempt = Attempt(opener.address)

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
        self._attempts[opener.key] = attempt  # The thread waits for the lock before it removes the attempt.
        return attempt

    def close(self) -> None:
        """Makes every :meth:`open_first` raise ClientClosed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class Failure(NamedTuple):
    """The failed attempts to use a broker since its last success."""

    attempts: int
    until: float
    """When the broker may be tried again, in monotonic seconds."""
    since: float
    """When the first attempt failed, in monotonic seconds."""
    reason: str


class BrokerFailures:
    """The failed brokers of one client, by their ids."""

    def __init__(self, config: ClientConfig, randomness: random.Random) -> None:
        self._config = config
        self._random = randomness
        self._found: dict[int, Failure] = {}

    def record(self, node_id: int, problem: TidemillError | None = None) -> None:
        """Records a failure: the broker is not tried during a growing pause, with a jitter of a fifth."""
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

    def clear(self, node_id: int) -> None:
        """Forgets the failures of a broker that answered."""
        self._found.pop(node_id, None)

    def delay(self, node_id: int) -> float:
        """Seconds until a failed broker may be tried again; 0 if it may be tried now."""
        found = self._found.get(node_id)
        return max(0.0, found.until - time.monotonic()) if found else 0.0

    def reason(self, node_id: int) -> tuple[float, str] | None:
        """Returns the time of the first failure of a broker in use, and the reason; None if it works."""
        found = self._found.get(node_id)
        if found is None or not found.reason or time.monotonic() - found.until > FORGOTTEN_S:
            return None
        return found.since, found.reason

    def repeated(self, within_s: float) -> list[tuple[float, str]]:
        """As :meth:`reason`, for all brokers that failed more than once, and lately: a caller needs them."""
        now = time.monotonic()
        return [
            (found.since, found.reason)
            for found in list(self._found.values())
            if found.attempts > 1 and found.reason and now - found.until <= within_s
        ]


def slow_open_text(made: Connection) -> str:
    """Describes a connection that takes long to open."""
    if made.fileno() < 0:
        return (
            f"broker {made.address} has not accepted the connection; is it running, and reachable from here?"
        )
    return f"broker {made.address} accepted the connection and has not answered; is it stopped or overloaded?"


def no_response_text(connection: Connection, key: ApiKey) -> str:
    """Describes a request that a broker has not answered."""
    return (
        f"broker {connection.address} has not answered {API[key].name}; is it stopped or overloaded, or is "
        "the network cut?"
    )
