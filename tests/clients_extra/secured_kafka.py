"""Apache Kafka with listeners that authenticate clients, and a trusted OAuth server.

===========  ==============  ================================================================================
listener     protocol        asks for
===========  ==============  ================================================================================
INSIDE       PLAINTEXT       nothing; brokers and the test's own questions
LOGIN        SASL_SSL        PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER
CLEAR        SASL_PLAINTEXT  the same
BRIEF        SASL_SSL        the same, again every five seconds
TLS          SSL             nothing; certificate of the broker alone
MUTUAL       SSL             a certificate of the same authority
EXPIRED      SSL             nothing; the broker's certificate was valid until yesterday
===========  ==============  ================================================================================

All are advertised as ``localhost``; the broker's certificate has that name, and not the address 127.0.0.1.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kafka_peer import CLUSTER_ID, Program, free_ports, java

TESTS = Path(__file__).parents[1]
if str(TESTS) not in sys.path:
    sys.path.append(str(TESTS))

from certificates import Signed, authority, signed, write  # noqa: E402

OAUTH = Path(__file__).parent / "oauth"
USER, PASSWORD = "alice", 'alice, "secret"=\\word'
"""With all that JAAS, SCRAM and properties files have to escape."""
STORE_PASSWORD = "store-password"
KEY_PASSWORD = "key-password"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
LISTENERS = {
    "INSIDE": "PLAINTEXT",
    "LOGIN": "SASL_SSL",
    "CLEAR": "SASL_PLAINTEXT",
    "BRIEF": "SASL_SSL",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "EXPIRED": "SSL",
}
BRIEF_MS = 5_000
MODULES = "org.apache.kafka.common.security"
PLAIN_MODULE = f"{MODULES}.plain.PlainLoginModule"
SCRAM_MODULE = f"{MODULES}.scram.ScramLoginModule"
OAUTH_MODULE = f"{MODULES}.oauthbearer.OAuthBearerLoginModule"


def jaas(module: str, **options: str) -> str:
    """Returns an entry of ``sasl.jaas.config``."""
    quoted = {name: value.replace("\\", "\\\\").replace('"', '\\"') for name, value in options.items()}
    return " ".join([module, "required", *(f'{name}="{value}"' for name, value in quoted.items())]) + ";"


class Files(NamedTuple):
    """The files that client settings name."""

    authority: str
    truststore: str
    truststore_jks: str
    keystore: str
    certificate: str
    key: str
    encrypted_key: str
    stranger: str
    client: Signed
    ca: Signed


class OAuthServer:
    """``oidc-provider`` from npm, with and without TLS."""

    def __init__(self, node_modules: Path, directory: Path, key: str, certificate: str) -> None:
        self.clear_port, self.tls_port = free_ports(2)
        shutil.copy(OAUTH / "server.mjs", node_modules.parent)
        command = ["node", "server.mjs", str(self.clear_port), str(self.tls_port), key, certificate]
        self._log = (directory / "oauth.log").open("wb")
        self._process = subprocess.Popen(
            command, cwd=node_modules.parent, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line == "ready\n", (line, (directory / "oauth.log").read_text())

    @property
    def issuer(self) -> str:
        """The issuer of the tokens."""
        return f"https://localhost:{self.tls_port}"

    @property
    def url(self) -> str:
        """The token endpoint with TLS."""
        return f"{self.issuer}/token"

    @property
    def clear_url(self) -> str:
        """The token endpoint without TLS."""
        return f"http://127.0.0.1:{self.clear_port}/token"

    def close(self) -> None:
        """Stops the server."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._log.close()


class SecuredKafka:
    """The broker. ``bootstrap("LOGIN")`` returns the address of a listener."""

    def __init__(self, jars: str, node_modules: Path, directory: Path) -> None:
        self.directory = directory
        ca = authority("Tidemill tests")
        self.files = _files(directory, ca)
        broker = signed(ca, "broker", "localhost")
        old = signed(ca, "broker", "localhost", days=(-30, -1))
        for name, one in (("broker", broker), ("expired", old)):
            write(directory / f"{name}.p12", one.pkcs12(STORE_PASSWORD, ca))
        key = write(directory / "oauth.key", broker.key_pem)
        self.oauth = OAuthServer(node_modules, directory, key, write(directory / "oauth.pem", broker.pem))
        ports = free_ports(len(LISTENERS) + 1)
        self.ports = dict(zip([*LISTENERS, "CONTROLLER"], ports, strict=True))
        settings = write(directory / "server.properties", self._settings())
        self._format(jars, settings)
        allowed = (
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=http://127.0.0.1:{self.oauth.clear_port}/jwks"
        )
        command = java(jars, "kafka.Kafka", settings)
        command.insert(1, allowed)
        try:
            self._program = Program(command, directory / "kafka.log", self.ports["INSIDE"])
            self._make_scram_user()
        except BaseException:
            self.oauth.close()
            raise

    def bootstrap(self, listener: str, host: str = "localhost") -> str:
        """Returns the address of a listener."""
        return f"{host}:{self.ports[listener]}"

    def close(self) -> None:
        """Stops both servers."""
        self._program.end(signal.SIGKILL)
        self.oauth.close()

    def log(self) -> str:
        """Returns the log of the broker."""
        return (self.directory / "kafka.log").read_text()

    def _format(self, jars: str, settings: str) -> None:
        tool = java(jars, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", settings)
        done = subprocess.run(tool, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr

    def _make_scram_user(self) -> None:
        """Creates the user with librdkafka: Kafka's own tool does not accept such a password."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap("INSIDE"), "log_level": 0})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion(
                USER, ScramCredentialInfo(mechanism, 8192), PASSWORD.encode()
            )
            admin.alter_user_scram_credentials([change])[USER].result(30)

    def _settings(self) -> str:
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@127.0.0.1:{self.ports['CONTROLLER']}",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "INSIDE",
            "listeners": ",".join(f"{name}://127.0.0.1:{port}" for name, port in self.ports.items()),
            "advertised.listeners": ",".join(f"{n}://localhost:{self.ports[n]}" for n in LISTENERS),
            "listener.security.protocol.map": ",".join(
                f"{name}:{protocol}" for name, protocol in {**LISTENERS, "CONTROLLER": "PLAINTEXT"}.items()
            ),
            "log.dirs": str(self.directory / "data"),
            "num.partitions": "2",
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
            "ssl.truststore.location": self.files.truststore,
            "ssl.truststore.password": STORE_PASSWORD,
            "ssl.keystore.location": str(self.directory / "broker.p12"),
            "ssl.keystore.password": STORE_PASSWORD,
            "ssl.key.password": STORE_PASSWORD,
            "ssl.keystore.type": "PKCS12",
            "listener.name.expired.ssl.keystore.location": str(self.directory / "expired.p12"),
            "listener.name.expired.ssl.keystore.password": STORE_PASSWORD,
            "listener.name.expired.ssl.key.password": STORE_PASSWORD,
            "listener.name.mutual.ssl.client.auth": "required",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.oauthbearer.jwks.endpoint.url": f"http://127.0.0.1:{self.oauth.clear_port}/jwks",
            "sasl.oauthbearer.expected.audience": "kafka",
            "sasl.oauthbearer.expected.issuer": self.oauth.issuer,
            "sasl.oauthbearer.clock.skew.seconds": "0",
        }
        for listener, protocol in LISTENERS.items():
            if protocol.startswith("SASL"):
                lines.update(_login_settings(listener.lower()))
        return "".join(f"{key}={_escaped(value)}\n" for key, value in lines.items())


def _login_settings(listener: str) -> dict[str, Any]:
    handler = f"{MODULES}.oauthbearer.OAuthBearerValidatorCallbackHandler"
    lines = {
        "plain.sasl.jaas.config": jaas(PLAIN_MODULE, **{f"user_{USER}": PASSWORD}),
        "scram-sha-256.sasl.jaas.config": jaas(SCRAM_MODULE),
        "scram-sha-512.sasl.jaas.config": jaas(SCRAM_MODULE),
        "oauthbearer.sasl.jaas.config": jaas(OAUTH_MODULE),
        "oauthbearer.sasl.server.callback.handler.class": handler,
    }
    if listener == "brief":
        lines.update({f"{m.lower()}.connections.max.reauth.ms": str(BRIEF_MS) for m in MECHANISMS})
    return {f"listener.name.{listener}.{key}": value for key, value in lines.items()}


def _escaped(value: str) -> str:
    """Escapes a value for a properties file."""
    return value.replace("\\", "\\\\")


def _files(directory: Path, ca: Signed) -> Files:
    client = signed(ca, "client")
    stranger = signed(authority("Somebody else"), "client")
    pem = write(directory / "ca.pem", ca.pem)
    truststore, jks = directory / "truststore.p12", directory / "truststore.jks"
    for path, kind in ((truststore, "PKCS12"), (jks, "JKS")):
        command = [
            "keytool",
            "-importcert",
            "-noprompt",
            "-alias",
            "ca",
            "-file",
            pem,
            "-keystore",
            str(path),
        ]
        command += ["-storetype", kind, "-storepass", STORE_PASSWORD]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return Files(
        authority=pem,
        truststore=str(truststore),
        truststore_jks=str(jks),
        keystore=write(directory / "client.p12", client.pkcs12(STORE_PASSWORD, ca)),
        certificate=write(directory / "client.pem", client.pem),
        key=write(directory / "client.key", client.key_pem),
        encrypted_key=write(directory / "client.encrypted.key", client.encrypted_key_pem(KEY_PASSWORD)),
        stranger=write(directory / "stranger.p12", stranger.pkcs12(STORE_PASSWORD)),
        client=client,
        ca=ca,
    )
