"""Fetches tokens from an OAuth server with client credentials (RFC 6749, section 4.4; KIP-768).

Sends a ``POST`` of ``grant_type=client_credentials`` and the scope; the header Authorization has client and
secret. The response is bounded in bytes and in time. Redirects are not followed, since they would send the
secret to another server.
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
from tidemill.client.tokens import Token, TokenSource, validated_token
from tidemill.model.errors import ConfigError
from tidemill.model.os_error_texts import fault_of
from tidemill.model.secrets import without

RESPONSE_BYTES_MAX = 1024 * 1024
"""Limit of a server's response; a token has some thousand bytes."""

RETRIABLE_STATUS = (408, 425, 429)
"""Status codes below 500 after which a retry may succeed."""


class EndpointSource(TokenSource):
    """An OAuth server. ``trust`` returns the TLS context, when it is first needed."""

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
        fields = self._fetch_json()
        text = fields.get("access_token") or fields.get("id_token")
        if not isinstance(text, str):
            raise AuthenticationFailed(
                f"{self.name} answered without access_token; does the URL name the token endpoint?"
            )
        life = fields.get("expires_in")
        known = isinstance(life, int | float) and not isinstance(life, bool)
        return validated_token(text, began + float(life) if known and life else None, {}, self.name)

    def _fetch_json(self) -> dict[str, Any]:
        try:
            data = self._post()
            found = json.loads(data)
        except urllib.error.HTTPError as problem:
            raise self._error_of(problem) from None
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

    def _post(self) -> bytes:
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

    def _error_of(self, problem: urllib.error.HTTPError) -> Exception:
        """Builds the exception for an error response (RFC 6749, section 5.2)."""
        with problem:
            try:
                details = json.loads(_read(problem, time.monotonic() + self._timeout_s))
                words = ": ".join(
                    str(details[name]) for name in ("error", "error_description") if details.get(name)
                )
            except (OSError, ValueError, AttributeError, RecursionError, http.client.HTTPException):
                words = ""
        words = printable(without([self._secret], words))
        text = f"{self.name} answered {problem.code}{f' ({words})' if words else ''}"
        if problem.code >= 500 or problem.code in RETRIABLE_STATUS:
            return BrokerUnreachable(f"{text}; the request is retried")
        if 300 <= problem.code < 400:
            return AuthenticationFailed(f"{text}: redirects are not followed; set the target URL")
        return AuthenticationFailed(
            f"{text}; check client id, client secret and scope, and sasl.oauthbearer.token.endpoint.url"
        )

    def _unreachable(self, problem: Exception) -> Exception:
        if isinstance(problem, ssl.SSLCertVerificationError):
            return AuthenticationFailed(
                f"the certificate of {self.name} is refused: {fault_of(problem)}; set its authority with "
                'ssl.truststore.location="..." in sasl.jaas.config, or with https.ca.location'
            )
        return BrokerUnreachable(
            f"{self.name} cannot be reached: {fault_of(problem)}; is it running, and reachable from here?"
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Does not follow redirects: a redirect is a response without a token."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _read(response: Any, deadline: float) -> bytes:
    """Reads the whole response; raises OSError if it is too long or incomplete at ``deadline``."""
    pieces: list[bytes] = []
    count = 0
    while piece := response.read1(65_536):
        count += len(piece)
        if count > RESPONSE_BYTES_MAX:
            raise OSError(f"the response has more than {RESPONSE_BYTES_MAX} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the response is incomplete")
        pieces.append(piece)
    return b"".join(pieces)


def check_url(url: str) -> str:
    """Returns ``url``; raises ConfigError if it is not the URL of a server."""
    try:
        parts = urllib.parse.urlsplit(url)
        well = parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well = False
    if not well or any(c <= " " for c in url):
        raise ConfigError(
            f"sasl.oauthbearer.token.endpoint.url={without_user(url)!r} is not a valid URL; allowed are "
            "https://HOST/PATH, http://HOST/PATH and file:///PATH of a token"
        )
    if "@" in parts.netloc:
        raise ConfigError(
            f"sasl.oauthbearer.token.endpoint.url={without_user(url)!r} has a user or a password before its "
            "host, which is not sent to a token endpoint: omit it, and set client id and secret in "
            "sasl.oauthbearer.client.credentials.client.id and .client.secret, or in sasl.jaas.config"
        )
    return url


def without_user(url: str) -> str:
    """Returns the URL without user, password and query, for messages."""
    rest = url.partition("?")[0]
    scheme, separator, after = rest.partition("://")
    authority, slash, path = after.partition("/")
    return f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
