"""Creates a client's login from the settings of Java's clients, librdkafka and kafka-python.

``sasl.jaas.config`` provides user and password, or client and secret, that have no setting of their own.
The individual settings override it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from tidemill.client.config_keys import KEYS, MECHANISMS
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
from tidemill.model.configs.config_values import ParsedConfig
from tidemill.model.errors import ConfigError

if TYPE_CHECKING:
    import ssl

    from tidemill.client.tokens import RefreshTimes, TokenSource

AWS_MSK_IAM = "AWS_MSK_IAM"

MODULES = {
    "PlainLoginModule": (PLAIN,),
    "ScramLoginModule": tuple(HASHES),
    "OAuthBearerLoginModule": (OAUTHBEARER,),
    "IAMLoginModule": (AWS_MSK_IAM,),
}
"""Java's login modules, and the mechanisms that they support."""

EXTENSION = "extension_"
"""Options of OAuthBearerLoginModule with this prefix are extensions of OAUTHBEARER (KIP-342)."""


class Login(Protocol):
    """Creates the mechanism of each connection, and provides the next step after a broker's refusal."""

    mechanism: str

    def begin(self) -> Mechanism:
        """Creates a new exchange; may fetch a token first. Raises ClientError and ConfigError."""
        ...

    def refusal_step(self) -> str:
        """Returns the next step after a refusal."""
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

    def refusal_step(self) -> str:
        step = (
            f"check user {self.username!r} and its password, in sasl.username and sasl.password or in "
            "sasl.jaas.config"
        )
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

    def refusal_step(self) -> str:
        expired = self._tokens.drop()
        return (
            f"check that the token of {self._tokens.source.name} is not expired{expired}, and has the "
            "issuer, audience and scope that the brokers expect"
        )


def login_of(config: ParsedConfig) -> Login | None:
    """Returns the login of a configuration; None without SASL. Raises ConfigError; does no I/O."""
    if not config.str("security.protocol").startswith("sasl"):
        return None
    text = config.str("sasl.jaas.config")
    entry = parse_jaas(text) if text.strip() else None
    mechanism = _mechanism(config, entry)
    options = entry.options if entry is not None else {}
    if mechanism == PLAIN or mechanism in HASHES:
        return _password_login(config, mechanism, options)
    return _token_login(config, mechanism, options)


def _mechanism(config: ParsedConfig, entry: JaasEntry | None) -> str:
    """Returns the mechanism, checked against the login module; by default, the module's only mechanism."""
    given = config.str("sasl.mechanism")
    if entry is not None and entry.module == "Krb5LoginModule":
        raise ConfigError(f"Kerberos (GSSAPI) is not supported; use one of {', '.join(MECHANISMS)}")
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
            f"sasl.jaas.config names the login module {entry.module}, which is unknown; use one of "
            f"{', '.join(MODULES)}"
        )
    if not given:
        if len(fitting) > 1:
            raise ConfigError(f"sasl.mechanism is missing; {entry.module} has {' and '.join(fitting)}")
        return fitting[0]
    if given not in fitting:
        raise ConfigError(
            f"sasl.mechanism={given} and the login module {entry.module} of sasl.jaas.config are not "
            f"compatible; that module supports {' and '.join(fitting)}"
        )
    return given


def _password_login(config: ParsedConfig, mechanism: str, options: Mapping[str, str]) -> PasswordLogin:
    username = config.str("sasl.username") or options.get("username")
    password = config.str("sasl.password") or options.get("password")
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
        raise ConfigError(
            f"the {name} of sasl.{name} or sasl.jaas.config has a NUL character, which no {name} has"
        )
    return value


def _token_login(config: ParsedConfig, mechanism: str, options: Mapping[str, str]) -> TokenLogin:
    from tidemill.client.tokens import RefreshTimes

    extensions = _extensions(config.str("sasl.oauthbearer.extensions"))
    extensions |= {
        name.removeprefix(EXTENSION): value for name, value in options.items() if name.startswith(EXTENSION)
    }
    check_extensions(extensions)
    times = RefreshTimes(
        config.float("sasl.login.refresh.window.factor"),
        config.float("sasl.login.refresh.window.jitter"),
        config.int("sasl.login.refresh.min.period.seconds"),
        config.int("sasl.login.refresh.buffer.seconds"),
    )
    return TokenLogin(_source(config, mechanism, options), times, extensions)


def _extensions(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, pair in enumerate(text.split(","), start=1):
        name, equals, value = pair.strip().partition("=")
        if equals:
            found[name] = value
        elif name:  # The text is not shown: it may be a part of a secret.
            raise ConfigError(f"sasl.oauthbearer.extensions: part {number} is not name=value")
    return found


def _source(config: ParsedConfig, mechanism: str, options: Mapping[str, str]) -> TokenSource:
    from tidemill.client import tokens

    given = config["sasl.oauth.token.provider"]
    if given is not None:
        return tokens.ProviderSource(given)
    if mechanism == AWS_MSK_IAM:
        from tidemill.client.msk_iam import provider

        return tokens.ProviderSource(provider([host for host, _ in config["bootstrap.servers"]], options))
    url = config.str("sasl.oauthbearer.token.endpoint.url")
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


def _endpoint(config: ParsedConfig, url: str, options: Mapping[str, str]) -> TokenSource:
    from tidemill.client.token_endpoint import EndpointSource

    client_id = config.str("sasl.oauthbearer.client.credentials.client.id") or options.get("clientId")
    secret = config.str("sasl.oauthbearer.client.credentials.client.secret") or options.get("clientSecret")
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
        config.str("sasl.oauthbearer.scope") or options.get("scope", ""),
        url_encode=config.bool("sasl.oauthbearer.header.urlencode"),
        timeout_s=config.seconds("sasl.login.read.timeout.ms"),
        trust=lambda: _trust_of_endpoint(config, options),
    )


def _trust_of_endpoint(config: ParsedConfig, options: Mapping[str, str]) -> ssl.SSLContext:
    """Creates the TLS context for the token endpoint.

    Uses the ``ssl.*`` options of the JAAS entry, as in Java, or a PEM file.
    """
    from tidemill.client.tls import context_for

    values = {
        name: key.parse(options[name]) if name in options else key.default
        for name, key in KEYS.items()
        if name.startswith("ssl.")
    }
    if config.str("https.ca.location"):
        values["ssl.ca.location"] = config.str("https.ca.location")
    return context_for(ParsedConfig(values))
