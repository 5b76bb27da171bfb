"""A connection to one broker: sends requests one after the other and receives the responses in that order.

Several threads may send requests, and any thread may wait for its response: a waiting thread reads for all
threads. The socket does not block: a thread that serves several brokers receives the bytes that have arrived,
and only :meth:`Connection.wait` waits for the rest of a response. The announced size of a response is
bounded and allocates nothing, so that a false length closes the connection and has no other cost.
"""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future

import tidemill
from tidemill.client.authentication import (
    RENEW_AGAIN_SECONDS,
    UNLIMITED,
    LoginNotExpected,
    Security,
    SendRequest,
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
    check,
)
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ErrorCode, ProtocolError, TidemillError
from tidemill.model.os_error_texts import fault_of
from tidemill.net.framing import NEED_DATA, FrameReader, FrameSizeError
from tidemill.wire.apis import API, ApiKey, ResponseT, expect_response
from tidemill.wire.header import decode_response, encode_request
from tidemill.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from tidemill.wire.schema import Struct

RECEIVE_SLICE = 256 * 1024
"""Maximum bytes requested in one call. Python allocates this size before it knows how many bytes arrived."""

PREALLOCATED_BYTES_MAX = 64 * 1024 * 1024
"""The largest response whose memory is allocated at its first bytes: it is faster than to enlarge it."""

TLS_ALERT = 0x1503
"""First bytes of a TLS alert: a TLS listener sends one to a client that does not use TLS."""


_AddressInfo = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""A result of ``socket.getaddrinfo``: family, kind, protocol, canonical name, address."""


def _resolve(host: str, port: int, timeout_s: float) -> Sequence[_AddressInfo]:
    """Returns the addresses of a host. Raises OSError, and UnicodeError for an impossible name.

    The system limits a lookup by ``timeout`` and ``attempts`` of resolv.conf, for each name server, and has
    no call that cancels one. A daemon thread does it, which may outlast the timeout, but not the process.
    """
    found: Future[Sequence[_AddressInfo]] = Future()

    def run() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except BaseException as problem:  # noqa: BLE001 - the thread that waits for it raises it
            found.set_exception(problem)

    threading.Thread(target=run, name=f"tidemill-resolve-{host}", daemon=True).start()
    try:
        return found.result(timeout_s)
    except TimeoutError:
        raise OSError(errno.ETIMEDOUT, "No name server has answered in time") from None


def _wait_until_writable(opened: socket.socket, timeout_s: float) -> None:
    """Waits until the socket accepts bytes; raises OSError if another thread has closed the socket."""
    descriptor = opened.fileno()
    if descriptor < 0:
        raise OSError(errno.ENOTCONN, "not connected")
    poller = select.poll()
    poller.register(descriptor, select.POLLOUT)
    poller.poll(int(timeout_s * 1000 + 0.999))


class ConnectionBroken(BrokerUnreachable):
    """The connection ended while a request waited for its response."""

    reason: OSError | None = None


class InFlightRequest:
    """A request in flight. Once ``done``, ``frame`` holds the response without its size."""

    __slots__ = (
        "api_key",
        "connection",
        "correlation_id",
        "done",
        "error",
        "expires_s",
        "frame",
        "sent_s",
        "version",
    )

    def __init__(
        self, connection: Connection, api_key: ApiKey, version: int, correlation_id: int, expires: float
    ) -> None:
        self.connection = connection
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.sent_s = time.monotonic()
        self.expires_s = expires
        self.done = False
        self.error: ClientError | None = None
        self.frame: bytes = b""

    @property
    def wait_text(self) -> str:
        """How long it has waited for the response, for errors: ``within 30.0 s``."""
        return f"within {time.monotonic() - self.sent_s:.1f} s"

    def response(self, response_type: type[ResponseT]) -> ResponseT:
        """Returns the decoded response, of the class of its API; raises the error that ended the connection.

        Raises BrokerUnreachable if the bytes are not a valid response; the connection is closed then.
        """
        if self.error is not None:
            raise self.error
        try:
            return expect_response(decode_response(self.api_key, self.version, self.frame)[1], response_type)
        except ProtocolError as problem:
            raise self.connection.reject_response(problem) from problem


class Connection:
    """A connection and its negotiated versions. Opened once, by :meth:`open`; not reused after a failure."""

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
        self.last_used_s = time.monotonic()
        self.throttled_until_s = 0.0
        """The broker expects no further request of its quota before this time (KIP-219)."""
        self._config = config
        self._client_id = config.str("client.id")
        self._request_timeout_s = config.seconds("request.timeout.ms")
        self._frame_reader = FrameReader(
            4, config.int("response.bytes.max"), "a response", "response.bytes.max", PREALLOCATED_BYTES_MAX
        )
        self.finalized_features: dict[str, int] = {}
        """The levels of the features of the cluster, by name."""
        self._broker_versions: dict[int, tuple[int, int]] = {}
        self._usable_versions: dict[int, int] = {}
        self._socket: socket.socket | None = None
        self._poller = select.poll()
        self._send_lock = threading.Lock()
        self._reader_changed = threading.Condition()
        """Notified when a thread stops reading: responses for other threads may have arrived."""
        self._has_reader = False
        self._pending: deque[InFlightRequest] = deque()
        self._last_correlation_id = 0
        security = security or Security(config)
        self._tls = security.tls
        self._login = security.login
        self._login_session: Session = UNLIMITED
        self._is_reauthenticating = False
        self._has_responded = False
        """Whether the broker has answered a request other than ApiVersions, which needs no login."""
        self._would_block: tuple[type[OSError], ...] = (
            (BlockingIOError,) if self._tls is None else self._tls.would_block
        )
        """Raised by the non-blocking socket if it has no bytes, or accepts none."""
        # OpenSSL forbids concurrent reads and writes of a session, and one thread sends while another
        # receives. No call under the lock waits.
        self._tls_lock = threading.Lock()
        self._socket_lock: contextlib.AbstractContextManager[object] = (
            self._tls_lock if self._tls is not None else contextlib.nullcontext()
        )

    # -- opening ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connects, negotiates versions with the broker, and logs in if the configuration has a login.

        Takes at most ``socket.connection.setup.timeout.ms``. A login fetches its token before that, if it
        has one: the token source has its own timeouts.
        Raises BrokerUnreachable with the reason; AuthenticationFailed when either end rejects the other.
        """
        mechanism = self._login.begin() if self._login is not None else None
        setup_s = self._config.seconds("socket.connection.setup.timeout.ms")
        deadline = time.monotonic() + setup_s
        self._socket = self._connect(deadline)
        self._poller.register(self._socket, select.POLLIN)
        try:
            self._negotiate_versions(deadline)
            if self._login is not None and mechanism is not None:
                self._check_login_supported(mechanism.name)
                self._login_session = authenticate(
                    self._login_requests(deadline), self._login, mechanism, self.address
                )
        except ConnectionBroken as problem:
            self.close()
            refusal = self._tls.refusal(problem.reason, self.address) if self._tls is not None else None
            if refusal is not None:
                raise refusal from problem
            raise BrokerUnreachable(
                f"{self.address} accepted the connection and has not answered the first request "
                f"({str(problem).partition(';')[0]}); is it the port of a Kafka broker, and is "
                "security.protocol the protocol of that listener?",
                broker=self.address,
            ) from problem
        except RequestTimeout as problem:
            raise BrokerUnreachable(
                f"{self.address} accepted the connection and has not answered within {setup_s:g} s; is the "
                "broker stopped or overloaded, and is it a Kafka broker?",
                broker=self.address,
            ) from problem
        except BaseException:
            self.close()
            raise

    def _connect(self, deadline: float) -> socket.socket:
        try:
            found = _resolve(self.host, self.port, deadline - time.monotonic())
        except (OSError, UnicodeError) as problem:  # UnicodeError: a label of the name is empty or too long.
            why = fault_of(problem) if isinstance(problem, OSError) else "it is not a host name"
            raise BrokerUnreachable(
                f"the name of broker {self.address} cannot be resolved: {why}; check "
                "bootstrap.servers and the broker's advertised.listeners",
                broker=self.address,
            ) from problem
        reason: OSError | None = None
        connected = False
        for left, (family, kind, protocol, _, address) in zip(range(len(found), 0, -1), found, strict=True):
            try:
                with contextlib.ExitStack() as opened:
                    new_socket = opened.enter_context(socket.socket(family, kind, protocol))
                    self._set_socket_options(new_socket)
                    # Each address gets a share of the time, so that a silent one leaves time for the next.
                    new_socket.settimeout(max(0.001, (deadline - time.monotonic()) / left))
                    new_socket.connect(address)
                    connected = True
                    new_socket.settimeout(max(0.001, deadline - time.monotonic()))
                    new_socket = self._wrap_socket(new_socket)
                    opened.pop_all()
                    return new_socket
            except OSError as problem:  # Also if the name has an IPv6 address, and this machine has no IPv6.
                reason = problem
        why = "it has no address" if reason is None else fault_of(reason)
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

    def _set_socket_options(self, new_socket: socket.socket) -> None:
        new_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        new_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, key in (
            (socket.SO_SNDBUF, "send.buffer.bytes"),
            (socket.SO_RCVBUF, "receive.buffer.bytes"),
        ):
            if self._config.int(key) > 0:
                new_socket.setsockopt(socket.SOL_SOCKET, option, self._config.int(key))

    def _wrap_socket(self, new_socket: socket.socket) -> socket.socket:
        """Wraps the socket in TLS if configured; makes it non-blocking."""
        if self._tls is not None:
            new_socket = self._tls.wrap(new_socket, self.host)
        new_socket.setblocking(False)
        return new_socket

    def _negotiate_versions(self, deadline: float) -> None:
        version = API[ApiKey.API_VERSIONS].version_max
        message = ApiVersionsRequest(
            client_software_name="tidemill", client_software_version=tidemill.__version__
        )
        while True:
            timeout = min(self._request_timeout_s, max(0.001, deadline - time.monotonic()))
            response = self.call(
                ApiKey.API_VERSIONS, message, ApiVersionsResponse, version=version, timeout=timeout
            )
            if response.error_code != ErrorCode.UNSUPPORTED_VERSION or version == 0:
                break
            known = [k.max_version for k in response.api_keys if k.api_key == ApiKey.API_VERSIONS]
            version = min(version - 1, known[0]) if known else 0
        check(response.error_code, "negotiate versions", broker=self.address)
        self._broker_versions = {k.api_key: (k.min_version, k.max_version) for k in response.api_keys}
        if response.finalized_features_epoch >= 0:
            self.finalized_features = {f.name: f.max_version_level for f in response.finalized_features}

    # -- versions -----------------------------------------------------------------------------------------

    def supports(self, key: ApiKey, version: int = 0) -> bool:
        """Whether both ends support ``key`` in ``version`` or later."""
        theirs = self._broker_versions.get(key)
        spec = API[key]
        return theirs is not None and max(version, spec.version_min, theirs[0]) <= min(
            spec.version_max, theirs[1]
        )

    def version(self, key: ApiKey, at_most: int = 32767) -> int:
        """Returns the highest version of ``key`` that both ends support; raises ClientError without one."""
        chosen = self._usable_versions.get(key)
        if chosen is not None:
            return min(chosen, at_most)
        theirs = self._broker_versions.get(key)
        if not self.supports(key) or theirs is None:
            has = f"versions {theirs[0]} to {theirs[1]}" if theirs else "none"
            spec = API[key]
            raise ClientError(
                f"broker {self.address} has no common version of {spec.name}: it offers {has}, this client "
                f"supports {spec.version_min} to {spec.version_max}; use a newer broker, or do without",
                ErrorCode.UNSUPPORTED_VERSION,
                broker=self.address,
            )
        chosen = min(API[key].version_max, theirs[1])
        self._usable_versions[key] = chosen
        return min(chosen, at_most)

    # -- requests -----------------------------------------------------------------------------------------

    def send(
        self,
        key: ApiKey,
        message: Struct | bytes,
        *,
        version: int | None = None,
        timeout: float | None = None,
        has_response: bool = True,
    ) -> InFlightRequest:
        """Sends a request and returns at once. ``has_response`` is False for Produce with acks=0.

        ``timeout`` is in seconds, by default ``request.timeout.ms``. A later response
        closes the connection.
        """
        if version is None:
            version = self.version(key)
        self.last_used_s = now = time.monotonic()
        if now >= self._login_session.renew_at:
            self._reauthenticate(now)
        request = InFlightRequest(self, key, version, 0, now + (timeout or self._request_timeout_s))
        with self._send_lock:
            self._write_request(request, message, has_response)
        if request.error is not None:
            raise request.error
        return request

    def _write_request(
        self, request: InFlightRequest, message: Struct | bytes, has_response: bool = True
    ) -> None:
        """Writes a request. The caller holds the send lock."""
        if self.closed:
            raise BrokerUnreachable(f"the connection to broker {self.address} is closed", broker=self.address)
        self._last_correlation_id = (self._last_correlation_id + 1) & 0x7FFFFFFF
        request.correlation_id = self._last_correlation_id
        frame = encode_request(
            request.api_key, request.version, request.correlation_id, self._client_id, message
        )
        try:
            if has_response:
                self._pending.append(request)
            else:
                request.done = True
            self._write(frame, request.expires_s)
        except OSError as problem:
            self._fail(self._connection_error(problem))
        except BaseException:  # KeyboardInterrupt: a part of the request may have been sent.
            self._fail(self._interrupted("writing to"))
            raise

    # -- logging in ---------------------------------------------------------------------------------------

    def _login_requests(self, deadline: float) -> SendRequest:
        """Returns the function that sends the requests of a login, until ``deadline``.

        No other thread sends meanwhile.
        """

        def send_request(
            key: ApiKey, message: Struct, response_type: type[ResponseT], version: int | None
        ) -> ResponseT:
            version = self.version(key) if version is None else version
            timeout = min(self._request_timeout_s, max(0.001, deadline - time.monotonic()))
            request = InFlightRequest(self, key, version, 0, time.monotonic() + timeout)
            self._write_request(request, message)
            while not request.done:
                self.wait(request, timeout + 1)
            return request.response(response_type)

        return send_request

    def _check_login_supported(self, mechanism: str) -> None:
        if not self.supports(ApiKey.SASL_AUTHENTICATE):
            raise AuthenticationFailed(
                f"broker {self.address} does not support login by {mechanism}: it is older than Kafka 1.0, "
                "or has no SASL; set security.protocol to plaintext or ssl, or use a newer broker",
                broker=self.address,
            )

    def is_session_expired(self, now: float) -> bool:
        """Whether the SASL session has expired: the broker closes the connection at the next request."""
        return now >= self._login_session.ends_at

    def _reauthenticate(self, now: float) -> None:
        """Logs in again on this connection (KIP-368); other requests continue while the session is valid."""
        with self._send_lock:
            if self._is_reauthenticating or self.closed or now < self._login_session.renew_at:
                return  # Another thread has logged in again, or is doing so.
            self._is_reauthenticating = True
        if self.is_session_expired(now):
            self._reauthenticate_now()
        else:
            threading.Thread(target=self._reauthenticate_now, name="tidemill-login", daemon=True).start()

    def _reauthenticate_now(self) -> None:
        """Logs in; sends nothing else meanwhile, since the broker would treat it as part of the login."""
        if self._login is None:
            return
        try:
            mechanism = self._login.begin()
            with self._send_lock:
                deadline = time.monotonic() + self._request_timeout_s
                self._login_session = authenticate(
                    self._login_requests(deadline), self._login, mechanism, self.address
                )
        except LoginNotExpected:
            again = time.monotonic() + RENEW_AGAIN_SECONDS
            self._login_session = Session(again, self._login_session.ends_at)
        except ClientError as problem:
            self._fail(problem)
        except TidemillError as problem:
            self._fail(AuthenticationFailed(str(problem), broker=self.address))
        finally:
            self._is_reauthenticating = False

    def _write(self, frame: bytes, deadline: float) -> None:
        view = memoryview(frame)
        opened = self._socket
        if opened is None:
            raise OSError(errno.ENOTCONN, "not connected")
        while view:
            try:
                with self._socket_lock:
                    view = view[opened.send(view) :]
            except self._would_block:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise OSError(errno.ETIMEDOUT, "the broker accepts no more bytes") from None
                _wait_until_writable(opened, left_s)

    def wait(self, request: InFlightRequest, timeout: float) -> bool:
        """Waits up to ``timeout`` seconds; returns True once there is a response or an error."""
        deadline = time.monotonic() + timeout
        while not request.done:
            if not self._begin_reading(request, deadline):
                return request.done
            try:
                if (
                    not self._read_until(min(deadline, request.expires_s), request)
                    and time.monotonic() >= deadline
                ):
                    return False
            finally:
                self._end_reading()
        return True

    def _begin_reading(self, request: InFlightRequest | None = None, deadline: float | None = None) -> bool:
        """Waits until no other thread reads; returns False at ``deadline``, or once ``request`` has ended."""
        with self._reader_changed:
            while self._has_reader and (request is None or not request.done):
                left_s = None if deadline is None else deadline - time.monotonic()
                if left_s is not None and left_s <= 0:
                    return False
                self._reader_changed.wait(left_s)
            if request is not None and request.done:
                return False
            self._has_reader = True
            return True

    def _end_reading(self) -> None:
        with self._reader_changed:
            self._has_reader = False
            self._reader_changed.notify_all()

    def _read_until(self, deadline: float, request: InFlightRequest) -> bool:
        """Reads the bytes that arrive first, by ``deadline``; closes on expiry. Returns ``request.done``."""
        if request.done:
            return True
        is_readable = self._readable(max(0.0, deadline - time.monotonic()))
        if is_readable and self._receive():
            return request.done
        if time.monotonic() >= request.expires_s:
            self._fail(self._timeout_error(request))
        return request.done

    def _timeout_error(self, request: InFlightRequest) -> RequestTimeout:
        return RequestTimeout(
            f"broker {self.address} has not answered {API[request.api_key].name} {request.wait_text}; "
            "is it overloaded? raise request.timeout.ms if it only needs longer",
            broker=self.address,
        )

    def call(
        self,
        key: ApiKey,
        message: Struct,
        response_type: type[ResponseT],
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> ResponseT:
        """Sends a request and returns its decoded response."""
        request = self.send(key, message, version=version, timeout=timeout)
        self.wait(request, (timeout or self._request_timeout_s) + 1)
        if not request.done:
            self._fail(self._timeout_error(request))
        return request.response(response_type)

    def only_result(self, key: ApiKey, results: Sequence[ResponseT]) -> ResponseT:
        """Returns the first of ``results``, from the response to a request of API ``key`` for one item.

        Raises BrokerUnreachable if there is none: the response is invalid, and the connection is closed.
        """
        if not results:
            raise self.reject_response(ProtocolError(f"no result of {API[key].name}"))
        return results[0]

    def receive(self) -> None:
        """Reads the bytes that have arrived; for a thread that polls :meth:`fileno` itself.

        Returns at once if another thread reads.
        """
        if not self._begin_reading(deadline=time.monotonic()):
            return
        try:
            while self._readable(0.0) and self._receive():
                pass
        finally:
            self._end_reading()

    def expire(self, now: float) -> bool:
        """Closes the connection if its oldest request has expired; returns whether it did.

        Receives first: the bytes of a response may have waited for a thread that did not poll.
        """
        oldest = self._oldest()
        if oldest is None or now < oldest.expires_s:
            return False
        missing_bytes = self._frame_reader.missing_bytes
        self.receive()
        if oldest.done or self._frame_reader.missing_bytes != missing_bytes:
            return False
        self._fail(self._timeout_error(oldest))
        return True

    def oldest_unanswered(self) -> InFlightRequest | None:
        """The oldest request without a response; None if unread bytes have arrived. From any thread."""
        oldest = self._oldest()
        found = self._socket
        try:
            if oldest is None or found is None or self._has_unread(found):
                return None
            arrived = select.poll()  # The poll object of the reading thread may not be used by another.
            arrived.register(found, select.POLLIN)
            return None if arrived.poll(0) else oldest
        except (OSError, ValueError):
            return None  # It is being closed.

    def _oldest(self) -> InFlightRequest | None:
        """The oldest request in flight, if any: another thread may close the connection at any moment."""
        try:
            return self._pending[0]
        except IndexError:
            return None

    def _has_unread(self, opened: socket.socket) -> bool:
        """Whether TLS has or may have unread bytes: True also while another thread uses the session."""
        if self._tls is None:
            return False
        if not self._tls_lock.acquire(blocking=False):
            return True
        try:
            return self._tls.has_unread(opened)
        finally:
            self._tls_lock.release()

    @property
    def in_flight(self) -> int:
        """The number of requests without a response."""
        return len(self._pending)

    def fileno(self) -> int:
        """The socket's descriptor, to poll for reading."""
        return self._socket.fileno() if self._socket is not None else -1

    # -- receiving ----------------------------------------------------------------------------------------

    def _readable(self, timeout: float) -> bool:
        if self.closed:
            return False
        if self._tls is not None:
            with self._tls_lock:
                if self._socket is not None and self._tls.has_unread(self._socket):
                    return True
        return bool(self._poller.poll(max(0, int(timeout * 1000 + 0.999))))

    def _receive(self) -> bool:
        """Reads the bytes that have arrived, up to the end of one response, which then ends its request.

        Returns False if the response is incomplete. No other thread reads meanwhile.
        """
        try:
            request = self._oldest()
            if request is None:
                raise ProtocolError("a response without a request")
            frame = self._next_frame()
            if frame is None:
                return False
            correlation = int.from_bytes(frame[:4], "big", signed=True)
            if correlation != request.correlation_id:
                raise ProtocolError(f"correlation id {correlation}, expected {request.correlation_id}")
            self.last_used_s = time.monotonic()
            self._has_responded = self._has_responded or request.api_key != ApiKey.API_VERSIONS
            request.frame = frame
            request.done = True
            # Another thread may have closed the connection meanwhile, which ended the request.
            with contextlib.suppress(ValueError):
                self._pending.remove(request)
        except ProtocolError as problem:
            self.reject_response(problem)
        except OSError as problem:
            self._fail(self._connection_error(problem))
        except BaseException:  # KeyboardInterrupt: received bytes may be lost.
            self._fail(self._interrupted("reading from"))
            raise
        return True

    def _next_frame(self) -> bytes | None:
        """Returns the next response, without its size field; None if it is incomplete. Receives no bytes
        after it.
        """
        frames = self._frame_reader
        while (start := frames.next_frame()) == NEED_DATA:
            received = self._receive_bytes(frames.missing_bytes)
            if received is None:
                return None
            frames.receive(received)
        frame = frames.data[start : frames.end]
        frames.consume()
        return frame

    def _receive_bytes(self, count: int) -> bytes | None:
        """Receives at most ``count`` bytes; returns None if none have arrived."""
        opened = self._socket
        if opened is None:
            raise OSError(errno.ENOTCONN, "not connected")
        try:
            with self._socket_lock:
                received = opened.recv(min(count, RECEIVE_SLICE))
        except self._would_block:
            return None
        if not received:
            raise OSError(errno.ECONNRESET, "the broker closed the connection")
        return received

    # -- closing ------------------------------------------------------------------------------------------

    def _connection_error(self, problem: OSError) -> ConnectionBroken:
        text = (
            f"the connection to broker {self.address} broke: {fault_of(problem)}; it is reopened when needed"
        )
        if self._broker_versions and not self._has_responded and self._login is None:
            text += ". If that listener requires a login, set security.protocol=sasl_ssl or sasl_plaintext"
        broken = ConnectionBroken(text, broker=self.address)
        broken.reason = problem
        return broken

    def _interrupted(self, action: str) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"{action} broker {self.address} was interrupted; the connection is reopened when needed",
            broker=self.address,
        )

    def reject_response(self, problem: ProtocolError) -> BrokerUnreachable:
        """Closes the connection after an invalid response, and returns the error for it."""
        is_alert = isinstance(problem, FrameSizeError) and problem.size >> 16 == TLS_ALERT
        found = "a TLS alert: set security.protocol=ssl, or sasl_ssl with a login" if is_alert else problem
        error = BrokerUnreachable(
            f"broker {self.address} sent an invalid response ({found}); check host, port and "
            "security.protocol",
            broker=self.address,
        )
        self._fail(error)
        return error

    def _fail(self, error: ClientError) -> None:
        """Ends every request in flight with ``error``, and closes the connection."""
        self.closed = True
        self._end_pending(error)
        found = self._socket
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError, KeyError, ValueError):
                self._poller.unregister(found)
            found.close()
            self._socket = None
        # A thread that found the connection open before may have added its request since.
        self._end_pending(error)

    def _end_pending(self, error: ClientError) -> None:
        with contextlib.suppress(IndexError):  # The end: another thread may take requests as well.
            while True:
                request = self._pending.popleft()
                request.error = error
                request.done = True

    def close(self) -> None:
        """Closes the connection; requests in flight end with :class:`ClientClosed`."""
        if not self.closed:
            self._fail(
                ClientClosed(f"the connection to {self.address} was closed", ErrorCode.NETWORK_EXCEPTION)
            )
