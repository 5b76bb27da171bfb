"""One connection to one broker: requests go out one after the other, answers come back in that order.

Requests may be sent by several threads, and any thread may wait for its answer: whoever waits reads for
all. An answer is received straight into one ``bytes`` of its announced size (``MSG_WAITALL``), which the
decoders then read by positions. The announced size is bounded, and memory that no byte has arrived for is
never touched, so that a length that lies costs a closed connection and nothing else.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import struct
import threading
import time
from collections import deque
from functools import partial
from typing import Any

import tidemill
from tidemill.client.authentication import (
    RENEW_AGAIN_SECONDS,
    UNLIMITED,
    NoLoginDue,
    Security,
    Session,
    authenticate,
)
from tidemill.client.config import ClientConfig
from tidemill.client.errors import (
    AuthenticationFailed,
    BrokerUnreachable,
    ClientClosed,
    ClientError,
    RequestTimeout,
    error_for,
)
from tidemill.client.request import Broken, Request
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ErrorCode, ProtocolError, TidemillError
from tidemill.model.faults import fault_of
from tidemill.wire.apis import API, ApiKey
from tidemill.wire.header import encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest

TICK_SECONDS = 1
"""The kernel gives a blocked call back after this long, so that deadlines are looked at."""

RECEIVE_SLICE = 64 * 1024 * 1024
"""Most bytes asked for in one call; a longer answer comes in several pieces."""

TLS_ALERT = 0x1503
"""How an alert of TLS begins: a listener that speaks TLS sends one to who does not."""


def _reason_text(problem: OSError | None) -> str:
    return "it has no address" if problem is None else fault_of(problem)


class Connection:
    """A connection with its negotiated versions. Opened by :meth:`open`; never again after a failure."""

    def __init__(
        self,
        host: str,
        port: int,
        config: ClientConfig,
        node_id: int = -1,
        security: Security | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.node_id = node_id
        self.address = join_address(host, port)
        self.closed = False
        self.used = time.monotonic()
        self._config = config
        self._client_id = config.text("client.id")
        self._timeout = config.seconds("request.timeout.ms")
        self._bytes_max = config.int("response.bytes.max")
        self._versions: dict[int, tuple[int, int]] = {}
        self._chosen: dict[int, int] = {}
        self._socket: Any = None
        self._poll = select.poll()
        self._send_lock = threading.Lock()
        self._reading = threading.Condition()
        """Notified when a thread has stopped to read: the answers that others wait for may be there."""
        self._is_read = False
        self._pending: deque[Request] = deque()
        self._correlation = 0
        security = security or Security(config)
        self._tls = security.tls
        self._login = security.login
        self._login_session: Session = UNLIMITED
        self._renewing = False
        self._is_known = False
        """Whether the broker has answered anything but ApiVersions, which it answers to everybody."""
        # OpenSSL forbids to read and write one session at the same time, and one thread sends while another
        # one receives. No call holds the lock for longer than a tick.
        self._session: Any = threading.Lock() if self._tls is not None else contextlib.nullcontext()

    # -- opening ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connects, learns which versions the broker speaks, and logs in where that is asked for.

        It takes ``socket.connection.setup.timeout.ms`` at most.
        BrokerUnreachable with the reason; AuthenticationFailed when one end refuses the other.
        """
        mechanism = self._login.begin() if self._login is not None else None
        setup_s = self._config.seconds("socket.connection.setup.timeout.ms")
        deadline = time.monotonic() + setup_s
        self._socket = self._connect(deadline)
        self._poll.register(self._socket, select.POLLIN)
        try:
            self._negotiate(deadline)
            if self._login is not None and mechanism is not None:
                self._check_login_known(mechanism.name)
                ask = partial(self._ask, deadline)
                self._login_session = authenticate(ask, self._login, mechanism, self.address)
        except ProtocolError as problem:
            self.close()
            raise BrokerUnreachable(
                f"{self.address} does not answer as a Kafka broker: {problem}; check host, port and "
                "security.protocol",
                broker=self.address,
            ) from problem
        except Broken as problem:
            self.close()
            refusal = self._tls.refusal(problem.reason, self.address) if self._tls is not None else None
            if refusal is not None:
                raise refusal from problem
            raise BrokerUnreachable(
                f"{self.address} took the connection and has not answered the first question "
                f"({str(problem).partition(';')[0]}); is it the port of a Kafka broker, and is "
                "security.protocol what that listener speaks?",
                broker=self.address,
            ) from problem
        except RequestTimeout as problem:
            raise BrokerUnreachable(
                f"{self.address} took the connection and has not answered within {setup_s:g} s; is the "
                "broker stopped or overloaded, and is it a Kafka broker?",
                broker=self.address,
            ) from problem
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline: float) -> Any:
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as problem:  # UnicodeError: a label of the name is empty or too long.
            why = fault_of(problem) if isinstance(problem, OSError) else "it is no host name"
            raise BrokerUnreachable(
                f"the name of broker {self.address} cannot be resolved: {why}; check "
                "bootstrap.servers and the broker's advertised.listeners",
                broker=self.address,
            ) from problem
        reason: OSError | None = None
        connected = False
        for left, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
            try:
                made = socket.socket(family, kind, protocol)
            except OSError as problem:  # The name has an IPv6 address, and this machine no IPv6.
                reason = problem
                continue
            try:
                self._prepare(made)
                # An address that does not answer leaves time for those after it.
                made.settimeout(max(0.001, (deadline - time.monotonic()) / left))
                made.connect(address)
                connected = True
                made.settimeout(max(0.001, deadline - time.monotonic()))
                return self._ready(made)
            except OSError as problem:
                made.close()
                reason = problem
            except BaseException:
                made.close()
                raise
        why = _reason_text(reason)
        if connected and self._tls is not None:
            refusal = self._tls.refusal(reason, self.address)
            if refusal is not None:
                raise refusal from reason
            raise BrokerUnreachable(
                f"the TLS handshake with broker {self.address} failed: {why}; does this port speak TLS?",
                broker=self.address,
            ) from reason
        raise BrokerUnreachable(
            f"no connection to broker {self.address}: {why}; is it running, and reachable from here?",
            broker=self.address,
        ) from reason

    def _prepare(self, made: socket.socket) -> None:
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, key in (
            (socket.SO_SNDBUF, "send.buffer.bytes"),
            (socket.SO_RCVBUF, "receive.buffer.bytes"),
        ):
            if self._config.int(key) > 0:
                made.setsockopt(socket.SOL_SOCKET, option, self._config.int(key))

    def _ready(self, made: socket.socket) -> socket.socket:
        """TLS where it is asked for; then blocking, with a tick, so that one call takes a whole answer."""
        if self._tls is not None:
            made = self._tls.wrap(made, self.host)
            made.settimeout(TICK_SECONDS)
            return made
        made.settimeout(None)
        tick = struct.pack("ll", TICK_SECONDS, 0)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, tick)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, tick)
        return made

    def _negotiate(self, deadline: float) -> None:
        version = API[ApiKey.API_VERSIONS].version_max
        while True:
            question = ApiVersionsRequest(
                client_software_name="tidemill", client_software_version=tidemill.__version__
            )
            timeout = min(self._timeout, max(0.001, deadline - time.monotonic()))
            request = self.send(ApiKey.API_VERSIONS, question, version=version, timeout=timeout)
            while not request.done:
                self.wait(request, timeout + 1)
            if request.error is not None:
                raise request.error
            # A broker that does not know the version answers in version 0, and says what it knows.
            code = struct.unpack_from(">h", request.frame, 4)[0] if len(request.frame) >= 6 else 0
            if code == ErrorCode.UNSUPPORTED_VERSION and version > 0:
                request.version = 0
                known = [
                    k.max_version for k in request.decoded().api_keys if k.api_key == ApiKey.API_VERSIONS
                ]
                version = min(version - 1, known[0]) if known else 0
                continue
            answer = request.decoded()
            if answer.error_code:
                raise error_for(answer.error_code, "negotiate versions", broker=self.address)
            self._versions = {k.api_key: (k.min_version, k.max_version) for k in answer.api_keys}
            return

    # -- versions -----------------------------------------------------------------------------------------

    def supports(self, key: ApiKey, version: int = 0) -> bool:
        """Whether both ends speak ``key`` in ``version`` or a later one."""
        theirs = self._versions.get(key)
        spec = API[key]
        return theirs is not None and max(version, spec.version_min, theirs[0]) <= min(
            spec.version_max, theirs[1]
        )

    def version(self, key: ApiKey, at_most: int = 32767) -> int:
        """The highest version of ``key`` that both ends speak; ClientError where there is none."""
        chosen = self._chosen.get(key)
        if chosen is not None:
            return min(chosen, at_most)
        theirs = self._versions.get(key)
        if not self.supports(key) or theirs is None:
            has = f"versions {theirs[0]} to {theirs[1]}" if theirs else "none"
            spec = API[key]
            raise ClientError(
                f"broker {self.address} has no common version of {spec.name}: it offers {has}, this client "
                f"speaks {spec.version_min} to {spec.version_max}; use a newer broker, or do without",
                ErrorCode.UNSUPPORTED_VERSION,
                broker=self.address,
            )
        chosen = min(API[key].version_max, theirs[1])
        self._chosen[key] = chosen
        return min(chosen, at_most)

    # -- requests -----------------------------------------------------------------------------------------

    def send(
        self,
        key: ApiKey,
        message: Any,
        *,
        version: int | None = None,
        timeout: float | None = None,
        tag: Any = None,
        answered: bool = True,
    ) -> Request:
        """Sends a request and returns at once. ``answered`` is False for Produce with acks=0.

        ``timeout`` is in seconds, ``request.timeout.ms`` unless told; an answer that has not come by then
        closes the connection.
        """
        if version is None:
            version = self.version(key)
        self.used = now = time.monotonic()
        if now >= self._login_session.renew_at:
            self._renew(now)
        request = Request(self, key, version, 0, now + (timeout or self._timeout), tag)
        with self._send_lock:
            self._post(request, message, answered)
        if request.error is not None:
            raise request.error
        return request

    def _post(self, request: Request, message: Any, answered: bool = True) -> None:
        """Writes a request. The caller holds the send lock."""
        if self.closed:
            raise BrokerUnreachable(f"the connection to broker {self.address} is closed", broker=self.address)
        self._correlation = (self._correlation + 1) & 0x7FFFFFFF
        request.correlation_id = self._correlation
        frame = encode_request(
            request.api_key, request.version, request.correlation_id, self._client_id, message
        )
        if answered:
            self._pending.append(request)
        else:
            request.done = True
        try:
            self._write(frame, request.expires)
        except OSError as problem:
            self._fail(self._broken(problem))

    # -- logging in ---------------------------------------------------------------------------------------

    def _ask(self, deadline: float, key: ApiKey, message: Any, version: int | None) -> Any:
        """Asks and waits until ``deadline``, as a part of a login. No other thread sends meanwhile."""
        version = self.version(key) if version is None else version
        timeout = min(self._timeout, max(0.001, deadline - time.monotonic()))
        request = Request(self, key, version, 0, time.monotonic() + timeout, None)
        self._post(request, message)
        while not request.done:
            self.wait(request, timeout + 1)
        return request.response()

    def _check_login_known(self, mechanism: str) -> None:
        if not self.supports(ApiKey.SASL_AUTHENTICATE):
            raise AuthenticationFailed(
                f"broker {self.address} has no login by {mechanism}: it is older than Kafka 1.0, or has no "
                "SASL; set security.protocol to plaintext or ssl, or use a newer broker",
                broker=self.address,
            )

    def session_over(self, now: float) -> bool:
        """Whether the SASL session has expired: the broker closes the connection at the next request."""
        return now >= self._login_session.ends_at

    def _renew(self, now: float) -> None:
        """Logs in again on this connection (KIP-368), beside what goes on while the login still holds."""
        with self._send_lock:
            if self._renewing or self.closed or now < self._login_session.renew_at:
                return  # Another thread has done it, or is at it.
            self._renewing = True
        if self.session_over(now):
            self._renew_now()
        else:
            threading.Thread(target=self._renew_now, name="tidemill-login", daemon=True).start()

    def _renew_now(self) -> None:
        """Nothing else is sent from the first message to the last: the broker would take it for a part."""
        if self._login is None:
            return
        try:
            mechanism = self._login.begin()
            with self._send_lock:
                ask = partial(self._ask, time.monotonic() + self._timeout)
                self._login_session = authenticate(ask, self._login, mechanism, self.address)
        except NoLoginDue:
            again = time.monotonic() + RENEW_AGAIN_SECONDS
            self._login_session = Session(again, self._login_session.ends_at)
        except ClientError as problem:
            self._fail(problem)
        except TidemillError as problem:
            self._fail(AuthenticationFailed(str(problem), broker=self.address))
        finally:
            self._renewing = False

    def _write(self, frame: bytes, deadline: float) -> None:
        view = memoryview(frame)
        opened = self._socket
        if opened is None:
            raise OSError(errno.ENOTCONN, "not connected")
        while view:
            try:
                with self._session:
                    view = view[opened.send(view) :]
            except (BlockingIOError, TimeoutError):
                if time.monotonic() > deadline:
                    raise OSError(errno.ETIMEDOUT, "the broker takes no more bytes") from None

    def wait(self, request: Request, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds for the answer; True once there is one, or an error."""
        deadline = time.monotonic() + timeout
        while not request.done:
            if not self._begin_reading(request, deadline):
                return request.done
            try:
                if not self._step(min(deadline, request.expires), request) and time.monotonic() >= deadline:
                    return False
            finally:
                self._end_reading()
        return True

    def _begin_reading(self, request: Request | None = None, deadline: float | None = None) -> bool:
        """Waits until no other thread reads; False at ``deadline``, and once ``request`` has ended."""
        with self._reading:
            while self._is_read and (request is None or not request.done):
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._reading.wait(left_s)
            if request is not None and request.done:
                return False
            self._is_read = True
            return True

    def _end_reading(self) -> None:
        with self._reading:
            self._is_read = False
            self._reading.notify_all()

    def _step(self, deadline: float, request: Request) -> bool:
        """Reads one answer if one begins by ``deadline``; closes when the request has expired. Done?"""
        if request.done:
            return True
        if self._readable(max(0.0, deadline - time.monotonic())):
            self._receive()
        elif time.monotonic() >= request.expires:
            self._fail(self._late(request))
        return request.done

    def _late(self, request: Request) -> RequestTimeout:
        return RequestTimeout(
            f"broker {self.address} has not answered {API[request.api_key].name} in time; is it overloaded? "
            "raise request.timeout.ms if it only needs longer",
            broker=self.address,
        )

    def call(
        self, key: ApiKey, message: Any, *, version: int | None = None, timeout: float | None = None
    ) -> Any:
        """Sends a request and waits for its decoded answer."""
        request = self.send(key, message, version=version, timeout=timeout)
        self.wait(request, (timeout or self._timeout) + 1)
        if not request.done:
            self._fail(self._late(request))
        return request.response()

    def receive(self) -> None:
        """For a thread that polls :meth:`fileno` itself: takes the answers that have begun to arrive."""
        self._begin_reading()
        try:
            while self._readable(0.0):
                self._receive()
        finally:
            self._end_reading()

    def expire(self, now: float) -> bool:
        """Closes the connection when its oldest request is overdue."""
        oldest = self._pending[0] if self._pending else None
        if oldest is not None and now >= oldest.expires:
            self._fail(self._late(oldest))
            return True
        return False

    def unanswered(self) -> Request | None:
        """The oldest request without an answer; None also where one has begun to arrive. From any thread."""
        try:
            oldest = self._pending[0]
        except IndexError:
            return None
        found = self._socket
        try:
            if found is None or self._has_decrypted(found):
                return None
            arrived = select.poll()  # Not the one of the thread that reads, which no other may use.
            arrived.register(found, select.POLLIN)
            return None if arrived.poll(0) else oldest
        except (OSError, ValueError):
            return None  # It is being closed.

    def _has_decrypted(self, opened: Any) -> bool:
        """Whether TLS has bytes that nobody has taken, or may have: another thread uses the session."""
        if self._tls is None:
            return False
        if not self._session.acquire(blocking=False):
            return True
        try:
            return bool(opened.pending())
        finally:
            self._session.release()

    @property
    def in_flight(self) -> int:
        """How many requests wait for their answer."""
        return len(self._pending)

    def fileno(self) -> int:
        """The socket's descriptor, to poll for reading."""
        return self._socket.fileno() if self._socket is not None else -1

    # -- receiving ----------------------------------------------------------------------------------------

    def _readable(self, timeout: float) -> bool:
        if self.closed:
            return False
        if self._tls is not None:
            with self._session:
                if self._socket is not None and self._socket.pending():
                    return True
        return bool(self._poll.poll(max(0, int(timeout * 1000 + 0.999))))

    def _receive(self) -> None:
        """Reads one whole answer and hands it to its request. No other thread reads meanwhile."""
        try:
            if not self._pending:
                raise ProtocolError("an answer to no request")
            request = self._pending[0]
            deadline = max(request.expires, time.monotonic() + TICK_SECONDS)
            size = int.from_bytes(self._take(4, deadline), "big", signed=True)
            if size >> 16 == TLS_ALERT and self._tls is None:
                raise ProtocolError("an alert of TLS: set security.protocol=ssl, or sasl_ssl with a login")
            if not 4 <= size <= self._bytes_max:
                raise ProtocolError(f"an answer of {size} bytes; allowed are 4 to {self._bytes_max}")
            frame = self._take(size, deadline)
            correlation = int.from_bytes(frame[:4], "big", signed=True)
            if correlation != request.correlation_id:
                raise ProtocolError(f"correlation id {correlation} where {request.correlation_id} was due")
        except ProtocolError as problem:
            self.refuse_answer(problem)
            return
        except OSError as problem:
            self._fail(self._broken(problem))
            return
        try:
            self._pending.popleft()
        except IndexError:
            return  # Another thread has closed meanwhile, which ended the request.
        self.used = time.monotonic()
        self._is_known = self._is_known or request.api_key != ApiKey.API_VERSIONS
        request.frame = frame
        request.done = True

    def _take(self, count: int, deadline: float) -> bytes:
        """Exactly ``count`` bytes. The usual case is one system call and no copy."""
        pieces: list[bytes] = []
        opened = self._socket
        if opened is None:
            raise OSError(errno.ENOTCONN, "not connected")
        flags = 0 if self._tls is not None else socket.MSG_WAITALL
        while True:
            try:
                with self._session:
                    piece = opened.recv(min(count, RECEIVE_SLICE), flags)
            except (BlockingIOError, TimeoutError):
                piece = b""
            else:
                if not piece:
                    raise OSError(errno.ECONNRESET, "the broker closed the connection")
                count -= len(piece)
                if count == 0:
                    return piece if not pieces else b"".join([*pieces, piece])
                pieces.append(piece)
            if not piece and time.monotonic() > deadline:
                raise OSError(errno.ETIMEDOUT, "the answer does not go on")

    # -- closing ------------------------------------------------------------------------------------------

    def _broken(self, problem: OSError) -> Broken:
        text = (
            f"the connection to broker {self.address} broke: {fault_of(problem)}; it is opened again when "
            "needed"
        )
        if self._versions and not self._is_known and self._login is None:
            text += ". If that listener asks for a login, set security.protocol=sasl_ssl or sasl_plaintext"
        broken = Broken(text, broker=self.address)
        broken.reason = problem
        return broken

    def refuse_answer(self, problem: ProtocolError) -> BrokerUnreachable:
        """Closes, since the broker sent what is no answer; the error that says so."""
        error = BrokerUnreachable(
            f"broker {self.address} sent what is no answer ({problem}); check host, port and "
            "security.protocol",
            broker=self.address,
        )
        self._fail(error)
        return error

    def _fail(self, error: ClientError) -> None:
        """Ends every request under way with ``error``, and closes."""
        self.closed = True
        self._end_pending(error)
        found = self._socket
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError, KeyError, ValueError):
                self._poll.unregister(found)
            found.close()
            self._socket = None
        # A thread that found the connection open a moment ago may have put its request there since.
        self._end_pending(error)

    def _end_pending(self, error: ClientError) -> None:
        while self._pending:
            try:
                request = self._pending.popleft()
            except IndexError:
                break
            request.error = error
            request.done = True

    def close(self) -> None:
        """Closes; requests under way end with :class:`ClientClosed`."""
        if not self.closed:
            self._fail(
                ClientClosed(f"the connection to {self.address} was closed", ErrorCode.NETWORK_EXCEPTION)
            )
