"""The client's configuration: one table of keys, by Kafka's names, with today's defaults.

Keys come as a mapping (``{"group.id": "g"}``) or as keywords (``group_id="g"``). The names of the 0.8
documents are accepted where they mean the same thing. An unknown key is an error that names its nearest
neighbour, since a misspelt ``acks`` costs data.
"""

from __future__ import annotations

import difflib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidemill.model.configs.clients import IDLE_CLIENT_KEYS
from tidemill.model.configs.listeners import join_address
from tidemill.model.errors import ConfigError
from tidemill.model.secrets import Settings
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX, UNPACKED_KEY

LOG = logging.getLogger(__name__)

COMMON, PRODUCER, CONSUMER = "common", "producer", "consumer"

REQUIRED = object()


class Key:
    """One key: its default, how a value is read, which clients know it."""

    __slots__ = ("default", "doc", "name", "read", "role")

    def __init__(self, name: str, role: str, default: Any, read: Callable[[str, Any], Any], doc: str) -> None:
        self.name = name
        self.role = role
        self.default = default
        self.read = read
        self.doc = doc


def _number(least: int, most: int) -> Callable[[str, Any], int]:
    def read(name: str, value: Any) -> int:
        try:
            number = int(value.strip()) if isinstance(value, str) else int(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{name}={value!r} is no integer; allowed are {least} to {most}") from None
        if isinstance(value, float) and number != value:
            raise ConfigError(f"{name}={value!r} is no integer; allowed are {least} to {most}")
        if not least <= number <= most:
            raise ConfigError(f"{name}={value!r} is out of range; allowed are {least} to {most}")
        return number

    return read


def _boolean(name: str, value: Any) -> bool:
    text = str(value).strip().lower()
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise ConfigError(f"{name}={value!r} is neither true nor false")


def _text(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{name}={value!r} is no text")


def _secret(name: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{name} must be text; what is given is of type {type(value).__name__}")


def _part(least: float, most: float) -> Callable[[str, Any], float]:
    def read(name: str, value: Any) -> float:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ConfigError(f"{name}={value!r} is no number; allowed are {least} to {most}") from None
        if not least <= number <= most:
            raise ConfigError(f"{name}={value!r} is out of range; allowed are {least} to {most}")
        return number

    return read


def _mechanism(name: str, value: Any) -> str | None:
    if value is None:
        return None
    from tidemill.client.login import GSSAPI, MECHANISMS

    text = str(value).strip().upper()
    if text == GSSAPI:
        raise ConfigError(f"{name}=GSSAPI (Kerberos) is not served; use one of {', '.join(MECHANISMS)}")
    if text not in MECHANISMS:
        raise ConfigError(f"{name}={value!r} is not known; use one of {', '.join(MECHANISMS)}")
    return text


def _provider(name: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    if callable(getattr(value, "token", None)):  # kafka-python's providers are objects
        return value.token
    if isinstance(value, str) and re.fullmatch(r"[\w.]+:[\w.]+", value):
        return value
    # The value is not shown: it may be a token.
    raise ConfigError(
        f"{name} is neither callable nor module:function; a token itself belongs in a file, which "
        "sasl.oauthbearer.token.endpoint.url=file:///PATH names"
    )


def _choice(*allowed: str, **aliases: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        text = str(value).strip().lower()
        text = aliases.get(text, aliases.get("_" + text, text))
        if text not in allowed:
            raise ConfigError(f"{name}={value!r} is not known; use one of {', '.join(allowed)}")
        return text

    return read


def _acks(name: str, value: Any) -> int:
    text = str(value).strip().lower()
    if text in ("all", "-1"):
        return -1
    if text in ("0", "1"):
        return int(text)
    raise ConfigError(f"{name}={value!r} is not known; use 0, 1 or all")


def _servers(name: str, value: Any) -> tuple[tuple[str, int], ...]:
    parts = value.split(",") if isinstance(value, str) else list(value or ())
    servers = tuple(parse_address(str(part).strip()) for part in parts if str(part).strip())
    if not servers:
        raise ConfigError(f"{name}={value!r} names no server; give host:port, several apart by commas")
    return servers


def _anything(name: str, value: Any) -> Any:
    return value


def _strategies(name: str, value: Any) -> tuple[Any, ...]:
    parts = value.split(",") if isinstance(value, str) else list(value)
    found = tuple(part.strip() if isinstance(part, str) else part for part in parts if part)
    if not found:
        raise ConfigError(
            f"{name}={value!r} names no assignor; use range, roundrobin, sticky, cooperative-sticky"
        )
    return found


PORT_DIGITS_MAX = 5


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``, ``[::1]:port`` or ``PROTOCOL://host:port``."""
    rest = text.split("://", 1)[-1]
    host, _, port = rest.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or host[0] == "[" or not (port.isascii() and port.isdigit()):
        raise ConfigError(f"bootstrap.servers has {text!r}, which is no host:port (IPv6 as [address]:port)")
    if len(port) > PORT_DIGITS_MAX or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap.servers has {text!r}, whose port is not between 1 and 65535")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(
            f"bootstrap.servers has {text!r}, whose host is no name: between the dots are 1 to 63 characters"
        ) from None
    return host, int(port)


INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MS = _number(0, LONG_MAX)
SIZE = _number(0, INT_MAX)
SOCKET_BUFFER = _number(-1, INT_MAX)

_ROWS: tuple[tuple[str, str, Any, Callable[[str, Any], Any], str], ...] = (
    ("bootstrap.servers", COMMON, REQUIRED, _servers, "Brokers to ask first, host:port, apart by commas"),
    ("client.id", COMMON, "tidemill", _text, "Name that the broker sees in its logs and quotas"),
    ("client.rack", COMMON, "", _text, "Rack of this client: it reads from a replica there"),
    ("request.timeout.ms", COMMON, 30_000, MS, "How long to wait for the answer to one request"),
    ("socket.connection.setup.timeout.ms", COMMON, 10_000, MS, "How long a connection may take to open"),
    ("reconnect.backoff.ms", COMMON, 50, MS, "Pause before a broker that failed is tried again"),
    ("reconnect.backoff.max.ms", COMMON, 1_000, MS, "The pause doubles with each failure up to this"),
    ("retry.backoff.ms", COMMON, 100, MS, "Pause before a failed request is sent again"),
    ("retry.backoff.max.ms", COMMON, 1_000, MS, "The pause doubles with each failure up to this"),
    ("metadata.max.age.ms", COMMON, 300_000, MS, "Metadata older than this is refreshed"),
    ("send.buffer.bytes", COMMON, 131_072, SOCKET_BUFFER, "Socket buffer; -1 leaves it to the system"),
    ("receive.buffer.bytes", COMMON, -1, SOCKET_BUFFER, "Socket buffer; -1 leaves it to the system"),
    ("connections.max.idle.ms", COMMON, 540_000, _number(-1, LONG_MAX), "Unused connections are closed"),
    ("response.bytes.max", COMMON, 256 * 1024 * 1024, SIZE, "A longer answer closes the connection"),
    (
        "security.protocol",
        COMMON,
        "plaintext",
        _choice("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        "plaintext, ssl, sasl_plaintext or sasl_ssl",
    ),
    (
        "ssl.truststore.location",
        COMMON,
        None,
        _text,
        "PEM or PKCS12 file of the authorities that are trusted; those of the system when unset",
    ),
    ("ssl.truststore.password", COMMON, None, _secret, "Password of a truststore in PKCS12"),
    ("ssl.truststore.certificates", COMMON, None, _text, "The same authorities as PEM text"),
    ("ssl.ca.location", COMMON, None, _text, "The same authorities as PEM file, as librdkafka names it"),
    ("ssl.keystore.location", COMMON, None, _text, "PEM or PKCS12 file of the client's key and certificate"),
    ("ssl.keystore.password", COMMON, None, _secret, "Password of a keystore in PKCS12"),
    ("ssl.keystore.key", COMMON, None, _secret, "The client's key as PEM text"),
    (
        "ssl.keystore.certificate.chain",
        COMMON,
        None,
        _text,
        "The client's certificate, and chain, as PEM text",
    ),
    ("ssl.certificate.location", COMMON, None, _text, "PEM file of the client's certificate, and chain"),
    ("ssl.key.location", COMMON, None, _text, "PEM file of the client's key"),
    ("ssl.key.password", COMMON, None, _secret, "Password of the client's key in PEM"),
    (
        "ssl.endpoint.identification.algorithm",
        COMMON,
        "https",
        _choice("https", "none", _="none"),
        "https checks the broker's name; none, or nothing, does not",
    ),
    (
        "sasl.mechanism",
        COMMON,
        None,
        _mechanism,
        "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM",
    ),
    (
        "sasl.jaas.config",
        COMMON,
        None,
        _secret,
        "Login of Java's clients: a login module, and user and password or client and secret",
    ),
    ("sasl.username", COMMON, None, _text, "User of PLAIN and SCRAM"),
    ("sasl.password", COMMON, None, _secret, "Password of PLAIN and SCRAM"),
    (
        "sasl.oauthbearer.token.endpoint.url",
        COMMON,
        None,
        _text,
        "OAuth server that gives tokens to a client id and secret, or file: with a token",
    ),
    ("sasl.oauthbearer.client.credentials.client.id", COMMON, None, _text, "Client id at the OAuth server"),
    (
        "sasl.oauthbearer.client.credentials.client.secret",
        COMMON,
        None,
        _secret,
        "Client secret at the OAuth server",
    ),
    ("sasl.oauthbearer.scope", COMMON, None, _text, "Scope that the OAuth server is asked for"),
    ("sasl.oauthbearer.header.urlencode", COMMON, False, _boolean, "Client id and secret are URL-encoded"),
    (
        "sasl.oauthbearer.extensions",
        COMMON,
        None,
        _text,
        "SASL extensions of OAUTHBEARER, name=value, apart by commas",
    ),
    (
        "sasl.oauth.token.provider",
        COMMON,
        None,
        _provider,
        "Callable that gives a token, or token and its end in seconds since 1970; as text module:function",
    ),
    ("https.ca.location", COMMON, None, _text, "PEM file of the authorities of the OAuth server"),
    ("sasl.login.read.timeout.ms", COMMON, 10_000, MS, "How long the OAuth server may take to answer"),
    (
        "sasl.login.refresh.window.factor",
        COMMON,
        0.8,
        _part(0.5, 1.0),
        "Part of a token's life after which it is replaced",
    ),
    ("sasl.login.refresh.window.jitter", COMMON, 0.05, _part(0.0, 0.25), "Random part of it that is added"),
    (
        "sasl.login.refresh.min.period.seconds",
        COMMON,
        60,
        _number(0, 900),
        "A token is not replaced earlier than this",
    ),
    (
        "sasl.login.refresh.buffer.seconds",
        COMMON,
        300,
        _number(0, 3600),
        "A token is replaced at least this long before its end, where its life is long enough",
    ),
    # producer
    ("acks", PRODUCER, -1, _acks, "Replicas that have a message before it counts: 0, 1 or all"),
    (
        "enable.idempotence",
        PRODUCER,
        None,
        _anything,
        "No duplicates and no reordering by retries; on by default",
    ),
    ("batch.size", PRODUCER, 131_072, SIZE, "Bytes of a batch that is sent without waiting for more"),
    ("linger.ms", PRODUCER, 5, MS, "How long a batch waits for more messages"),
    ("buffer.memory", PRODUCER, 67_108_864, _number(1, LONG_MAX), "Bytes that may wait to be sent"),
    ("max.block.ms", PRODUCER, 60_000, _number(-1, LONG_MAX), "How long send() waits for room or metadata"),
    ("max.request.size", PRODUCER, 1_048_576, SIZE, "Bytes of one request, and of one message"),
    ("delivery.timeout.ms", PRODUCER, 120_000, SIZE, "From send() to success or failure"),
    ("retries", PRODUCER, INT_MAX, SIZE, "How often a batch is sent again, within delivery.timeout.ms"),
    (
        "max.in.flight.requests.per.connection",
        PRODUCER,
        5,
        _number(1, INT_MAX),
        "Requests under way to one broker; at most 5 with idempotence",
    ),
    (
        "compression.type",
        PRODUCER,
        "none",
        _choice(
            "none", "gzip", "snappy", "lz4", "zstd", _0="none", _1="gzip", _2="snappy", _3="lz4", _4="zstd"
        ),
        "none, gzip, snappy, lz4 or zstd",
    ),
    ("compression.level", PRODUCER, None, _anything, "Level of gzip, lz4 and zstd; None is the codec's own"),
    ("partitioner", PRODUCER, "murmur2", _anything, "murmur2, consistent, roundrobin, sticky, or a callable"),
    # consumer
    ("group.id", CONSUMER, None, _text, "Group that shares the partitions and keeps the offsets"),
    ("group.instance.id", CONSUMER, None, _text, "Name of a static member: a restart keeps its partitions"),
    (
        "auto.offset.reset",
        CONSUMER,
        "latest",
        _choice("earliest", "latest", "none", smallest="earliest", largest="latest"),
        "Where to start without a committed offset: earliest, latest or none",
    ),
    ("enable.auto.commit", CONSUMER, True, _boolean, "Commits what poll() gave out, in the background"),
    ("auto.commit.interval.ms", CONSUMER, 5_000, MS, "Time between automatic commits"),
    (
        "isolation.level",
        CONSUMER,
        "read_uncommitted",
        _choice("read_uncommitted", "read_committed"),
        "read_committed leaves out aborted and open transactions",
    ),
    ("fetch.min.bytes", CONSUMER, 1, SIZE, "The broker waits until it has this much"),
    ("fetch.max.wait.ms", CONSUMER, 500, SIZE, "The broker waits at most this long"),
    ("fetch.max.bytes", CONSUMER, 52_428_800, SIZE, "Bytes of one answer"),
    ("max.partition.fetch.bytes", CONSUMER, 1_048_576, SIZE, "Bytes of one partition in an answer"),
    (
        UNPACKED_KEY,
        CONSUMER,
        UNPACKED_BYTES_MAX,
        SIZE,
        "What the records of a compressed batch may unpack to",
    ),
    ("max.poll.records", CONSUMER, 500, _number(1, INT_MAX), "Records that one poll() gives out"),
    (
        "max.poll.interval.ms",
        CONSUMER,
        300_000,
        SIZE,
        "A member that does not poll for longer leaves the group",
    ),
    ("session.timeout.ms", CONSUMER, 45_000, SIZE, "A member that is silent for longer is dropped"),
    ("heartbeat.interval.ms", CONSUMER, 3_000, SIZE, "Time between heartbeats"),
    (
        "partition.assignment.strategy",
        CONSUMER,
        ("range", "cooperative-sticky"),
        _strategies,
        "Assignors, best first: range, roundrobin, sticky, cooperative-sticky",
    ),
    ("check.crcs", CONSUMER, True, _boolean, "Checks the checksum of every batch"),
    ("allow.auto.create.topics", COMMON, True, _boolean, "The broker may create a topic that is not there"),
    ("exclude.internal.topics", CONSUMER, True, _boolean, "A pattern does not match __consumer_offsets"),
    ("default.api.timeout.ms", COMMON, 60_000, SIZE, "How long a blocking call may take"),
)

KEYS: dict[str, Key] = {row[0]: Key(*row) for row in _ROWS}
"""The table: key by name."""

ALIASES: dict[str, str] = {
    "metadata.broker.list": "bootstrap.servers",
    "request.required.acks": "acks",
    "compression.codec": "compression.type",
    "message.send.max.retries": "retries",
    "queue.buffering.max.ms": "linger.ms",
    "queue.enqueue.timeout.ms": "max.block.ms",
    "metadata.fetch.timeout.ms": "max.block.ms",
    "topic.metadata.refresh.interval.ms": "metadata.max.age.ms",
    "timeout.ms": "request.timeout.ms",
    "socket.timeout.ms": "request.timeout.ms",
    "socket.receive.buffer.bytes": "receive.buffer.bytes",
    "socket.send.buffer.bytes": "send.buffer.bytes",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "fetch.wait.max.ms": "fetch.max.wait.ms",
    "auto.commit.enable": "enable.auto.commit",
    "partitioner.class": "partitioner",
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.plain.username": "sasl.username",
    "sasl.plain.password": "sasl.password",
    "sasl.oauthbearer.client.id": "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.secret": "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.ca.pem": "ssl.truststore.certificates",
    "ssl.cafile": "ssl.ca.location",
    "ssl.certfile": "ssl.certificate.location",
    "ssl.certificate.pem": "ssl.keystore.certificate.chain",
    "ssl.keyfile": "ssl.key.location",
    "ssl.password": "ssl.key.password",
}
"""Names of the 0.8 documents, of librdkafka and kafka-python, and shorter ones, with the name here."""

GONE: dict[str, str] = {
    "zookeeper.connect": "clients talk to brokers only; give bootstrap.servers",
    "producer.type": "send() is asynchronous, send(...).result() waits; leave it out",
    "batch.num.messages": "batches are bounded in bytes: batch.size",
    "queue.buffering.max.messages": "the queue is bounded in bytes: buffer.memory",
    "serializer.class": "keys and values are bytes; encode before send()",
    "key.serializer.class": "keys and values are bytes; encode before send()",
    "key.serializer": "keys and values are bytes; encode before send()",
    "value.serializer": "keys and values are bytes; encode before send()",
    "key.deserializer": "keys and values are bytes; decode after poll()",
    "value.deserializer": "keys and values are bytes; decode after poll()",
    "block.on.buffer.full": "send() waits max.block.ms; 0 there raises at once",
    "transactional.id": "transactions are not there yet",
    # Of librdkafka and kafka-python. A key's PEM has one name only, by which it is known to be a secret.
    "enable.ssl.certificate.verification": "certificates are checked; name their authority: ssl.ca.location",
    "sasl.oauthbearer.config": "give sasl.oauthbearer.token.endpoint.url or sasl.oauth.token.provider",
    "sasl.oauthbearer.method": "leave it out; sasl.oauthbearer.token.endpoint.url or "
    "sasl.oauth.token.provider says where tokens come from",
    "ssl.check.hostname": "give ssl.endpoint.identification.algorithm: https checks names, none does not",
    "ssl.context": "give ssl.ca.location, ssl.certificate.location and ssl.key.location",
    "ssl.key.pem": "give the key's PEM as ssl.keystore.key",
}
"""Known keys that have no effect here, with what to do instead."""

SERIALIZERS = {name for name in GONE if name.endswith(("serializer", "serializer.class"))}
"""Files that are shared with Java's clients have them. Commands deal in bytes, and pass them over."""


class ClientConfig:
    """Checked values of one client, by Kafka's names. Immutable, and can be pickled."""

    __slots__ = ("_given", "_values", "role")

    def __init__(self, role: str, given: Mapping[str, Any] | None = None, /, **keywords: Any) -> None:
        self.role = role
        merged: dict[str, Any] = {}
        sources = [*(given or {}).items(), *((name.replace("_", "."), v) for name, v in keywords.items())]
        for name, value in sources:
            key = self._resolve(name)
            if key is not None:
                merged[key.name] = key.read(key.name, value)
        self._given = merged
        self._values: dict[str, Any] = {}
        for key in KEYS.values():
            if key.role in (COMMON, role):
                value = merged.get(key.name, key.default)
                if value is REQUIRED:
                    raise ConfigError(f"{key.name} is missing: {key.doc}")
                self._values[key.name] = value
        self._check()

    def _resolve(self, name: str) -> Key | None:
        """The key that ``name`` means; None for one that only other clients know (they share files)."""
        key = _find(name, self.role)
        if key is None:
            LOG.info("%s is passed over; %s", name, IDLE_CLIENT_KEYS[name])
            return None
        return key if key.role in (COMMON, self.role) else None

    def _check(self) -> None:
        """What one key alone cannot tell."""
        values = self._values
        self._check_security(values)
        if self.role == PRODUCER:
            self._check_producer(values)
        elif self.role == CONSUMER and values["heartbeat.interval.ms"] >= values["session.timeout.ms"]:
            raise ConfigError(
                f"heartbeat.interval.ms={values['heartbeat.interval.ms']} must be less than "
                f"session.timeout.ms={values['session.timeout.ms']}; a third of it is usual"
            )

    def _check_security(self, values: dict[str, Any]) -> None:
        protocol = values["security.protocol"]
        if protocol.startswith("sasl"):
            from tidemill.client.login import check_login

            check_login(self)
        elif values["sasl.mechanism"] or values["sasl.jaas.config"]:
            LOG.warning(
                "security.protocol=%s logs in nowhere, though a login is given: set sasl_ssl, "
                "or sasl_plaintext",
                protocol,
            )
        if protocol.endswith("ssl"):
            from tidemill.client.tls import check_tls

            check_tls(self)

    def _check_producer(self, values: dict[str, Any]) -> None:
        wanted = values["enable.idempotence"]
        in_flight = values["max.in.flight.requests.per.connection"]
        possible = values["acks"] == -1 and in_flight <= 5 and values["retries"] > 0
        if wanted is None:
            values["enable.idempotence"] = possible
        else:
            values["enable.idempotence"] = _boolean("enable.idempotence", wanted)
            if values["enable.idempotence"] and not possible:
                raise ConfigError(
                    "enable.idempotence=true needs acks=all, retries of at least 1 and "
                    f"max.in.flight.requests.per.connection of at most 5 (it is {in_flight})"
                )
        level = values["compression.level"]
        if level is not None:
            values["compression.level"] = _number(-131_072, 22)("compression.level", level)
        if values["delivery.timeout.ms"] < values["linger.ms"] + values["request.timeout.ms"]:
            if "delivery.timeout.ms" in self._given:
                raise ConfigError(
                    f"delivery.timeout.ms={values['delivery.timeout.ms']} must be at least linger.ms "
                    f"+ request.timeout.ms = {values['linger.ms'] + values['request.timeout.ms']}"
                )
            values["delivery.timeout.ms"] = values["linger.ms"] + values["request.timeout.ms"]

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def int(self, name: str) -> int:
        """An integer value by its key."""
        value: int = self._values[name]
        return value

    def seconds(self, name: str) -> float:
        """A value in milliseconds, as seconds."""
        value: int = self._values[name]
        return value / 1000

    def bool(self, name: str) -> bool:
        """A boolean value by its key."""
        value: bool = self._values[name]
        return value

    def text(self, name: str) -> str:
        """A text value by its key; empty where there is none."""
        value: str | None = self._values[name]
        return value or ""

    def given(self) -> dict[str, Any]:
        """What was set, checked, by today's names: makes the same configuration again."""
        return dict(self._given)

    def __repr__(self) -> str:
        return f"ClientConfig({self.role!r}, {Settings.of(self._given)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (ClientConfig, (self.role, self.plain_given()))

    def plain_given(self) -> dict[str, Any]:
        """As :meth:`given`, with the servers as the texts that they are written as."""
        plain = dict(self._given)
        servers = plain.get("bootstrap.servers")
        if servers:
            plain["bootstrap.servers"] = [join_address(host, port) for host, port in servers]
        return plain


def _find(name: str, whose: str) -> Key | None:
    """The key that ``name`` means; None for one that is known and has no effect here."""
    if name in GONE:
        raise ConfigError(f"{name} has no meaning for this client: {GONE[name]}")
    key = KEYS.get(ALIASES.get(name, name))
    if key is None and name not in IDLE_CLIENT_KEYS:
        near = difflib.get_close_matches(name, [*KEYS, *ALIASES], 1, 0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        whose = "client" if whose == COMMON else whose
        raise ConfigError(f"{name} is no key of a {whose}{hint}")
    return key


def check_setting(name: str, value: Any) -> None:
    """ConfigError for a key that no client has, or a value that it cannot have."""
    key = _find(name, "client")
    if key is not None:
        key.read(key.name, value)


def config_of(
    role: str,
    bootstrap_servers: str | Sequence[str] | None,
    config: Mapping[str, Any] | None,
    keywords: Mapping[str, Any],
) -> ClientConfig:
    """A client's configuration from what its constructor is given: servers go before the mapping's."""
    given = dict(config or {})
    if bootstrap_servers is not None:
        given["bootstrap.servers"] = bootstrap_servers
    return ClientConfig(role, given, **keywords)


def defaults(role: str) -> dict[str, Any]:
    """The defaults of a role, by key, for help texts."""
    return {
        k.name: k.default for k in KEYS.values() if k.role in (COMMON, role) and k.default is not REQUIRED
    }
