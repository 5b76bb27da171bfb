"""How a client logs in: what its settings say, as Java's clients, librdkafka and kafka-python name them.

``sasl.jaas.config`` gives what its own settings do not: user and password, client and secret. Settings that
are there themselves go before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from tidemill.client.jaas import JaasEntry, parse_jaas
from tidemill.client.sasl import (
    OAUTHBEARER,
    PLAIN,
    Mechanism,
    OAuthBearerMechanism,
    PlainMechanism,
    check_extensions,
)
from tidemill.client.scram import HASHES, ScramMechanism
from tidemill.model.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from tidemill.client.config import ClientConfig
    from tidemill.client.tokens import RefreshTimes, TokenSource

AWS_MSK_IAM = "AWS_MSK_IAM"
GSSAPI = "GSSAPI"

MODULES = {
    "PlainLoginModule": (PLAIN,),
    "ScramLoginModule": tuple(HASHES),
    "OAuthBearerLoginModule": (OAUTHBEARER,),
    "IAMLoginModule": (AWS_MSK_IAM,),
}
"""Login modules of Java, and the mechanisms that they are for."""

MECHANISMS = (PLAIN, *HASHES, OAUTHBEARER, AWS_MSK_IAM)

EXTENSION = "extension_"
"""Options of OAuthBearerLoginModule that begin so are extensions of OAUTHBEARER (KIP-342)."""


class Login(Protocol):
    """Makes the mechanism for each connection, and says what to do when a broker refuses it."""

    mechanism: str

    def begin(self) -> Mechanism:
        """A new exchange; may ask for a token first. Raises ClientError and ConfigError."""
        ...

    def refused(self) -> str:
        """The next step after a refusal."""
        ...


class PasswordLogin(Login):
    """User and password, by PLAIN or SCRAM."""

    def __init__(self, mechanism: str, username: str, password: str, token_auth: bool) -> None:
        self.mechanism = mechanism
        self.username = username
        self._password = password
        self._token_auth = token_auth

    def begin(self) -> Mechanism:
        if self.mechanism == PLAIN:
            return PlainMechanism(self.username, self._password)
        return ScramMechanism(self.mechanism, self.username, self._password, token_auth=self._token_auth)

    def refused(self) -> str:
        step = f"check user {self.username!r} and its password, in sasl.username and sasl.password or in "
        step += "sasl.jaas.config"
        if self.mechanism != PLAIN:
            step += f", and that the cluster has a password of {self.mechanism} for this user"
        return step


class TokenLogin(Login):
    """A token, by OAUTHBEARER."""

    mechanism = OAUTHBEARER

    def __init__(self, source: TokenSource, times: RefreshTimes, extensions: Mapping[str, str]) -> None:
        from tidemill.client.tokens import TokenCache

        self._tokens = TokenCache(source, times)
        self._extensions = extensions

    def begin(self) -> Mechanism:
        token = self._tokens.get()
        extensions = {**self._extensions, **token.extensions}
        check_extensions(extensions)
        return OAuthBearerMechanism(token.text, extensions)

    def refused(self) -> str:
        expired = self._tokens.drop()
        return (
            f"check that the token of {self._tokens.source.name} is not expired{expired}, and has the "
            "issuer, audience and scope that the brokers expect"
        )


def login_of(config: ClientConfig) -> Login | None:
    """The login that a configuration asks for; None without SASL. Raises ConfigError; asks nobody."""
    if not config.text("security.protocol").startswith("sasl"):
        return None
    text = config.text("sasl.jaas.config")
    entry = parse_jaas(text) if text.strip() else None
    mechanism = _mechanism(config, entry)
    options = entry.options if entry is not None else {}
    if mechanism == PLAIN or mechanism in HASHES:
        return _password_login(config, mechanism, options)
    return _token_login(config, mechanism, options)


def _mechanism(config: ClientConfig, entry: JaasEntry | None) -> str:
    """The mechanism, checked against the login module; the module's own where it has only one."""
    given = config.text("sasl.mechanism")
    if given == GSSAPI or (entry is not None and entry.module == "Krb5LoginModule"):
        raise ConfigError(f"Kerberos (GSSAPI) is not served; use one of {', '.join(MECHANISMS)}")
    if entry is None:
        if not given:
            raise ConfigError(
                f"sasl.mechanism is missing, which security.protocol={config['security.protocol']} needs: "
                f"one of {', '.join(MECHANISMS)}"
            )
        return given
    fitting = MODULES.get(entry.module)
    if fitting is None:
        raise ConfigError(
            f"sasl.jaas.config names the login module {entry.module}, which is not known; use one of "
            f"{', '.join(MODULES)}"
        )
    if not given:
        if len(fitting) > 1:
            raise ConfigError(f"sasl.mechanism is missing; {entry.module} has {' and '.join(fitting)}")
        return fitting[0]
    if given not in fitting:
        raise ConfigError(
            f"sasl.mechanism={given} and the login module {entry.module} of sasl.jaas.config do not go "
            f"together; that module is for {' and '.join(fitting)}"
        )
    return given


def _password_login(config: ClientConfig, mechanism: str, options: Mapping[str, str]) -> PasswordLogin:
    username = config["sasl.username"] or options.get("username")
    password = config["sasl.password"] or options.get("password")
    token_auth = options.get("tokenauth", "").lower() == "true"
    return PasswordLogin(
        mechanism,
        _credential("username", username, mechanism),
        _credential("password", password, mechanism),
        token_auth,
    )


def _credential(name: str, value: str | None, mechanism: str) -> str:
    if not value:
        raise ConfigError(f'{mechanism} needs a {name}: set sasl.{name}, or {name}="..." in sasl.jaas.config')
    if "\0" in value:
        raise ConfigError(f"the {name} of sasl.{name} or sasl.jaas.config has a NUL, which no {name} has")
    return value


def _token_login(config: ClientConfig, mechanism: str, options: Mapping[str, str]) -> TokenLogin:
    from tidemill.client.tokens import RefreshTimes

    extensions = _extensions(config.text("sasl.oauthbearer.extensions"))
    extensions |= {
        name.removeprefix(EXTENSION): value for name, value in options.items() if name.startswith(EXTENSION)
    }
    check_extensions(extensions)
    times = RefreshTimes(
        config["sasl.login.refresh.window.factor"],
        config["sasl.login.refresh.window.jitter"],
        config["sasl.login.refresh.min.period.seconds"],
        config["sasl.login.refresh.buffer.seconds"],
    )
    return TokenLogin(_source(config, mechanism, options), times, extensions)


def _extensions(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, pair in enumerate(text.split(","), start=1):
        name, equals, value = pair.strip().partition("=")
        if equals:
            found[name] = value
        elif name:  # It is not shown: it may be a part of a secret.
            raise ConfigError(f"sasl.oauthbearer.extensions: part {number} is not name=value")
    return found


def _source(config: ClientConfig, mechanism: str, options: Mapping[str, str]) -> TokenSource:
    from tidemill.client import tokens

    given = config["sasl.oauth.token.provider"]
    if given is not None:
        return tokens.ProviderSource(given)
    if mechanism == AWS_MSK_IAM:
        from tidemill.client.msk_iam import provider

        return tokens.ProviderSource(provider([host for host, _ in config["bootstrap.servers"]], options))
    url = config.text("sasl.oauthbearer.token.endpoint.url")
    if not url:
        raise ConfigError(
            "OAUTHBEARER needs a source of tokens: set sasl.oauthbearer.token.endpoint.url with client id "
            "and secret, or sasl.oauth.token.provider=module:function"
        )
    if url.lower().startswith("file:"):
        import urllib.parse
        import urllib.request

        return tokens.FileSource(urllib.request.url2pathname(urllib.parse.urlsplit(url).path))
    return _endpoint(config, url, options)


def _endpoint(config: ClientConfig, url: str, options: Mapping[str, str]) -> TokenSource:
    from tidemill.client.token_endpoint import EndpointSource

    client_id = config["sasl.oauthbearer.client.credentials.client.id"] or options.get("clientId")
    secret = config["sasl.oauthbearer.client.credentials.client.secret"] or options.get("clientSecret")
    if not client_id or not secret:
        missing, name = ("secret", "clientSecret") if client_id else ("id", "clientId")
        raise ConfigError(
            f"sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client."
            f'{missing}, or {name}="..." in sasl.jaas.config'
        )
    return EndpointSource(
        url,
        client_id,
        secret,
        config["sasl.oauthbearer.scope"] or options.get("scope") or "",
        url_encode=config.bool("sasl.oauthbearer.header.urlencode"),
        timeout_s=config.seconds("sasl.login.read.timeout.ms"),
        trust=lambda: _trust_of_endpoint(config, options),
    )


def _trust_of_endpoint(config: ClientConfig, options: Mapping[str, str]) -> ssl.SSLContext:
    """TLS to the token endpoint: by the ``ssl.*`` options of the JAAS line, as in Java, or by a PEM file."""
    from tidemill.client.config import COMMON, KEYS, ClientConfig
    from tidemill.client.tls import context_for

    given: dict[str, Any] = {
        name: value for name, value in options.items() if name in KEYS and name[:4] == "ssl."
    }
    if config["https.ca.location"]:
        given["ssl.ca.location"] = config["https.ca.location"]
    return context_for(ClientConfig(COMMON, {"bootstrap.servers": "unused:1", **given}))


def check_login(config: ClientConfig) -> None:
    """ConfigError for settings of a login that do not go together, or are not enough. Asks nobody."""
    login_of(config)
