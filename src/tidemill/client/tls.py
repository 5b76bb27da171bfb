"""TLS for the client's connections, if ``security.protocol`` has it, and the explanation of its failures."""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
from typing import Final

from tidemill.client import keystores
from tidemill.client.errors import AuthenticationFailed, ClientError
from tidemill.model.configs.config_values import ParsedConfig
from tidemill.model.errors import ConfigError
from tidemill.model.os_error_texts import fault_of

logger = logging.getLogger(__name__)

TRUST_STEP = (
    "set the authority that signed it: ssl.truststore.location (or ssl.ca.location, or its PEM text in "
    "ssl.truststore.certificates)"
)
IDENTITY_STEP = (
    "give the client a certificate: ssl.keystore.location with ssl.keystore.password, or "
    "ssl.certificate.location and ssl.key.location"
)
NAME_STEP = (
    "use a name in bootstrap.servers and advertised.listeners that the certificate has; an empty "
    "ssl.endpoint.identification.algorithm disables the check, and lets others impersonate the broker"
)

_FILES = (
    "ssl.ca.location",
    "ssl.truststore.location",
    "ssl.keystore.location",
    "ssl.certificate.location",
    "ssl.key.location",
)

_HOSTNAME_MISMATCH, _IP_MISMATCH, _HAS_EXPIRED, _NOT_YET_VALID = 62, 64, 10, 9
"""OpenSSL's codes (X509_V_ERR_*)."""


class TlsSettings:
    """The TLS settings of one client. Creates the context on first use, and again after a file changed."""

    would_block: Final = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
    """Raised by a non-blocking connection that has no bytes, or accepts none."""

    def __init__(self, config: ParsedConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._context: ssl.SSLContext | None = None
        self._read_at: tuple[tuple[int, int], ...] = ()

    @property
    def has_identity(self) -> bool:
        """Whether the client has a certificate."""
        return _identity_key(self._config) is not None

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection. Raises ConfigError if the first one cannot be created.

        Later errors keep the former context: a file may be half written, or its key not renewed yet.
        """
        with self._lock:
            states = tuple(_state(self._config.str(key)) for key in _FILES)
            if self._context is not None and states == self._read_at:
                return self._context
            try:
                self._context, self._read_at = context_for(self._config), states
            except ConfigError as problem:
                if self._context is None:
                    raise
                logger.warning("%s. Until then connections use the former certificates and key", problem)
            return self._context

    def wrap(self, plain: socket.socket, host: str) -> ssl.SSLSocket:
        """Returns the connection after its handshake; raises OSError if that fails."""
        return self.context().wrap_socket(plain, server_hostname=host)

    def has_unread(self, connection: socket.socket) -> bool:
        """Whether a connection of :meth:`wrap` has received bytes that poll does not report."""
        return isinstance(connection, ssl.SSLSocket) and connection.pending() > 0

    def refusal(self, problem: BaseException | None, address: str) -> ClientError | None:
        """Returns the error for a certificate that one end refuses; None if a retry may help."""
        if isinstance(problem, ssl.SSLCertVerificationError):
            return AuthenticationFailed(
                f"the TLS handshake with broker {address} failed: {fault_of(problem)}; "
                f"{_verify_step(problem)}",
                broker=address,
            )
        reason = getattr(problem, "reason", None) if isinstance(problem, ssl.SSLError) else None
        if not isinstance(reason, str) or "ALERT" not in reason:
            return None
        about_certificate = "CERTIFICATE" in reason or "UNKNOWN_CA" in reason
        if not about_certificate and not ("HANDSHAKE_FAILURE" in reason and not self.has_identity):
            return None
        step = (
            "have it signed by an authority of the broker's ssl.truststore.location, and check that it is "
            "valid today"
            if self.has_identity
            else f"if the broker requires certificates (ssl.client.auth), {IDENTITY_STEP}"
        )
        whose = "the client's certificate" if self.has_identity else "a client without a certificate"
        return AuthenticationFailed(
            f"broker {address} refuses {whose} ({reason.replace('_', ' ').lower()}); {step}", broker=address
        )


def _verify_step(problem: ssl.SSLCertVerificationError) -> str:
    code = problem.verify_code
    if code in (_HOSTNAME_MISMATCH, _IP_MISMATCH):
        return NAME_STEP
    if code in (_HAS_EXPIRED, _NOT_YET_VALID):
        return "have the broker's certificate renewed, and check that this machine's clock is right"
    return TRUST_STEP


def _state(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path) if path else None
    except OSError:
        found = None
    return (found.st_mtime_ns, found.st_size) if found is not None else (0, 0)


def context_for(config: ParsedConfig) -> ssl.SSLContext:
    """Creates the context from ``ssl.*``: authorities, the client's certificate, hostname verification.

    With a configured truststore the system's authorities are not trusted, as in Kafka's other clients.
    """
    trusted = _authorities(config)
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=trusted)
    except ssl.SSLError as problem:
        raise ConfigError(
            f"the certificates of {_trust_key(config)} cannot be used: {fault_of(problem)}"
        ) from None
    # Python 3.13 refuses authorities without the extensions of RFC 5280, which Java and librdkafka accept.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    _load_identity(context, config)
    if config.str("ssl.endpoint.identification.algorithm") == "none":
        context.check_hostname = False
    return context


def _trust_key(config: ParsedConfig) -> str | None:
    """Returns the setting of the trusted authorities; None if the system's are used."""
    keys = ("ssl.ca.location", "ssl.truststore.location", "ssl.truststore.certificates")
    return _only(config, keys)


def _identity_key(config: ParsedConfig) -> str | None:
    """Returns the setting of the client's certificate; None if there is none."""
    return _only(
        config, ("ssl.certificate.location", "ssl.keystore.location", "ssl.keystore.certificate.chain")
    )


def _only(config: ParsedConfig, keys: tuple[str, ...]) -> str | None:
    found = [key for key in keys if config.str(key)]
    if len(found) > 1:
        raise ConfigError(f"{' and '.join(found)} set the same thing in different ways; omit one of them")
    return found[0] if found else None


def check_tls(config: ParsedConfig) -> None:
    """Raises ConfigError for settings that are not compatible; reads no files."""
    _trust_key(config)
    key = _identity_key(config)
    if key is None and config.str("ssl.keystore.key"):
        raise ConfigError(
            "ssl.keystore.key needs ssl.keystore.certificate.chain, the key's certificate as PEM"
        )
    if key is None and config.str("ssl.key.location"):
        raise ConfigError(
            "ssl.key.location needs ssl.certificate.location, the key's certificate as PEM file"
        )
    if key == "ssl.keystore.certificate.chain" and not config.str("ssl.keystore.key"):
        raise ConfigError(
            "ssl.keystore.certificate.chain needs ssl.keystore.key, the certificate's key as PEM"
        )


def _authorities(config: ParsedConfig) -> str | None:
    key = _trust_key(config)
    if key is None:
        return None
    if key == "ssl.truststore.certificates":
        return keystores.certificates(config.str(key), key)
    return keystores.authorities(key, config.str(key), config.str("ssl.truststore.password"))


def _identity(config: ParsedConfig) -> keystores.Identity | None:
    key = _identity_key(config)
    if key is None:
        return None
    password = config.str("ssl.key.password")
    if key == "ssl.keystore.location":
        return keystores.identity(key, config.str(key), config.str("ssl.keystore.password"), password)
    if key == "ssl.keystore.certificate.chain":
        where = "ssl.keystore.key with ssl.keystore.certificate.chain"
        return keystores.identity_of_texts(config.str("ssl.keystore.key"), config.str(key), password, where)
    chain = keystores.read_store(key, config.str(key)).decode("utf-8", "replace")
    named = config.str("ssl.key.location")
    own = keystores.read_store("ssl.key.location", named).decode("utf-8", "replace") if named else chain
    return keystores.identity_of_texts(own, chain, password, "ssl.certificate.location with ssl.key.location")


def _load_identity(context: ssl.SSLContext, config: ParsedConfig) -> None:
    found = _identity(config)
    if found is None:
        return
    with keystores.as_file(found.pem) as path:
        try:
            # Always pass a password: without one, OpenSSL would prompt for it on the terminal.
            context.load_cert_chain(path, password=lambda: found.password)
        except (OSError, ssl.SSLError, ValueError) as problem:
            key = _identity_key(config)
            why = (
                "the key belongs to another certificate; use the key of this certificate"
                if "MISMATCH" in (getattr(problem, "reason", None) or "")
                else f"is ssl.key.password {'right' if found.password else 'missing'}, and the key a PEM?"
            )
            raise ConfigError(f"the client's key and certificate of {key} cannot be used: {why}") from None
