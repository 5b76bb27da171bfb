"""The address of ZooKeeper and the login: the settings of the keys ``zookeeper.*``."""

from __future__ import annotations

import os
from typing import NamedTuple

from tidemill.coordination.coordination_store import check_path
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ConfigError

DEFAULT_PORT = 2181
DIGEST_MD5 = "DIGEST-MD5"


class Sasl(NamedTuple):
    """A SASL login. Kerberos (``GSSAPI``) uses the tickets in the process's cache."""

    mechanism: str
    username: str = ""
    password: str = ""
    service: str = "zookeeper"


class Tls(NamedTuple):
    """Files in PEM format; an empty name omits that part."""

    key_and_certificate: str = ""
    key_password: str = ""
    authorities: str = ""
    check_host: bool = True


class ZooKeeperSettings(NamedTuple):
    """One ensemble, and the cluster's part of its tree. Times are in milliseconds."""

    hosts: str
    """``host:port,host:port``"""
    chroot: str = ""
    """Empty, or the common parent path of all nodes."""
    session_timeout_ms: int = 18_000
    connection_timeout_ms: int = 18_000
    in_flight_max: int = 10
    set_acl: bool = False
    digest: str = ""
    """``user:password`` of ZooKeeper's digest scheme."""
    sasl: Sasl | None = None
    tls: Tls | None = None

    @property
    def shown(self) -> str:
        """The connection string for display."""
        return f"{self.hosts}{self.chroot}"

    @property
    def logs_in(self) -> bool:
        """Whether the session authenticates itself."""
        return bool(self.digest or self.sasl or (self.tls and self.tls.key_and_certificate))


def parse_connect(text: str) -> tuple[str, str]:
    """Splits ``host:port,host:port/chroot`` into hosts and chroot; raises ConfigError if malformed."""
    hosts, slash, path = text.strip().partition("/")
    chroot = f"/{path.rstrip('/')}" if slash and path.strip("/") else ""
    try:
        if chroot:
            check_path(chroot)
        places = [_place(place.strip()) for place in hosts.split(",")]
    except ValueError as problem:
        raise ConfigError(
            f"zookeeper.connect={text}: {problem}. It must be host:port, or several with commas, with "
            "/path at the end of all when the cluster has its own part of the tree."
        ) from None
    return ",".join(places), chroot


def _place(place: str) -> str:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    if not host or any(character.isspace() for character in host):
        raise ValueError(f"{place!r} contains no host")
    if ":" in host and not host.startswith("["):
        raise ValueError(f"{place!r} is not host:port; an IPv6 address needs brackets")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{port!r} is not a port")
    return f"{host}:{port}"


def settings_of(config: BrokerConfig) -> ZooKeeperSettings:
    """Returns the settings of a broker configuration; raises ConfigError with the key and the next step."""
    connect = config.str("zookeeper.connect")
    if not connect:
        raise ConfigError(
            "tidemill.store=zookeeper needs zookeeper.connect: the address of ZooKeeper, as host:2181"
        )
    hosts, chroot = parse_connect(connect)
    session_ms = config.int("zookeeper.session.timeout.ms")
    settings = ZooKeeperSettings(
        hosts,
        chroot,
        session_ms,
        config.int("zookeeper.connection.timeout.ms") or session_ms,
        config.int("zookeeper.max.in.flight.requests"),
        config.bool("zookeeper.set.acl"),
        config.str("tidemill.zookeeper.digest"),
        _sasl(config),
        _tls(config),
    )
    if settings.digest and ":" not in settings.digest:
        raise ConfigError("tidemill.zookeeper.digest must be user:password; it has no colon")
    if settings.set_acl and not settings.logs_in:
        raise ConfigError(
            "zookeeper.set.acl=true restricts nodes to their creator, and this broker would not authenticate "
            "itself. Set tidemill.zookeeper.sasl.mechanism, tidemill.zookeeper.digest or "
            "zookeeper.ssl.keystore.location, or omit zookeeper.set.acl."
        )
    return settings


def _sasl(config: BrokerConfig) -> Sasl | None:
    mechanism = config.str("tidemill.zookeeper.sasl.mechanism")
    if not mechanism:
        return None
    sasl = Sasl(
        mechanism,
        config.str("tidemill.zookeeper.sasl.username"),
        config.str("tidemill.zookeeper.sasl.password"),
        config.str("tidemill.zookeeper.sasl.service"),
    )
    if mechanism == DIGEST_MD5 and not (sasl.username and sasl.password):
        raise ConfigError(
            f"tidemill.zookeeper.sasl.mechanism={DIGEST_MD5} needs tidemill.zookeeper.sasl.username and "
            "tidemill.zookeeper.sasl.password"
        )
    return sasl


def _tls(config: BrokerConfig) -> Tls | None:
    if not config.bool("zookeeper.ssl.client.enable"):
        return None
    for key in ("zookeeper.ssl.keystore.location", "zookeeper.ssl.truststore.location"):
        path = config.str(key)
        if not path:
            continue
        if not os.access(path, os.R_OK):
            raise ConfigError(f"{key}={path}: there is no such file, or this user may not read it")
        with open(path, "rb") as file:
            if b"-----BEGIN " not in file.read(1 << 20):
                raise ConfigError(
                    f"{key}={path} is not a PEM file. Export it: keytool -importkeystore to PKCS12, then "
                    "openssl pkcs12 -nodes."
                )
    algorithm = config.str("zookeeper.ssl.endpoint.identification.algorithm")
    return Tls(
        config.str("zookeeper.ssl.keystore.location"),
        config.str("zookeeper.ssl.keystore.password"),
        config.str("zookeeper.ssl.truststore.location"),
        algorithm.upper() == "HTTPS",
    )
