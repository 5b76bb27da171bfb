"""The meaning of login settings; secrets are shown nowhere."""

from __future__ import annotations

import logging
import pickle
import traceback
from typing import Any

import pytest

from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import COMMON, PRODUCER
from tidemill.client.login import PasswordLogin, TokenLogin, login_of
from tidemill.client.sasl import OAuthBearerMechanism, PlainMechanism, check_extensions
from tidemill.client.scram import ScramMechanism
from tidemill.client.tokens import ProviderSource, Token
from tidemill.model.errors import ConfigError, ProtocolError

PLAIN_LINE = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="p4ssword";'
)
SCRAM_LINE = PLAIN_LINE.replace("plain.Plain", "scram.Scram")
OAUTH_LINE = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
    'clientId="me" clientSecret="cl13nt-s3cret" scope="all" extension_logicalCluster="lkc-1";'
)
URL = "sasl.oauthbearer.token.endpoint.url"


def config(**settings: Any) -> ClientConfig:
    given = {"bootstrap.servers": "unused:1", "security.protocol": "SASL_SSL"}
    return ClientConfig(COMMON, {**given, **{name.replace("__", "."): v for name, v in settings.items()}})


def password_login(**settings: Any) -> PasswordLogin:
    made = login_of(config(**settings))
    assert isinstance(made, PasswordLogin)
    return made


def test_without_sasl_there_is_no_login() -> None:
    assert login_of(ClientConfig(COMMON, {"bootstrap.servers": "unused:1"})) is None


@pytest.mark.parametrize(
    "settings",
    [
        {"sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_LINE},
        {"sasl.jaas.config": PLAIN_LINE},  # The module has only this mechanism. librdkafka
        {"sasl.mechanisms": "plain", "sasl.username": "u", "sasl.password": "p4ssword"},  # librdkafka
        {
            "sasl.mechanism": "PLAIN",
            "sasl.plain.username": "u",
            "sasl.plain.password": "p4ssword",
        },  # kafka-python
    ],
)
def test_user_and_password_by_the_names_of_each_client(settings: dict[str, str]) -> None:
    mechanism = password_login(**settings).begin()
    assert isinstance(mechanism, PlainMechanism)
    assert mechanism.first() == b"\0u\0p4ssword"
    assert mechanism.respond(b"") is None


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_the_step_after_a_refused_password_names_the_scram_mechanism(mechanism: str) -> None:
    keys = {"sasl.mechanism": mechanism, "sasl.username": "u", "sasl.password": "p4ssword"}
    more = (
        "" if mechanism == "PLAIN" else f", and that the cluster has a password of {mechanism} for this user"
    )
    assert password_login(**keys).refusal_step() == (
        f"check user 'u' and its password, in sasl.username and sasl.password or in sasl.jaas.config{more}"
    )


def test_individual_settings_override_the_jaas_entry() -> None:
    login = password_login(**{"sasl.jaas.config": PLAIN_LINE, "sasl.username": "other"})
    assert login.begin().first() == b"\0other\0p4ssword"


def test_scram_is_configured_by_a_jaas_entry() -> None:
    login = password_login(**{"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": SCRAM_LINE})
    mechanism = login.begin()
    assert isinstance(mechanism, ScramMechanism)
    assert mechanism.first().startswith(b"n,,n=u,r=")


def test_scram_uses_a_delegation_token() -> None:
    line = SCRAM_LINE.replace(";", ' tokenauth="true";')
    login = password_login(**{"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": line})
    assert login.begin().first().endswith(b",tokenauth=true")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({}, r"sasl.mechanism is missing, which security.protocol=sasl_ssl needs: one of PLAIN, SCRAM"),
        (
            {"sasl.mechanism": "GSSAPI"},
            r"=GSSAPI: allowed is PLAIN, .*Kerberos \(GSSAPI\) is not supported",
        ),
        ({"sasl.mechanism": "SCRAM"}, "sasl.mechanism=SCRAM: allowed is PLAIN, SCRAM-SHA-256, "),
        ({"sasl.mechanism": "PLAIN"}, "PLAIN needs a username: set sasl.username"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u"}, "PLAIN needs a password: set sasl.password"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "u\0", "sasl.password": "p"}, "has a NUL"),
        (
            {"sasl.jaas.config": SCRAM_LINE},
            "sasl.mechanism is missing; ScramLoginModule has SCRAM-SHA-256 and",
        ),
        (
            {"sasl.mechanism": "PLAIN", "sasl.jaas.config": SCRAM_LINE},
            "PLAIN and the login module ScramLoginModule of sasl.jaas.config are not compatible",
        ),
        ({"sasl.jaas.config": "com.sun.security.auth.module.Krb5LoginModule required;"}, "Kerberos"),
        (
            {"sasl.jaas.config": "a.OwnLoginModule required;"},
            "OwnLoginModule, which is unknown; use one of",
        ),
        ({"sasl.mechanism": "OAUTHBEARER"}, "OAUTHBEARER needs a source of tokens: set " + URL),
        ({"sasl.mechanism": "OAUTHBEARER", URL: "https://h/t"}, "client.id, or clientId="),
        (
            {"sasl.mechanism": "OAUTHBEARER", URL: "ftp://h/t", "sasl.jaas.config": OAUTH_LINE},
            "'ftp://h/t' is not a valid URL; allowed are https",
        ),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": "here"}, "nor module:function"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauth.token.provider": 7}, "neither callable nor"),
        (
            {"sasl.jaas.config": OAUTH_LINE.replace("lkc-1", "\\n\\1"), URL: "https://h/t"},
            "extension logicalCluster: its value must be printable",
        ),
        (
            {"sasl.jaas.config": OAUTH_LINE, URL: "https://h/t", "sasl.oauthbearer.extensions": "a=b, c"},
            "extensions: part 2 is not name=value",
        ),
        (
            {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": "a.IAMLoginModule required awsSts=x;"},
            "awsSts",
        ),
    ],
)
def test_errors_of_wrong_settings_name_the_setting(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        config(**settings)
    assert "p4ssword" not in str(caught.value)
    assert "s3cret" not in str(caught.value)


def test_a_login_without_sasl_in_the_protocol_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    config(**{"security.protocol": "ssl", "sasl.mechanism": "PLAIN", "sasl.jaas.config": PLAIN_LINE})
    assert "security.protocol=ssl does not log in" in caplog.text


def a_token() -> tuple[str, float]:
    return "t0ken", 4_000_000_000


def token_login(**settings: Any) -> TokenLogin:
    made = login_of(config(**settings))
    assert isinstance(made, TokenLogin)
    return made


def test_a_token_of_a_callable_with_the_extensions_of_the_settings() -> None:
    provider = a_token
    keys = {"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.extensions": "logicalCluster=lkc-1, pool=p 1"}
    mechanism = token_login(**keys, sasl__oauth__token__provider=provider).begin()
    assert isinstance(mechanism, OAuthBearerMechanism)
    assert mechanism.first() == b"n,,\x01auth=Bearer t0ken\x01logicalCluster=lkc-1\x01pool=p 1\x01\x01"
    assert mechanism.respond(b"") is None


def test_the_callable_may_be_named_as_text_and_the_keyword_is_that_of_kafka_python() -> None:
    text = f"{__name__}:a_token"
    made = ClientConfig(
        COMMON,
        bootstrap_servers="x:1",
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=text,
    )
    login = login_of(pickle.loads(pickle.dumps(made)))
    assert login is not None
    assert b"Bearer t0ken" in login.begin().first()


def test_a_jaas_entry_has_client_secret_scope_and_extensions() -> None:
    login = token_login(
        **{"sasl.mechanism": "OAUTHBEARER", URL: "https://h/t", "sasl.jaas.config": OAUTH_LINE}
    )
    assert login._extensions == {"logicalCluster": "lkc-1"}
    source: Any = login._tokens.source
    assert source._body == b"grant_type=client_credentials&scope=all"
    assert source._authorization == "Basic bWU6Y2wxM250LXMzY3JldA=="


def test_msk_is_configured_by_the_settings_of_java_clients() -> None:
    login = token_login(
        **{
            "sasl.mechanism": "AWS_MSK_IAM",
            "sasl.jaas.config": 'software.amazon.msk.auth.iam.IAMLoginModule required awsProfileName="p";',
            "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
        }
    )
    assert login.mechanism == "OAUTHBEARER"
    assert isinstance(login._tokens.source, ProviderSource)


def test_a_refused_token_needs_a_response_before_the_error() -> None:
    mechanism = OAuthBearerMechanism("t", {})
    mechanism.first()
    assert mechanism.respond(b'{"status":"invalid_token","scope":"x"}') == b"\x01"
    assert mechanism.refusal() == "invalid_token"
    with pytest.raises(ProtocolError):
        mechanism.respond(b"")
    with pytest.raises(ProtocolError):
        mechanism.respond(b"again")


def test_plain_has_no_second_round() -> None:
    mechanism = PlainMechanism("u", "p")
    mechanism.first()
    with pytest.raises(ProtocolError, match="unexpected challenge"):
        mechanism.respond(b"more?")


def test_extensions_cannot_replace_the_token() -> None:
    with pytest.raises(ConfigError, match="must not be auth"):
        check_extensions({"auth": "Bearer x"})


def test_extensions_of_a_callable_are_checked_before_they_are_sent() -> None:
    given = ("t0ken", 4102444800, "principal", {"auth": "Bearer x"})
    login = login_of(config(sasl__mechanism="OAUTHBEARER", sasl__oauth__token__provider=lambda: given))
    assert login is not None
    with pytest.raises(ConfigError, match="must not be auth"):
        login.begin()


SECRETS = {
    "sasl.jaas.config": PLAIN_LINE,
    "sasl.password": "p4ssword",
    "ssl.key.password": "p4ssword",
    "ssl.keystore.password": "p4ssword",
    "ssl.truststore.password": "p4ssword",
    "ssl.keystore.key": "-----BEGIN PRIVATE KEY-----p4ssword",
    "sasl.oauthbearer.client.credentials.client.secret": "p4ssword",
}


@pytest.mark.parametrize("name", SECRETS)
def test_no_repr_contains_a_secret(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keys = {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p4ssword"}
    if name.startswith("ssl.keystore.key"):
        keys["ssl.keystore.certificate.chain"] = "chain"
    made = config(**{**keys, name: SECRETS[name]})
    assert "p4ssword" not in repr(made) + str(made)
    assert "(hidden)" in repr(made)
    assert "p4ssword" not in repr(login_of(made))
    assert pickle.loads(pickle.dumps(made))[name] == SECRETS[name]
    assert "p4ssword" not in caplog.text


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_of_another_type_is_refused_without_showing_it(name: str) -> None:
    with pytest.raises(ConfigError, match="allowed is a text, not int") as caught:
        ClientConfig(PRODUCER, {"bootstrap.servers": "x:1", name: 10**6})
    assert str(10**6) not in "".join(traceback.format_exception(caught.value))


def test_a_token_instead_of_its_provider_is_refused_without_showing_it() -> None:
    with pytest.raises(ConfigError, match="a token itself belongs in a file") as caught:
        config(sasl__oauth__token__provider="eyJhbGciOiJub25lIn0.eyJleHAiOjF9.t0ken")
    assert "t0ken" not in str(caught.value)


def test_a_token_is_not_shown() -> None:
    assert "t0ken" not in repr(Token("t0ken", None))
