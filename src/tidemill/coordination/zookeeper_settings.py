"""Where ZooKeeper is and how it is spoken to: what the keys ``zookeeper.*`` come to."""

from __future__ import annotations

import os
from typing import NamedTuple

from tidemill.coordination.port import check_path
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ConfigError

DEFAULT_PORT = 2181
DIGEST_MD5 = "DIGEST-MD5"
GSSAPI = "GSSAPI"


class Sasl(NamedTuple):
    """A login by SASL. Kerberos (``GSSAPI``) takes its tickets from the process's cache."""

    mechanism: str
    username: str = ""
    password: str = ""
    service: str = "zookeeper"


class Tls(NamedTuple):
    """Files in PEM format; an empty name leaves that part out."""

    key_and_certificate: str = ""
    key_password: str = ""
    authorities: str = ""
    check_host: bool = True


class ZooKeeperSettings(NamedTuple):
    """One ensemble, and the part of its tree that is ours. Times are in milliseconds."""

    hosts: str
    """``host:port,host:port``"""
    chroot: str = ""
    """Empty, or a path that all others lie below."""
    session_timeout_ms: int = 18_000
    connection_timeout_ms: int = 18_000
    in_flight_max: int = 10
    set_acl: bool = False
    digest: str = ""
    """``user:password`` of ZooKeeper's own scheme."""
    sasl: Sasl | None = None
    tls: Tls | None = None

    @property
    def shown(self) -> str:
        """What people call it."""
        return f"{self.hosts}{self.chroot}"

    @property
    def logs_in(self) -> bool:
        """Whether the session says who it is."""
        return bool(self.digest or self.sasl or (self.tls and self.tls.key_and_certificate))


def parse_connect(text: str) -> tuple[str, str]:
    """``host:port,host:port/chroot`` as hosts and chroot; ConfigError when it is something else."""
    hosts, slash, path = text.strip().partition("/")
    chroot = f"/{path.rstrip('/')}" if slash and path.strip("/") else ""
    try:
        if chroot:
            check_path(chroot)
        places = [_place(place.strip()) for place in hosts.split(",")]
    except ValueError as problem:
        raise ConfigError(
            f"zookeeper.connect={text}: {problem}. It must be host:port, or several with commas, and at the "
            "end of all /path when the cluster has a part of the tree to itself."
        ) from None
    return ",".join(places), chroot


def _place(place: str) -> str:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):
        host, port = place, str(DEFAULT_PORT)
    if not host or any(character.isspace() for character in host):
        raise ValueError(f"{place!r} names no host")
    if ":" in host and not host.startswith("["):
        raise ValueError(f"{place!r} is no host:port; an IPv6 address stands in brackets")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{port!r} is no port")
    return f"{host}:{port}"


def settings_of(config: BrokerConfig) -> ZooKeeperSettings:
    """What a broker's configuration says; ConfigError with the key and the next step when it cannot be."""
    connect = config.str("zookeeper.connect")
    if not connect:
        raise ConfigError(
            "tidemill.store=zookeeper needs zookeeper.connect: where ZooKeeper is, as host:2181"
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
            "zookeeper.set.acl=true keeps nodes for whoever made them, and this broker would not say who it "
            "is. Set tidemill.zookeeper.sasl.mechanism, tidemill.zookeeper.digest or "
            "zookeeper.ssl.keystore.location, or leave zookeeper.set.acl out."
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
                    f"{key}={path} is no PEM file. Export it: keytool -importkeystore to PKCS12, then "
                    "openssl pkcs12 -nodes."
                )
    algorithm = config.str("zookeeper.ssl.endpoint.identification.algorithm")
    return Tls(
        config.str("zookeeper.ssl.keystore.location"),
        config.str("zookeeper.ssl.keystore.password"),
        config.str("zookeeper.ssl.truststore.location"),
        algorithm.upper() == "HTTPS",
    )
