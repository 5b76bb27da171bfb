"""Tokens from an OAuth server, for a client's own credentials (RFC 6749, section 4.4; KIP-768).

``POST`` of ``grant_type=client_credentials`` and the scope; client and secret in the header Authorization.
The answer is bounded in bytes and in time, and no redirect is followed: it would take the secret elsewhere.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import Any

from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable
from tidemill.client.sasl import printable
from tidemill.client.tokens import Token, TokenSource, checked
from tidemill.model.errors import ConfigError
from tidemill.model.faults import fault_of
from tidemill.model.secrets import without

ANSWER_BYTES_MAX = 1024 * 1024
"""Of a server's answer: a token is some thousand bytes."""

AGAIN_LATER = (408, 425, 429)
"""Status codes below 500 after which the same request may succeed."""


class EndpointSource(TokenSource):
    """An OAuth server. ``trust`` gives the TLS settings when they are first needed."""

    def __init__(
        self,
        url: str,
        client_id: str,
        client_secret: str,
        scope: str,
        *,
        url_encode: bool,
        timeout_s: float,
        trust: Callable[[], ssl.SSLContext],
    ) -> None:
        self._url = check_url(url)
        self.name = f"the token endpoint {without_user(url)}"
        self._secret = client_secret
        self._timeout_s = timeout_s
        self._trust = trust
        if url_encode:
            client_id, client_secret = (urllib.parse.quote_plus(text) for text in (client_id, client_secret))
        self._authorization = "Basic " + base64.b64encode(f"{client_id}:{client_secret}".encode()).decode()
        fields = {"grant_type": "client_credentials", **({"scope": scope} if scope else {})}
        self._body = urllib.parse.urlencode(fields).encode()

    def fetch(self) -> Token:
        began = time.time()
        answer = self._answer()
        text = answer.get("access_token") or answer.get("id_token")
        if not isinstance(text, str):
            raise AuthenticationFailed(
                f"{self.name} answered without access_token; does the URL name the token endpoint?"
            )
        life = answer.get("expires_in")
        known = isinstance(life, int | float) and not isinstance(life, bool)
        return checked(text, began + float(life) if known and life else None, {}, self.name)

    def _answer(self) -> dict[str, Any]:
        try:
            data = self._posted()
            found = json.loads(data)
        except urllib.error.HTTPError as problem:
            raise self._refused(problem) from None
        except (OSError, http.client.HTTPException) as problem:
            reason = getattr(problem, "reason", None)
            raise self._unreachable(reason if isinstance(reason, Exception) else problem) from None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise AuthenticationFailed(
                f"{self.name} did not answer with a JSON object; does the URL name the token endpoint?"
            )
        return found

    def _posted(self) -> bytes:
        handlers: list[Any] = [_NoRedirect()]
        if self._url.lower().startswith("https:"):
            handlers.append(urllib.request.HTTPSHandler(context=self._trust()))
        request = urllib.request.Request(
            self._url,
            self._body,
            {
                "Authorization": self._authorization,
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
            method="POST",
        )
        deadline = time.monotonic() + self._timeout_s
        with urllib.request.build_opener(*handlers).open(request, timeout=self._timeout_s) as response:
            return _read(response, deadline)

    def _refused(self, problem: urllib.error.HTTPError) -> Exception:
        """What the server says of the request (RFC 6749, section 5.2)."""
        with problem:
            try:
                told = json.loads(_read(problem, time.monotonic() + self._timeout_s))
                words = ": ".join(
                    str(told[name]) for name in ("error", "error_description") if told.get(name)
                )
            except (OSError, ValueError, AttributeError, RecursionError, http.client.HTTPException):
                words = ""
        words = printable(without([self._secret], words))
        text = f"{self.name} answered {problem.code}{f' ({words})' if words else ''}"
        if problem.code >= 500 or problem.code in AGAIN_LATER:
            return BrokerUnreachable(f"{text}; it is asked again")
        if 300 <= problem.code < 400:
            return AuthenticationFailed(f"{text}: redirects are not followed; give the URL that it leads to")
        return AuthenticationFailed(
            f"{text}; check client id, client secret and scope, and sasl.oauthbearer.token.endpoint.url"
        )

    def _unreachable(self, problem: Exception) -> Exception:
        if isinstance(problem, ssl.SSLCertVerificationError):
            return AuthenticationFailed(
                f"the certificate of {self.name} is refused: {fault_of(problem)}; name its authority with "
                'ssl.truststore.location="..." in sasl.jaas.config, or with https.ca.location'
            )
        return BrokerUnreachable(
            f"{self.name} cannot be reached: {fault_of(problem)}; is it running, and reachable from here?"
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Leaves a redirect what it is: an answer without a token."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _read(response: Any, deadline: float) -> bytes:
    """The whole answer; OSError when it is too long, or does not end in time."""
    pieces: list[bytes] = []
    count = 0
    while piece := response.read1(65_536):
        count += len(piece)
        if count > ANSWER_BYTES_MAX:
            raise OSError(f"the answer has more than {ANSWER_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the answer does not end")
        pieces.append(piece)
    return b"".join(pieces)


def check_url(url: str) -> str:
    """ConfigError for what is no URL of a server."""
    try:
        parts = urllib.parse.urlsplit(url)
        well = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well = False
    if not well or any(c <= " " for c in url):
        raise ConfigError(
            f"sasl.oauthbearer.token.endpoint.url={without_user(url)!r} is no URL; allowed are "
            "https://HOST/PATH, http://HOST/PATH and file:///PATH of a token"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"sasl.oauthbearer.token.endpoint.url={without_user(url)!r} has a user or a password before its "
            "host, which no token endpoint is sent: leave it out, and give client id and secret in "
            "sasl.oauthbearer.client.credentials.client.id and .client.secret, or in sasl.jaas.config"
        )
    return url


def without_user(url: str) -> str:
    """The URL without user and password, and without its query, for messages."""
    rest = url.partition("?")[0]
    scheme, separator, after = rest.partition("://")
    authority, slash, path = after.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
