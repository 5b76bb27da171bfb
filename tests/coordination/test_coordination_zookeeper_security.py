"""Authentication, access lists and TLS of ZooKeeper, with a real server."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from zookeeper_sessions import Settings, opened

from tidemill.coordination.coordination_store import (
    Create,
    Delete,
    NoAccess,
    SetData,
    StoreError,
    StoreUnavailable,
)
from tidemill.coordination.zookeeper_settings import Sasl, Tls, ZooKeeperSettings, parse_connect, settings_of
from tidemill.coordination.zookeeper_store import ZooKeeperStore
from tidemill.model.configs import BrokerConfig
from tidemill.model.errors import ConfigError
from tidemill.testing.zookeeper import ZooKeeper

JAAS = 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_kafka="secret"; };\n'
KAFKA = Sasl("DIGEST-MD5", "kafka", "secret")
CONNECT_MS = 8000


def make_certificates(directory: Path) -> None:
    """Creates a certificate authority (``ca.pem``), and certificates of ``server`` and ``client``."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True, timeout=60)

    new_key = ["req", "-newkey", "rsa:2048", "-nodes", "-subj"]
    openssl(*new_key, "/CN=ca", "-x509", "-days", "2", "-keyout", "ca.key", "-out", "ca.pem")
    (directory / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ["x509", "-req", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"]
    for name in ("server", "client"):
        openssl(*new_key, f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.csr")
        openssl(*signed, "-extfile", "names", "-in", f"{name}.csr", "-out", f"{name}.crt")
        key, certificate = (directory / f"{name}.{kind}" for kind in ("key", "crt"))
        (directory / f"{name}.pem").write_text(key.read_text() + certificate.read_text())


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ZooKeeper, int, Path]]:
    """A server with SASL and TLS, its TLS port, and the directory of the certificates."""
    directory = tmp_path_factory.mktemp("secure")
    make_certificates(directory)
    (directory / "jaas.conf").write_text(JAAS)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = {
        "authProvider.1": "org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "secureClientPort": str(port),
        "secureClientPortAddress": "127.0.0.1",
        "ssl.keyStore.location": str(directory / "server.pem"),
        "ssl.trustStore.location": str(directory / "ca.pem"),
        "ssl.clientAuth": "need",
    }
    options = [f"-Djava.security.auth.login.config={directory / 'jaas.conf'}"]
    with ZooKeeper(settings, options=options) as server:
        yield server, port, directory


async def test_nodes_of_an_authenticated_session_are_read_only_for_others(zookeeper: Settings) -> None:
    mine = zookeeper(digest="broker:secret", set_acl=True)
    async with opened(mine) as owner, opened(mine._replace(digest="", set_acl=False)) as stranger:
        await owner.store.transact([Create("/a", b"1"), Create("/consumers"), Create("/config")])
        await owner.store.transact([Create("/config/users"), Create("/config/users/u", b"secret")])
        assert await stranger.store.get("/a") is not None
        for operation in (SetData("/a", b"2"), Create("/a/b"), Delete("/a")):
            with pytest.raises(NoAccess, match="not open to this login") as caught:
                await stranger.store.transact([Create("/consumers/x"), operation])
            assert (caught.value.path, caught.value.index) == (operation.path, 1)
        for read in (stranger.store.get("/config/users/u"), stranger.store.children("/config/users")):
            with pytest.raises(NoAccess, match="/config/users"):
                await read
        await stranger.store.transact([Create("/consumers/theirs")])
        async with opened(mine) as again:
            await again.store.transact([SetData("/a", b"2"), SetData("/config/users/u", b"new")])


async def test_creates_the_chroot_with_an_access_list(zookeeper: Settings) -> None:
    settings = zookeeper(digest="broker:secret", set_acl=True)

    async with opened(settings):
        pass
    stranger = settings._replace(digest="other:secret", chroot=f"{settings.chroot}/below")
    with pytest.raises(StoreError, match="below, which does not exist and could not be created"):
        await ZooKeeperStore.open(stranger)
    client = KazooClient(settings.hosts)
    client.start()
    acls, _ = client.get_acls(settings.chroot)
    client.stop()
    client.close()
    assert [(acl.id.scheme, acl.perms) for acl in acls] == [("digest", 31), ("world", 1)]


async def test_the_server_rejects_access_lists_without_authentication(zookeeper: Settings) -> None:
    with pytest.raises(StoreError, match="without a login"):
        await ZooKeeperStore.open(zookeeper(set_acl=True))


async def test_authenticates_with_sasl(secure: tuple[ZooKeeper, int, Path]) -> None:
    settings = ZooKeeperSettings(secure[0].address, "/sasl", sasl=KAFKA, set_acl=True)
    async with opened(settings) as owner, opened(settings._replace(sasl=None, set_acl=False)) as stranger:
        await owner.store.transact([Create("/a")])
        with pytest.raises(NoAccess):
            await stranger.store.transact([SetData("/a", b"x")])
        await owner.store.transact([SetData("/a", b"x")])


@pytest.mark.parametrize("sasl", [KAFKA._replace(password="wrong"), KAFKA._replace(username="nobody")])
async def test_reports_a_rejected_authentication_at_once(
    secure: tuple[ZooKeeper, int, Path], sasl: Sasl
) -> None:
    settings = ZooKeeperSettings(secure[0].address, sasl=sasl, connection_timeout_ms=60_000)
    async with asyncio.timeout(30):
        with pytest.raises(StoreUnavailable, match="refused the login") as caught:
            await ZooKeeperStore.open(settings)
    assert "tidemill.zookeeper.sasl" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "wrong" not in str(caught.value)


def test_reports_a_server_that_requires_authentication() -> None:
    async def story(address: str) -> None:
        settings = ZooKeeperSettings(address, connection_timeout_ms=CONNECT_MS)
        with pytest.raises(StoreError, match="requires a login"):
            await ZooKeeperStore.open(settings)
        async with opened(settings._replace(digest="broker:secret")) as session:
            await session.store.transact([Create("/a")])

    enforced = ["-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes=digest"]
    with ZooKeeper(options=enforced) as server:
        asyncio.run(story(server.address))


def tls_settings(secure: tuple[ZooKeeper, int, Path], tls: Tls) -> ZooKeeperSettings:
    return ZooKeeperSettings(
        f"127.0.0.1:{secure[1]}", "/tls", connection_timeout_ms=CONNECT_MS, tls=tls, in_flight_max=50
    )


async def test_authenticates_with_a_tls_certificate(secure: tuple[ZooKeeper, int, Path]) -> None:
    tls = Tls(str(secure[2] / "client.pem"), authorities=str(secure[2] / "ca.pem"))
    async with opened(tls_settings(secure, tls)) as session:
        await session.store.transact([Create("/a"), Create("/large", b"x" * 500_000)])
        await asyncio.gather(*(session.store.transact([Create(f"/a/{n}")]) for n in range(300)))
        assert len(await session.store.children("/a")) == 300
        node = await session.store.get("/large")
        assert node is not None
        assert node.data == b"x" * 500_000


async def test_rejects_a_server_with_an_untrusted_certificate(secure: tuple[ZooKeeper, int, Path]) -> None:
    settings = tls_settings(secure, Tls(str(secure[2] / "client.pem")))
    with pytest.raises(StoreUnavailable, match="certificate verify failed"):
        await ZooKeeperStore.open(settings._replace(connection_timeout_ms=1500))


async def test_reports_unsuitable_tls_files(tmp_path: Path) -> None:
    make_certificates(tmp_path)

    tls = Tls(str(tmp_path / "ca.pem"), authorities=str(tmp_path / "ca.pem"))
    with pytest.raises(StoreError, match=r"cannot be set up from .*ca\.pem"):
        await ZooKeeperStore.open(ZooKeeperSettings("127.0.0.1:1", tls=tls))


# Configuration


@pytest.mark.parametrize(
    ("text", "hosts", "chroot"),
    [
        ("one:2181", "one:2181", ""),
        ("one", "one:2181", ""),
        ("one:1, two:2,three/kafka/a/", "one:1,two:2,three:2181", "/kafka/a"),
        ("[::1]:2182/x", "[::1]:2182", "/x"),
        ("one:2181/", "one:2181", ""),
    ],
)
def test_parses_an_address(text: str, hosts: str, chroot: str) -> None:
    assert parse_connect(text) == (hosts, chroot)


@pytest.mark.parametrize("text", ["", ",", "one:x", "one:0", "::1:2181", "one:1/../x", "one:1//", "a b"])
def test_rejects_an_invalid_address(text: str) -> None:
    if text == "one:1//":
        assert parse_connect(text) == ("one:1", "")
        return
    with pytest.raises(ConfigError, match="host:port"):
        parse_connect(text)


def test_applies_the_keys_to_the_session(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    settings = settings_of(
        BrokerConfig.of(
            {
                "zookeeper.connect": "one:1,two/k",
                "zookeeper.session.timeout.ms": "7000",
                "zookeeper.max.in.flight.requests": "33",
                "zookeeper.set.acl": "true",
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.ssl.keystore.location": str(tmp_path / "client.pem"),
                "zookeeper.ssl.keystore.password": "pw",
                "zookeeper.ssl.truststore.location": str(tmp_path / "ca.pem"),
                "zookeeper.ssl.endpoint.identification.algorithm": "",
                "tidemill.zookeeper.sasl.mechanism": "DIGEST-MD5",
                "tidemill.zookeeper.sasl.username": "u",
                "tidemill.zookeeper.sasl.password": "p",
            }
        )
    )
    assert settings == ZooKeeperSettings(
        "one:1,two:2181",
        "/k",
        7000,
        7000,
        33,
        True,
        "",
        Sasl("DIGEST-MD5", "u", "p", "zookeeper"),
        Tls(str(tmp_path / "client.pem"), "pw", str(tmp_path / "ca.pem"), False),
    )


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl=true"),
        ({"tidemill.zookeeper.digest": "nocolon"}, "user:password"),
        ({"tidemill.zookeeper.sasl.mechanism": "DIGEST-MD5"}, "sasl.username"),
        (
            {"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.truststore.location": "/no/such.pem"},
            "/no/such.pem",
        ),
        ({"zookeeper.ssl.client.enable": "true", "zookeeper.ssl.keystore.location": __file__ + "/.."}, "PEM"),
    ],
)
def test_rejects_inconsistent_keys(others: dict[str, str], said: str, tmp_path: Path) -> None:
    if "zookeeper.ssl.keystore.location" in others:
        (tmp_path / "store.jks").write_bytes(b"\xfe\xed\xfe\xed" * 9)
        others = {**others, "zookeeper.ssl.keystore.location": str(tmp_path / "store.jks")}
    with pytest.raises(ConfigError, match=said):
        settings_of(BrokerConfig.of({"zookeeper.connect": "one:1", **others}))
