"""Tokens of OAUTHBEARER: their sources, and the cache that decides how long a token is used.

===================  =====================================================  ===============================
source               settings                                               Java's counterpart
===================  =====================================================  ===============================
an OAuth server      ``sasl.oauthbearer.token.endpoint.url`` (http, https)  ClientCredentialsJwtRetriever
a file               the same with ``file:``                                FileJwtRetriever
a callable           ``sasl.oauth.token.provider``                          its login callback handler
the signer for MSK   ``sasl.mechanism=AWS_MSK_IAM``                         IAMClientCallbackHandler
===================  =====================================================  ===============================

A token is fetched when a connection logs in after ``sasl.login.refresh.window.factor`` of the last token's
lifetime. If the fetch fails, the last token is used as long as it is valid. Source: KIP-255, KIP-768.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable, ClientError
from tidemill.model.errors import ConfigError
from tidemill.model.os_error_texts import fault_of
from tidemill.model.secrets import HIDDEN

logger = logging.getLogger(__name__)

TOKEN_BYTES_MAX = 256 * 1024
"""Far larger than the tokens of identity providers, and smaller than a broker's limit for first requests."""

MILLISECONDS_FROM = 100_000_000_000
"""A time of at least this number is in milliseconds: in seconds it would be in the year 5138."""

RETRY_SECONDS = 10.0
"""After a failed fetch, how long a token that is still valid is used before the next attempt."""


class Token(NamedTuple):
    """A token; ``expires_s`` is in seconds since 1970, None if unknown."""

    text: str
    expires_s: float | None
    extensions: Mapping[str, str] = {}

    def __repr__(self) -> str:
        return f"Token({HIDDEN}, expires_s={self.expires_s})"


class TokenSource(Protocol):
    """A source of tokens.

    Raises AuthenticationFailed for a refusal, BrokerUnreachable if a retry may help.
    """

    name: str

    def fetch(self) -> Token:
        """Fetches a new token; blocks."""
        ...


class RefreshTimes(NamedTuple):
    """When a token is replaced, by ``sasl.login.refresh.*``: fractions of its lifetime, and seconds."""

    window: float = 0.8
    jitter: float = 0.05
    period_s_min: float = 60.0
    buffer_s: float = 300.0

    def renew_at(self, now_s: float, expires_s: float | None, draw: float) -> float:
        """Returns the time from which a token fetched at ``now_s`` is replaced; ``draw`` is 0 to 1.

        As in Kafka's clients: between the minimum period and the buffer before expiry, if both fit.
        """
        if expires_s is None or expires_s <= now_s:
            return now_s
        life = expires_s - now_s
        wanted = now_s + life * min(1.0, self.window + self.jitter * draw)
        if life <= self.period_s_min + self.buffer_s:
            return wanted
        return max(min(wanted, expires_s - self.buffer_s), now_s + self.period_s_min)


class TokenCache:
    """The token with which the connections of one client log in. Thread-safe."""

    def __init__(
        self, source: TokenSource, times: RefreshTimes, clock: Callable[[], float] = time.time
    ) -> None:
        self.source = source
        self._times = times
        self._clock = clock
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at = 0.0

    def get(self) -> Token:
        """Returns the token for a login. Raises the source's error if no valid token is left."""
        with self._lock:
            now = self._clock()
            if self._token is not None and now < self._renew_at:
                return self._token
            try:
                token = self.source.fetch()
            except ClientError as problem:
                return self._valid_or_raise(problem, now)
            self._token = token
            self._renew_at = self._times.renew_at(now, token.expires_s, random.random())
            return token

    def _valid_or_raise(self, problem: ClientError, now: float) -> Token:
        """Returns the former token while it is valid; otherwise raises ``problem``, the fetch's error."""
        token = self._token
        if token is None or token.expires_s is None or token.expires_s <= now:
            raise problem
        logger.warning("%s. The last token is used; it is valid for %.0f s", problem, token.expires_s - now)
        self._renew_at = min(now + RETRY_SECONDS, token.expires_s)
        return token

    def drop(self) -> str:
        """Forgets the token after a broker's refusal; returns a text if it had expired."""
        with self._lock:
            token, self._token = self._token, None
        if token is None or token.expires_s is None:
            return ""
        expired_s = self._clock() - token.expires_s
        return f" (it expired {expired_s:.0f} s ago by the clock of this machine)" if expired_s > 0 else ""


def validated_token(text: Any, expires: Any, extensions: Mapping[str, str], source: str) -> Token:
    """Validates a token. ``expires`` is s or ms since 1970, or None; a JWT may expire earlier."""
    if isinstance(text, bytes):
        text = text.decode("ascii", "replace")
    if not isinstance(text, str):
        raise AuthenticationFailed(f"{source} returned {type(text).__name__}, but a token is text")
    text = text.strip()
    if not text or len(text) > TOKEN_BYTES_MAX or not text.isascii() or any(c <= " " for c in text):
        raise AuthenticationFailed(
            f"{source} returned an invalid token of {len(text)} characters; allowed are 1 to "
            f"{TOKEN_BYTES_MAX} of printable ASCII without blanks"
        )
    ends = [moment for moment in (jwt_expiry(text),) if moment is not None]
    if isinstance(expires, int | float) and not isinstance(expires, bool):
        ends.append(expires / 1000 if expires >= MILLISECONDS_FROM else float(expires))
    return Token(text, min(ends, default=None), dict(extensions))


def jwt_expiry(text: str) -> float | None:
    """Returns ``exp`` of a JWT, unverified: only the broker verifies tokens. None if it is not a JWT."""
    parts = text.split(".")
    if len(parts) < 2:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        moment = claims["exp"]
        return float(moment) if isinstance(moment, int | float) else None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


class FileSource(TokenSource):
    """A file that another program keeps up to date, such as Kubernetes' projected tokens."""

    def __init__(self, path: str) -> None:
        self.name = f"the token file {path}"
        self._path = path

    def fetch(self) -> Token:
        try:
            with open(self._path, "rb") as file:
                data = file.read(TOKEN_BYTES_MAX + 1)
        except OSError as problem:
            raise BrokerUnreachable(
                f"{self.name} cannot be read: {fault_of(problem)}; correct "
                "sasl.oauthbearer.token.endpoint.url"
            ) from None
        return validated_token(data, None, {}, self.name)


Provider = Callable[[], Any]


class ProviderSource(TokenSource):
    """A callable of the user: without arguments, it returns a token, or a token and its expiry."""

    def __init__(self, provider: Provider | str) -> None:
        self._provider = provider
        named = provider if isinstance(provider, str) else getattr(provider, "__qualname__", "")
        self.name = f"sasl.oauth.token.provider={named or type(provider).__name__}"

    def fetch(self) -> Token:
        provider = load_provider(self._provider) if isinstance(self._provider, str) else self._provider
        try:
            given = provider()
        except (ClientError, ConfigError):
            raise
        except OSError as problem:
            raise BrokerUnreachable(
                f"{self.name} returned no token: {_fault(problem)}; is its service reachable from here?"
            ) from problem
        except Exception as problem:
            raise AuthenticationFailed(
                f"{self.name} returned no token: {_fault(problem)}; correct the function, or its input"
            ) from problem
        return self._token_of(given)

    def _token_of(self, given: Any) -> Token:
        if isinstance(given, Token):
            return validated_token(given.text, given.expires_s, given.extensions, self.name)
        if isinstance(given, tuple) and len(given) >= 2:
            # As in confluent-kafka: token, expiry, principal, extensions.
            extensions = given[3] if len(given) > 3 and isinstance(given[3], Mapping) else {}
            return validated_token(given[0], given[1], extensions, self.name)
        return validated_token(given, None, {}, self.name)


def _fault(problem: Exception) -> str:
    return f"{type(problem).__name__}: {problem}"


def load_provider(text: str) -> Provider:
    """Imports the callable ``module:function``; raises ConfigError if there is none."""
    module, colon, path = text.partition(":")
    form = "sasl.oauth.token.provider is module:function, of a function that returns a token"
    if not colon or not module or not path:
        raise ConfigError(f"sasl.oauth.token.provider={text!r} is invalid: {form}")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except ImportError as problem:
        raise ConfigError(
            f"sasl.oauth.token.provider={text!r}: module {module} cannot be imported ({problem}); install it "
            "where this process, or Spark's executors, run"
        ) from None
    except AttributeError:
        raise ConfigError(
            f"sasl.oauth.token.provider={text!r}: module {module} has no {path}; {form}"
        ) from None
    if not callable(found):
        # An object with a method of that name, as in kafka-python.
        found = getattr(found, "token", None)
    if not callable(found):
        raise ConfigError(f"sasl.oauth.token.provider={text!r} cannot be called: {form}")
    provider: Provider = found
    return provider
