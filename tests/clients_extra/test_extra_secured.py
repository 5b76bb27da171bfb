"""The client with an Apache Kafka that requires a login: every login, with and without TLS, and every
refusal.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from secured_kafka import (
    BRIEF_MS,
    KEY_PASSWORD,
    OAUTH_MODULE,
    PASSWORD,
    PLAIN_MODULE,
    SCRAM_MODULE,
    STORE_PASSWORD,
    USER,
    SecuredKafka,
    jaas,
)

from certificates import write
from tidemill.client import Admin, Consumer, Producer, TopicPartition
from tidemill.client.connection import Connection
from tidemill.client.errors import AuthenticationFailed, BrokerUnreachable
from tidemill.client.token_endpoint import EndpointSource
from tidemill.model.errors import ConfigError, TidemillError

TIMEOUT_MS = 15_000
WRONG = "wr0ng-password"
Settings = dict[str, Any]


def trust(kafka: SecuredKafka) -> Settings:
    """TLS to the broker, with a truststore of keytool."""
    return {
        "ssl.truststore.location": kafka.files.truststore,
        "ssl.truststore.password": STORE_PASSWORD,
        "default.api.timeout.ms": TIMEOUT_MS,
    }


def passwords(mechanism: str, password: str = PASSWORD, user: str = USER) -> Settings:
    """User and password, as a JAAS entry."""
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(module, username=user, password=password)}


def credentials(kafka: SecuredKafka, client: str = "tidemill", secret: str = "") -> Settings:
    """Client credentials at the OAuth server, as a JAAS entry."""
    line = jaas(
        OAUTH_MODULE,
        clientId=client,
        clientSecret=secret or f"{client}-client-secret",
        scope="records",
        **{"ssl.truststore.location": kafka.files.authority, "ssl.truststore.type": "PEM"},
    )
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.token.endpoint.url": kafka.oauth.url,
        "sasl.jaas.config": line,
    }


def token_of(kafka: SecuredKafka, client: str) -> str:
    """Requests a token from the OAuth server."""
    source = EndpointSource(
        kafka.oauth.clear_url,
        client,
        f"{client}-client-secret",
        "records",
        url_encode=False,
        timeout_s=30,
        trust=lambda: None,  # type: ignore[arg-type,return-value]
    )
    return source.fetch().text


def logins(kafka: SecuredKafka) -> dict[str, Settings]:
    """Each kind of login, by its name in the tests."""
    clear = {"sasl.oauthbearer.token.endpoint.url": kafka.oauth.clear_url}
    return {
        "PLAIN": passwords("PLAIN"),
        "SCRAM-SHA-256": passwords("SCRAM-SHA-256"),
        "SCRAM-SHA-512": {
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        },
        "OAUTHBEARER-jaas": credentials(kafka),
        "OAUTHBEARER-kip-1139": {
            "sasl.mechanism": "OAUTHBEARER",
            **clear,
            "sasl.oauthbearer.client.credentials.client.id": "tidemill",
            "sasl.oauthbearer.client.credentials.client.secret": "tidemill-client-secret",
            "sasl.oauthbearer.scope": "records",
        },
        "OAUTHBEARER-callable": {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauth.token.provider": lambda: token_of(kafka, "tidemill"),
        },
        "OAUTHBEARER-file": {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": Path(
                write(kafka.directory / "token", token_of(kafka, "tidemill"))
            ).as_uri(),
        },
    }


WAYS = (
    "PLAIN",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    "OAUTHBEARER-jaas",
    "OAUTHBEARER-kip-1139",
    "OAUTHBEARER-callable",
    "OAUTHBEARER-file",
)


@pytest.fixture
def topic(secured_kafka: SecuredKafka) -> Iterator[str]:
    """A topic of one partition."""
    name = f"secured-{uuid.uuid4().hex[:12]}"
    with Admin(secured_kafka.bootstrap("INSIDE")) as admin:
        admin.create_topic(name, 1)
        yield name
        admin.delete_topics([name])


def write_and_read(address: str, settings: Settings, topic: str, count: int = 200) -> None:
    """Writes messages, and reads them as a group member."""
    values = [b"%06d" % number for number in range(count)]
    with Producer(address, settings) as producer:
        producer.send_batch(topic, values).result(60)
    more = {**settings, "group.id": topic, "auto.offset.reset": "earliest"}
    read: list[bytes | None] = []
    with Consumer(address, more) as consumer:
        consumer.subscribe([topic])
        while len(read) < count:
            records = consumer.poll(30.0)
            assert records
            read += [record.value for record in records]
        consumer.commit()
    assert read == values


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
@pytest.mark.parametrize("way", WAYS)
def test_messages_are_written_and_read_after_every_login(
    secured_kafka: SecuredKafka, topic: str, way: str, protocol: str
) -> None:
    listener = "LOGIN" if protocol == "SASL_SSL" else "CLEAR"
    settings = {**trust(secured_kafka), **logins(secured_kafka)[way], "security.protocol": protocol}
    write_and_read(secured_kafka.bootstrap(listener), settings, topic)


def certificate_forms(kafka: SecuredKafka) -> list[Settings]:
    files = kafka.files
    return [
        {"ssl.keystore.location": files.keystore, "ssl.keystore.password": STORE_PASSWORD},
        {"ssl.certificate.location": files.certificate, "ssl.key.location": files.key},
        {
            "ssl.certificate.location": files.certificate,
            "ssl.key.location": files.encrypted_key,
            "ssl.key.password": KEY_PASSWORD,
        },
        {"ssl.keystore.key": files.client.key_pem, "ssl.keystore.certificate.chain": files.client.pem},
    ]


@pytest.mark.parametrize("form", range(4), ids=["pkcs12", "pem files", "encrypted pem", "pem text"])
def test_a_certificate_of_the_client_is_a_login(secured_kafka: SecuredKafka, topic: str, form: int) -> None:
    settings = {**trust(secured_kafka), **certificate_forms(secured_kafka)[form], "security.protocol": "SSL"}
    write_and_read(secured_kafka.bootstrap("MUTUAL"), settings, topic)


# -- refusals ---------------------------------------------------------------------------------------------


def refusal(address: str, settings: Settings, kind: type[TidemillError] = AuthenticationFailed) -> str:
    """Returns the error of a client that requests the topics; it must be raised at once, without a secret."""
    began = time.monotonic()
    with Admin(address, settings) as admin, pytest.raises(kind) as caught:
        admin.list_topics()
    if kind is AuthenticationFailed:
        assert time.monotonic() - began < TIMEOUT_MS / 1000, "it was tried again and again"
    text = str(caught.value)
    for secret in (PASSWORD, WRONG, STORE_PASSWORD, KEY_PASSWORD, "client-secret", "wr0ng"):
        assert secret not in text
    return text


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize(("user", "password"), [(USER, WRONG), ("nobody", PASSWORD)])
def test_the_error_of_a_wrong_password_or_user_has_the_next_step(
    secured_kafka: SecuredKafka, mechanism: str, user: str, password: str
) -> None:
    settings = {
        **trust(secured_kafka),
        **passwords(mechanism, password, user),
        "security.protocol": "SASL_SSL",
    }
    text = refusal(secured_kafka.bootstrap("LOGIN"), settings)
    assert f"refuses the login by {mechanism}" in text
    assert f"check user '{user}' and its password, in sasl.username and sasl.password or in sasl.jaas" in text


def oauth(kafka: SecuredKafka, **more: Any) -> Settings:
    return {**trust(kafka), **credentials(kafka), "security.protocol": "SASL_SSL", **more}


def test_a_wrong_client_secret_is_reported(secured_kafka: SecuredKafka) -> None:
    settings = oauth(secured_kafka, **credentials(secured_kafka, secret="wr0ng"))
    text = refusal(secured_kafka.bootstrap("LOGIN"), settings)
    assert f"the token endpoint {secured_kafka.oauth.url} answered 401 (invalid_client" in text
    assert "check client id, client secret and scope" in text


def test_a_token_for_another_audience_is_reported(secured_kafka: SecuredKafka) -> None:
    text = refusal(
        secured_kafka.bootstrap("LOGIN"), oauth(secured_kafka, **credentials(secured_kafka, "stranger"))
    )
    assert "refuses the login by OAUTHBEARER (invalid_token)" in text
    assert "has the issuer, audience and scope that the brokers expect" in text


def test_an_expired_token_is_reported(secured_kafka: SecuredKafka) -> None:
    token = token_of(secured_kafka, "brief")
    time.sleep(8)
    settings = {
        **trust(secured_kafka),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauth.token.provider": lambda: token,
    }
    text = refusal(secured_kafka.bootstrap("LOGIN"), settings)
    assert "check that the token of sasl.oauth.token.provider=" in text
    assert "is not expired (it expired " in text
    assert " s ago by the clock of this machine)" in text
    assert token not in text


def test_an_untrusted_oauth_server_is_reported(secured_kafka: SecuredKafka) -> None:
    line = jaas(OAUTH_MODULE, clientId="tidemill", clientSecret="tidemill-client-secret")
    text = refusal(secured_kafka.bootstrap("LOGIN"), oauth(secured_kafka, **{"sasl.jaas.config": line}))
    assert f"the certificate of the token endpoint {secured_kafka.oauth.url} is refused" in text
    assert "or with https.ca.location" in text


def tls(kafka: SecuredKafka, **more: Any) -> Settings:
    return {**trust(kafka), "security.protocol": "SSL", **more}


def test_errors_of_wrong_certificates_have_the_next_step(secured_kafka: SecuredKafka) -> None:
    at, files = secured_kafka.bootstrap, secured_kafka.files
    system = {"security.protocol": "SSL", "default.api.timeout.ms": TIMEOUT_MS}
    text = refusal(at("TLS"), system)
    assert "certificate verify failed" in text
    assert "set the authority that signed it: ssl.truststore.location" in text
    text = refusal(at("TLS", "127.0.0.1"), tls(secured_kafka))
    assert "certificate is not valid for '127.0.0.1'" in text
    assert "use a name in bootstrap.servers and advertised.listeners that the certificate has" in text
    text = refusal(at("EXPIRED"), tls(secured_kafka))
    assert "certificate has expired" in text
    assert "have the broker's certificate renewed" in text
    text = refusal(at("MUTUAL"), tls(secured_kafka))
    assert "refuses a client without a certificate" in text
    assert "ssl.keystore.location with ssl.keystore.password" in text
    stranger = {"ssl.keystore.location": files.stranger, "ssl.keystore.password": STORE_PASSWORD}
    text = refusal(at("MUTUAL"), tls(secured_kafka, **stranger))
    assert "refuses the client's certificate" in text
    assert "have it signed by an authority of the broker's ssl.truststore.location" in text


def test_a_name_that_is_not_checked_does_not_stop_a_login(secured_kafka: SecuredKafka) -> None:
    settings = tls(secured_kafka, **{"ssl.endpoint.identification.algorithm": ""})
    with Admin(secured_kafka.bootstrap("TLS", "127.0.0.1"), settings) as admin:
        assert isinstance(admin.list_topics(), list)


def test_errors_of_unreadable_stores_name_the_setting(secured_kafka: SecuredKafka) -> None:
    settings = tls(secured_kafka, **{"ssl.truststore.password": WRONG})
    text = refusal(secured_kafka.bootstrap("TLS"), settings, ConfigError)
    assert "ssl.truststore.password is wrong" in text
    settings = tls(secured_kafka, **{"ssl.truststore.location": secured_kafka.files.truststore_jks})
    text = refusal(secured_kafka.bootstrap("TLS"), settings, ConfigError)
    assert "is a JKS store, which only Java reads. Convert it to PKCS12" in text


def test_a_port_of_another_protocol_is_reported(secured_kafka: SecuredKafka) -> None:
    at = secured_kafka.bootstrap
    login = {**trust(secured_kafka), **passwords("PLAIN")}
    text = refusal(at("TLS"), {**login, "security.protocol": "SASL_SSL"})
    assert "accepts no login at this port; set security.protocol to ssl or plaintext" in text
    short = {"default.api.timeout.ms": 1_000}
    text = refusal(at("LOGIN"), short, BrokerUnreachable)
    assert "a TLS alert: set security.protocol=ssl, or sasl_ssl with a login" in text
    text = refusal(at("CLEAR"), short, BrokerUnreachable)
    assert "If that listener requires a login, set security.protocol=sasl_ssl or sasl_plaintext" in text
    text = refusal(at("CLEAR"), {**login, **short, "security.protocol": "SASL_SSL"}, BrokerUnreachable)
    assert "does this port speak TLS" in text


def test_a_producer_with_a_refused_login_fails_at_once_with_the_reason(secured_kafka: SecuredKafka) -> None:
    settings = {**trust(secured_kafka), **passwords("PLAIN", WRONG), "security.protocol": "SASL_SSL"}
    began = time.monotonic()
    with (
        Producer(secured_kafka.bootstrap("LOGIN"), settings) as producer,
        pytest.raises(AuthenticationFailed),
    ):
        producer.send("any", b"value").result(60)
    consumer = Consumer(secured_kafka.bootstrap("LOGIN"), {**settings, "group.id": "any"})
    consumer.subscribe(["any"])
    with consumer, pytest.raises(AuthenticationFailed):
        consumer.poll(30.0)
    assert time.monotonic() - began < 30


def test_a_later_refused_login_ends_waiting_messages_at_once(secured_kafka: SecuredKafka, topic: str) -> None:
    settings = {**trust(secured_kafka), **passwords("PLAIN"), "security.protocol": "SASL_SSL"}
    address = secured_kafka.bootstrap("LOGIN")
    with Producer(address, settings) as producer, Consumer(address, settings) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        producer._network_client.topic(topic, time.monotonic() + 30)
        for client in (producer, consumer):
            # As if the password was changed between the first connection and the connection for messages.
            login: Any = client._network_client._security.login
            login._password = WRONG
        began = time.monotonic()
        with pytest.raises(AuthenticationFailed, match="refuses the login by PLAIN"):
            producer.send(topic, b"value").result(60)
        with pytest.raises(AuthenticationFailed, match="refuses the login by PLAIN"):
            poll_until(consumer, began + 60)
        assert time.monotonic() - began < 30


def poll_until(consumer: Consumer, deadline: float) -> None:
    """Polls an empty topic."""
    while time.monotonic() < deadline:
        consumer.poll(1.0)


# -- repeated logins --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_a_login_is_renewed_on_the_same_connection_before_the_broker_ends_it(
    secured_kafka: SecuredKafka, topic: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[tuple[Connection, float]] = []
    open_one = Connection.open

    def noted(self: Connection) -> None:
        open_one(self)
        opened.append((self, time.monotonic()))

    monkeypatch.setattr(Connection, "open", noted)
    login = credentials(secured_kafka, "brief") if way == "OAUTHBEARER" else passwords(way)
    settings = {**trust(secured_kafka), **login, "security.protocol": "SASL_SSL"}
    count, deadline = 0, time.monotonic() + 60

    def is_renewed() -> bool:
        """Whether one connection was used for longer than two sessions of the broker."""
        now = time.monotonic()
        return any(
            connection.node_id >= 0 and not connection.closed and now - since > 2.2 * BRIEF_MS / 1000
            for connection, since in list(opened)
        )

    with Producer(secured_kafka.bootstrap("BRIEF"), settings) as producer:
        while not is_renewed():
            assert time.monotonic() < deadline, "the broker has ended every connection after its session"
            producer.send(topic, b"%d" % count).result(60)
            count += 1
            time.sleep(0.02)
    with Admin(secured_kafka.bootstrap("INSIDE")) as admin:
        partition = TopicPartition(topic, 0)
        assert admin.list_offsets({partition: "latest"})[partition].offset == count


# -- the command line -------------------------------------------------------------------------------------


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a separate process."""
    return subprocess.run(
        [sys.executable, "-m", "tidemill", *arguments], capture_output=True, text=True, timeout=120
    )


def test_the_command_line_reads_a_properties_file_of_javas_tools(
    secured_kafka: SecuredKafka, topic: str, tmp_path: Path
) -> None:
    files = secured_kafka.files
    lines = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": jaas(SCRAM_MODULE, username=USER, password=PASSWORD).replace("\\", "\\\\"),
        "ssl.truststore.location": files.truststore,
        "ssl.truststore.password": STORE_PASSWORD,
        "ssl.truststore.type": "PKCS12",
    }
    path = write(tmp_path / "client.properties", "".join(f"{key}={value}\n" for key, value in lines.items()))
    address = ("-b", secured_kafka.bootstrap("LOGIN"), "--command-config", path)
    done = command("topic", "list", *address, "--json")
    assert done.returncode == 0, done.stderr
    assert topic in {entry["name"] for entry in json.loads(done.stdout)}
    lines["sasl.jaas.config"] = jaas(SCRAM_MODULE, username=USER, password=WRONG)
    write(tmp_path / "client.properties", "".join(f"{key}={value}\n" for key, value in lines.items()))
    done = command("topic", "list", *address)
    assert done.returncode != 0
    assert "refuses the login by SCRAM-SHA-512" in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 6
    assert WRONG not in done.stderr + done.stdout
