"""The keys of clients: one table with Kafka's names and current defaults, and the names of other clients.

The names of Kafka 0.8, librdkafka and kafka-python are accepted where they mean the same thing. Keys of the
old and new consumer, the old and new producer, and admin that have no effect here are ignored, so that a
configuration file can be shared. An unknown key raises an error that suggests the closest known key, since a
misspelt ``acks`` costs data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tidemill.model.configs.config_def import (
    BOOLEAN,
    CLASS,
    DOUBLE,
    INT,
    INT_MAX,
    LIST,
    LONG,
    PASSWORD,
    READ_ONLY,
    STRING,
    ConfigDef,
    Key,
    Validator,
    Value,
)
from tidemill.model.configs.key_support import (
    CONSUMER_PROTOCOL,
    COUNTERS,
    JAVA,
    KERBEROS,
    KRAFT,
    PROVIDERS,
    SHARE,
    STABLE,
    TELEMETRY,
    YES,
)
from tidemill.model.errors import ConfigError
from tidemill.model.similar_names import did_you_mean
from tidemill.model.unpacked_limit import UNPACKED_BYTES_MAX, UNPACKED_KEY

COMMON, PRODUCER, CONSUMER = "common", "producer", "consumer"
"""The clients that accept a key."""

REQUIRED = "(required)"
"""The default of a key that must be set."""

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM")

_MECHANISM = Validator(
    MECHANISMS.__contains__,
    f"{', '.join(MECHANISMS[:-1])} or {MECHANISMS[-1]}; Kerberos (GSSAPI) is not supported",
)
_ACKS = Validator((-1, 0, 1).__contains__, "0, 1 or all")

Row: TypeAlias = tuple[str, str, int, Value, str | Validator, str]
"""Name, the clients that accept it, type, default, allowed values, description."""

# fmt: off
ROWS: tuple[Row, ...] = (
    ("bootstrap.servers", COMMON, LIST, REQUIRED, "",
     "Brokers to connect to first, host:port, separated by commas"),
    ("client.id", COMMON, STRING, "tidemill", "",
     "Name that the broker sees in its logs and quotas"),
    ("client.rack", COMMON, STRING, "", "",
     "Rack of this client: the consumer reads from a replica in this rack"),
    ("request.timeout.ms", COMMON, LONG, 30_000, "0..",
     "How long to wait for the response to a request"),
    ("socket.connection.setup.timeout.ms", COMMON, LONG, 10_000, "0..",
     "How long a connection may take to open"),
    ("reconnect.backoff.ms", COMMON, LONG, 50, "0..",
     "Pause before the client reconnects to a broker that failed"),
    ("reconnect.backoff.max.ms", COMMON, LONG, 1_000, "0..",
     "The pause doubles with each failure up to this"),
    ("retry.backoff.ms", COMMON, LONG, 100, "0..",
     "Pause before a failed request is sent again"),
    ("retry.backoff.max.ms", COMMON, LONG, 1_000, "0..",
     "The pause doubles with each failure up to this"),
    ("metadata.max.age.ms", COMMON, LONG, 300_000, "0..",
     "Metadata older than this is refreshed"),
    ("send.buffer.bytes", COMMON, INT, 131_072, "-1..",
     "Socket buffer; -1 leaves it to the system"),
    ("receive.buffer.bytes", COMMON, INT, -1, "-1..",
     "Socket buffer; -1 leaves it to the system"),
    ("connections.max.idle.ms", COMMON, LONG, 540_000, "-1..",
     "Idle connections are closed after this time"),
    ("response.bytes.max", COMMON, INT, 256 * 1024 * 1024, "0..",
     "A larger response closes the connection"),
    ("security.protocol", COMMON, STRING, "plaintext", "plaintext|ssl|sasl_plaintext|sasl_ssl",
     "plaintext, ssl, sasl_plaintext or sasl_ssl"),
    ("ssl.truststore.location", COMMON, STRING, None, "",
     "PEM or PKCS12 file of the trusted authorities; those of the system when unset"),
    ("ssl.truststore.password", COMMON, PASSWORD, None, "",
     "Password of a truststore in PKCS12"),
    ("ssl.truststore.certificates", COMMON, STRING, None, "",
     "The same authorities as PEM text"),
    ("ssl.ca.location", COMMON, STRING, None, "",
     "The same authorities as a PEM file, by librdkafka's name"),
    ("ssl.keystore.location", COMMON, STRING, None, "",
     "PEM or PKCS12 file of the client's key and certificate"),
    ("ssl.keystore.password", COMMON, PASSWORD, None, "",
     "Password of a keystore in PKCS12"),
    ("ssl.keystore.key", COMMON, PASSWORD, None, "",
     "The client's key as PEM text"),
    ("ssl.keystore.certificate.chain", COMMON, STRING, None, "",
     "The client's certificate, and chain, as PEM text"),
    ("ssl.certificate.location", COMMON, STRING, None, "",
     "PEM file of the client's certificate, and chain"),
    ("ssl.key.location", COMMON, STRING, None, "",
     "PEM file of the client's key"),
    ("ssl.key.password", COMMON, PASSWORD, None, "",
     "Password of the client's key in PEM"),
    ("ssl.endpoint.identification.algorithm", COMMON, STRING, "https", "https|none",
     "https checks the broker's name; none, or an empty value, does not"),
    ("sasl.mechanism", COMMON, STRING, None, _MECHANISM,
     "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER or AWS_MSK_IAM"),
    ("sasl.jaas.config", COMMON, PASSWORD, None, "",
     "Login in the form of Java's clients: a login module with user and password, or client and secret"),
    ("sasl.username", COMMON, STRING, None, "",
     "User of PLAIN and SCRAM"),
    ("sasl.password", COMMON, PASSWORD, None, "",
     "Password of PLAIN and SCRAM"),
    ("sasl.oauthbearer.token.endpoint.url", COMMON, STRING, None, "",
     "OAuth server that issues tokens for a client id and secret, or the file: URL of a token"),
    ("sasl.oauthbearer.client.credentials.client.id", COMMON, STRING, None, "",
     "Client id at the OAuth server"),
    ("sasl.oauthbearer.client.credentials.client.secret", COMMON, PASSWORD, None, "",
     "Client secret at the OAuth server"),
    ("sasl.oauthbearer.scope", COMMON, STRING, None, "",
     "Scope requested from the OAuth server"),
    ("sasl.oauthbearer.header.urlencode", COMMON, BOOLEAN, False, "",
     "Client id and secret are URL-encoded"),
    ("sasl.oauthbearer.extensions", COMMON, STRING, None, "",
     "SASL extensions of OAUTHBEARER, name=value, separated by commas"),
    ("sasl.oauth.token.provider", COMMON, CLASS, None, "",
     "Callable that returns a token, or token and expiry in seconds since 1970; as text module:function"),
    ("https.ca.location", COMMON, STRING, None, "",
     "PEM file of the authorities of the OAuth server"),
    ("sasl.login.read.timeout.ms", COMMON, LONG, 10_000, "0..",
     "How long the OAuth server may take to respond"),
    ("sasl.login.refresh.window.factor", COMMON, DOUBLE, 0.8, "0.5..1",
     "Fraction of a token's lifetime after which it is replaced"),
    ("sasl.login.refresh.window.jitter", COMMON, DOUBLE, 0.05, "0..0.25",
     "Random fraction of the lifetime that is added"),
    ("sasl.login.refresh.min.period.seconds", COMMON, INT, 60, "0..900",
     "A token is not replaced earlier than this"),
    ("sasl.login.refresh.buffer.seconds", COMMON, INT, 300, "0..3600",
     "A token is replaced at least this long before it expires, if its lifetime is long enough"),
    # producer
    ("acks", PRODUCER, INT, -1, _ACKS,
     "Replicas that must have a message before it is acknowledged: 0, 1 or all"),
    ("enable.idempotence", PRODUCER, BOOLEAN, None, "",
     "No duplicates and no reordering by retries; on by default"),
    ("transactional.id", PRODUCER, STRING, None, "",
     "Name under which the producer has transactions, the same after a restart"),
    ("transaction.timeout.ms", PRODUCER, INT, 60_000, "1..",
     "After this time the coordinator aborts a transaction"),
    ("transaction.two.phase.commit.enable", PRODUCER, BOOLEAN, False, "",
     "Transactions have no timeout: another system decides on their end"),
    ("batch.size", PRODUCER, INT, 131_072, "0..",
     "Size in bytes at which a batch is sent without waiting for more"),
    ("linger.ms", PRODUCER, LONG, 5, "0..",
     "How long a batch waits for more messages"),
    ("buffer.memory", PRODUCER, LONG, 67_108_864, "1..",
     "Bytes that may wait to be sent"),
    ("max.block.ms", PRODUCER, LONG, 60_000, "-1..",
     "How long send() waits for buffer space or metadata"),
    ("max.request.size", PRODUCER, INT, 1_048_576, "0..",
     "Maximum bytes of a request, and of a message"),
    ("delivery.timeout.ms", PRODUCER, INT, 120_000, "0..",
     "From send() to success or failure"),
    ("retries", PRODUCER, INT, INT_MAX, "0..",
     "How often a batch is sent again, within delivery.timeout.ms"),
    ("max.in.flight.requests.per.connection", PRODUCER, INT, 5, "1..",
     "Unacknowledged requests to one broker; at most 5 with idempotence"),
    ("compression.type", PRODUCER, STRING, "none", "none|gzip|snappy|lz4|zstd",
     "none, gzip, snappy, lz4 or zstd"),
    ("compression.level", PRODUCER, INT, None, "-131072..22",
     "Level of gzip, lz4 and zstd; None is the codec's default"),
    ("partitioner", PRODUCER, CLASS, "murmur2", "",
     "murmur2, consistent, roundrobin, sticky, or a callable"),
    # consumer
    ("group.id", CONSUMER, STRING, None, "",
     "Group that shares the partitions and keeps the offsets"),
    ("group.instance.id", CONSUMER, STRING, None, "",
     "Name of a static member: a restart keeps its partitions"),
    ("auto.offset.reset", CONSUMER, STRING, "latest", "earliest|latest|none",
     "Where to start without a committed offset: earliest, latest or none"),
    ("enable.auto.commit", CONSUMER, BOOLEAN, True, "",
     "Commits the offsets of records that poll() returned, in the background"),
    ("auto.commit.interval.ms", CONSUMER, LONG, 5_000, "0..",
     "Time between automatic commits"),
    ("isolation.level", CONSUMER, STRING, "read_uncommitted", "read_uncommitted|read_committed",
     "read_committed skips aborted and open transactions"),
    ("fetch.min.bytes", CONSUMER, INT, 1, "0..",
     "The broker waits until it has this much"),
    ("fetch.max.wait.ms", CONSUMER, INT, 500, "0..",
     "The broker waits at most this long"),
    ("fetch.max.bytes", CONSUMER, INT, 52_428_800, "0..",
     "Maximum bytes of a response"),
    ("max.partition.fetch.bytes", CONSUMER, INT, 1_048_576, "0..",
     "Maximum bytes of a partition in a response"),
    (UNPACKED_KEY, CONSUMER, INT, UNPACKED_BYTES_MAX, "0..",
     "Maximum bytes of the uncompressed records of a compressed batch"),
    ("max.poll.records", CONSUMER, INT, 500, "1..",
     "Maximum number of records that one poll() returns"),
    ("max.poll.interval.ms", CONSUMER, INT, 300_000, "0..",
     "A member that does not poll for longer leaves the group; a static member stops its heartbeats"),
    ("session.timeout.ms", CONSUMER, INT, 45_000, "0..",
     "A member without a heartbeat for longer is removed from the group"),
    ("heartbeat.interval.ms", CONSUMER, INT, 3_000, "0..",
     "Time between heartbeats"),
    ("partition.assignment.strategy", CONSUMER, LIST, ("range", "cooperative-sticky"), "",
     "Assignors in order of preference: range, roundrobin, sticky, cooperative-sticky"),
    ("check.crcs", CONSUMER, BOOLEAN, True, "",
     "Verifies the checksum of every batch"),
    ("allow.auto.create.topics", COMMON, BOOLEAN, True, "",
     "The broker may create a topic that does not exist"),
    ("exclude.internal.topics", CONSUMER, BOOLEAN, True, "",
     "A pattern does not match __consumer_offsets"),
    ("default.api.timeout.ms", COMMON, INT, 60_000, "0..",
     "How long a blocking call may take"),
)
# fmt: on

SPELLINGS: Mapping[str, Mapping[str, str]] = {
    "acks": {"all": "-1"},
    "auto.offset.reset": {"smallest": "earliest", "largest": "latest"},
    "compression.type": {"0": "none", "1": "gzip", "2": "snappy", "3": "lz4", "4": "zstd"},
    "sasl.mechanism": {name.lower(): name for name in MECHANISMS},
    "ssl.endpoint.identification.algorithm": {"": "none"},
}
"""Other spellings of values: those of Kafka 0.8, and in other letters."""

BOOLEAN_SPELLINGS: Mapping[str, str] = {
    **dict.fromkeys(("1", "yes", "on"), "true"),
    **dict.fromkeys(("0", "no", "off"), "false"),
}

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
"""The key for each name of Kafka 0.8, librdkafka and kafka-python, and for each short name."""

GONE: dict[str, str] = {
    "zookeeper.connect": "clients connect to brokers only; give bootstrap.servers",
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
    # From librdkafka and kafka-python. The PEM of a key has one name only, which marks it as a secret.
    "enable.ssl.certificate.verification": "certificates are checked; name their authority: ssl.ca.location",
    "sasl.oauthbearer.config": "give sasl.oauthbearer.token.endpoint.url or sasl.oauth.token.provider",
    "sasl.oauthbearer.method": "leave it out; sasl.oauthbearer.token.endpoint.url or "
    "sasl.oauth.token.provider says where tokens come from",
    "ssl.check.hostname": "give ssl.endpoint.identification.algorithm: https checks names, none does not",
    "ssl.context": "give ssl.ca.location, ssl.certificate.location and ssl.key.location",
    "ssl.key.pem": "give the key's PEM as ssl.keystore.key",
}
"""Known keys that have no effect here, with the alternative."""

SERIALIZERS = {name for name in GONE if name.endswith(("serializer", "serializer.class"))}
"""Keys of files that are shared with Java's clients. Commands use bytes and ignore these keys."""

ALL_TOPICS = "no effect: compression applies to all topics of a producer"
CHUNKS = "no effect: one fetch per broker is prefetched"
DNS = "no effect: all addresses of a host name are tried"
OLD_CONSUMER = "comes with a later version: consumers that keep their offsets in ZooKeeper"
POLL_TIMEOUT = "no effect: poll() takes its timeout as an argument"
REBOOTSTRAP = (
    "comes with a later version: rebootstrapping from bootstrap.servers; known brokers are retried for ever"
)
SMALL_METADATA = "no effect: metadata of all topics in use is kept"
STICKY = "no effect: records without a key go to one partition per batch, independent of the broker's speed"
ONE_LEVEL = "no effect: compression.level sets the level of the codec that is used"
ONE_TIMEOUT = "no effect: the connection timeout does not grow after failed attempts"
OWN_PARTITIONER = "no effect: partitioner=sticky or roundrobin ignores keys"
NO_PAUSE = "no effect: retry.backoff.ms is the pause before the leader is looked up again"
ONE_LOGIN_TIMEOUT = "no effect: sasl.login.read.timeout.ms also limits connecting"
LOGIN_PAUSE = "no effect: a token is requested again with the next connection to a broker"
TLS_DEFAULTS = "no effect: TLS uses Python's defaults, version 1.2 or later"
STORE_TYPE = "no effect: PEM and PKCS12 files are recognised by their first bytes"
ASSERTION = "comes with a later version: signed assertions instead of a client secret"
VALIDATION = "no effect: the broker validates tokens, a client does not"

IDLE_CLIENT_KEYS: dict[str, str] = {
    "bootstrap.controllers": KRAFT,
    "client.dns.lookup": DNS,
    "compressed.topics": ALL_TOPICS,
    "compression.gzip.level": ONE_LEVEL,
    "compression.lz4.level": ONE_LEVEL,
    "compression.zstd.level": ONE_LEVEL,
    "config.providers": PROVIDERS,
    "consumer.id": OLD_CONSUMER,
    "consumer.timeout.ms": POLL_TIMEOUT,
    "dual.commit.enabled": OLD_CONSUMER,
    "enable.metrics.push": TELEMETRY,
    "group.protocol": CONSUMER_PROTOCOL,
    "group.remote.assignor": CONSUMER_PROTOCOL,
    "interceptor.classes": JAVA,
    "internal.throw.on.fetch.stable.offset.unsupported": STABLE,
    "metadata.max.idle.ms": SMALL_METADATA,
    "metadata.recovery.rebootstrap.trigger.ms": REBOOTSTRAP,
    "metadata.recovery.strategy": REBOOTSTRAP,
    "metric.reporters": JAVA,
    "metrics.num.samples": COUNTERS,
    "metrics.recording.level": COUNTERS,
    "metrics.sample.window.ms": COUNTERS,
    "offsets.channel.backoff.ms": OLD_CONSUMER,
    "offsets.channel.socket.timeout.ms": OLD_CONSUMER,
    "offsets.commit.max.retries": OLD_CONSUMER,
    "offsets.storage": OLD_CONSUMER,
    "partitioner.adaptive.partitioning.enable": STICKY,
    "partitioner.availability.timeout.ms": STICKY,
    "partitioner.ignore.keys": OWN_PARTITIONER,
    "queued.max.message.chunks": CHUNKS,
    "rebalance.backoff.ms": OLD_CONSUMER,
    "rebalance.max.retries": OLD_CONSUMER,
    "refresh.leader.backoff.ms": NO_PAUSE,
    "sasl.client.callback.handler.class": JAVA,
    "sasl.kerberos.kinit.cmd": KERBEROS,
    "sasl.kerberos.min.time.before.relogin": KERBEROS,
    "sasl.kerberos.service.name": KERBEROS,
    "sasl.kerberos.ticket.renew.jitter": KERBEROS,
    "sasl.kerberos.ticket.renew.window.factor": KERBEROS,
    "sasl.login.callback.handler.class": JAVA,
    "sasl.login.class": JAVA,
    "sasl.login.connect.timeout.ms": ONE_LOGIN_TIMEOUT,
    "sasl.login.retry.backoff.max.ms": LOGIN_PAUSE,
    "sasl.login.retry.backoff.ms": LOGIN_PAUSE,
    "sasl.oauthbearer.assertion.algorithm": ASSERTION,
    "sasl.oauthbearer.assertion.claim.aud": ASSERTION,
    "sasl.oauthbearer.assertion.claim.exp.seconds": ASSERTION,
    "sasl.oauthbearer.assertion.claim.iss": ASSERTION,
    "sasl.oauthbearer.assertion.claim.jti.include": ASSERTION,
    "sasl.oauthbearer.assertion.claim.nbf.seconds": ASSERTION,
    "sasl.oauthbearer.assertion.claim.sub": ASSERTION,
    "sasl.oauthbearer.assertion.file": ASSERTION,
    "sasl.oauthbearer.assertion.private.key.file": ASSERTION,
    "sasl.oauthbearer.assertion.private.key.passphrase": ASSERTION,
    "sasl.oauthbearer.assertion.template.file": ASSERTION,
    "sasl.oauthbearer.clock.skew.seconds": VALIDATION,
    "sasl.oauthbearer.expected.audience": VALIDATION,
    "sasl.oauthbearer.expected.issuer": VALIDATION,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": VALIDATION,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": VALIDATION,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": VALIDATION,
    "sasl.oauthbearer.jwks.endpoint.url": VALIDATION,
    "sasl.oauthbearer.jwt.retriever.class": JAVA,
    "sasl.oauthbearer.jwt.validator.class": JAVA,
    "sasl.oauthbearer.scope.claim.name": VALIDATION,
    "sasl.oauthbearer.sub.claim.name": VALIDATION,
    "security.providers": JAVA,
    "share.acknowledgement.mode": SHARE,
    "share.acquire.mode": SHARE,
    "socket.connection.setup.timeout.max.ms": ONE_TIMEOUT,
    "ssl.cipher.suites": TLS_DEFAULTS,
    "ssl.enabled.protocols": TLS_DEFAULTS,
    "ssl.engine.factory.class": JAVA,
    "ssl.keymanager.algorithm": JAVA,
    "ssl.keystore.type": STORE_TYPE,
    "ssl.protocol": TLS_DEFAULTS,
    "ssl.provider": JAVA,
    "ssl.secure.random.implementation": JAVA,
    "ssl.trustmanager.algorithm": JAVA,
    "ssl.truststore.type": STORE_TYPE,
    "zookeeper.connection.timeout.ms": OLD_CONSUMER,
    "zookeeper.session.timeout.ms": OLD_CONSUMER,
    "zookeeper.sync.time.ms": OLD_CONSUMER,
}
"""Maps each key to the reason why it has no effect."""


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


def _servers(name: str, value: Any) -> tuple[tuple[str, int], ...]:
    parts = value.split(",") if isinstance(value, str) else list(value or ())
    servers = tuple(parse_address(str(part).strip()) for part in parts if str(part).strip())
    if not servers:
        raise ConfigError(f"{name}={value!r} names no server; give host:port, separated by commas")
    return servers


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
        raise ConfigError(f"bootstrap.servers has {text!r}, which is not host:port (IPv6: [address]:port)")
    if len(port) > PORT_DIGITS_MAX or not 0 < int(port) < 65536:
        raise ConfigError(f"bootstrap.servers has {text!r}, whose port is not between 1 and 65535")
    try:
        host.encode("idna")
    except UnicodeError:
        raise ConfigError(
            f"bootstrap.servers has {text!r}, whose host is invalid: each label has 1 to 63 characters"
        ) from None
    return host, int(port)


CONVERSIONS: Mapping[str, Callable[[str, Any], Any]] = {
    "bootstrap.servers": _servers,
    "partition.assignment.strategy": _strategies,
    "sasl.oauth.token.provider": _provider,
}
"""Readers of values that are Python objects."""


def _key(row: Row) -> Key:
    name, role, kind, default, allowed, doc = row
    spellings = dict(BOOLEAN_SPELLINGS if kind == BOOLEAN else SPELLINGS.get(name, {}))
    if kind == STRING and isinstance(allowed, str) and allowed:
        spellings |= {choice: choice for choice in allowed.split("|")}
    definition = (name, kind, default, allowed, READ_ONLY, YES, doc)
    return Key(definition, role, spellings=spellings, convert=CONVERSIONS.get(name))


KEYS = ConfigDef("client", map(_key, ROWS))


def find_key(name: str, role: str) -> Key | None:
    """Returns the key of ``name``; None for a known key that has no effect here. Raises ConfigError."""
    if name in GONE:
        raise ConfigError(f"{name} has no meaning for this client: {GONE[name]}")
    key = KEYS.get(ALIASES.get(name, name))
    if key is None and name not in IDLE_CLIENT_KEYS:
        client = "client" if role == COMMON else role
        raise ConfigError(f"{name} is not a key of a {client}{did_you_mean(name, [*KEYS, *ALIASES])}")
    return key


def check_setting(name: str, value: Any) -> None:
    """Raises ConfigError for a key that no client has, or an invalid value."""
    key = find_key(name, COMMON)
    if key is not None:
        key.parse(value)
