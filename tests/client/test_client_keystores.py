"""Certificates and keys in every form that Kafka's clients use."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import PrivateFormat

from tidemill.client import keystores
from tidemill.client.config import ClientConfig
from tidemill.client.config_keys import COMMON
from tidemill.client.tls import TlsSettings, context_for
from tidemill.model.errors import ConfigError

sys.path.append(str(Path(__file__).parents[1]))

from certificates import Signed, authority, signed, write

PASSWORD = "st0re-password"


class Store:
    """An authority, a client certificate signed by it, and their files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ca = authority("ca")
        self.client = signed(self.ca, "client")

    def file(self, name: str, content: str | bytes) -> str:
        return write(self.directory / name, content)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return Store(tmp_path_factory.mktemp("keystores"))


def config(**settings: Any) -> ClientConfig:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return ClientConfig(COMMON, {"bootstrap.servers": "unused:1", "security.protocol": "ssl", **given})


def names(context: ssl.SSLContext) -> list[str]:
    """Returns the common names of the trusted authorities."""
    found: list[Any] = context.get_ca_certs()
    return [dict(pair for part in one["subject"] for pair in part)["commonName"] for one in found]


def shows(settings: dict[str, str], client: Signed, ca: Signed, directory: Path) -> bool:
    """Whether a handshake with a server that requires certificates ends with the client's certificate."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own = signed(ca, "server", "localhost")
    server.load_cert_chain(write(directory / "s.pem", own.pem), write(directory / "s.key", own.key_pem))
    server.load_verify_locations(cadata=ca.pem)
    server.verify_mode = ssl.CERT_REQUIRED
    context = context_for(config(**settings))
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    there = context.wrap_bio(to_client, to_server, server_hostname="localhost")
    here = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (there, here):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found: Any = here.getpeercert(binary_form=True)
    return bool(found == ssl.PEM_cert_to_DER_cert(client.pem))


def test_trusted_authorities_come_from_pem_pkcs12_and_text(store: Store) -> None:
    pem = store.file("ca.pem", store.ca.pem)
    both = store.client.pkcs12(PASSWORD, store.ca)
    for settings in (
        {"ssl.ca.location": pem},
        {"ssl.cafile": pem},
        {"ssl.truststore.location": pem, "ssl.truststore.type": "PEM"},
        {"ssl.truststore.certificates": store.ca.pem},
        {"ssl.truststore.certificates": " ".join(store.ca.pem.split("\n"))},  # one line of a properties file
    ):
        assert names(context_for(config(**settings))) == ["ca"], settings
    settings = {"ssl.truststore.location": store.file("t.p12", both), "ssl.truststore.password": PASSWORD}
    assert "ca" in names(context_for(config(**settings)))


def test_a_truststore_replaces_the_authorities_of_the_system(store: Store) -> None:
    assert names(context_for(config(**{"ssl.ca.location": store.file("ca.pem", store.ca.pem)}))) == ["ca"]


@pytest.mark.skipif(shutil.which("keytool") is None, reason="stores of Java are made by keytool")
@pytest.mark.parametrize("kind", ["PKCS12", "JKS"])
def test_a_truststore_of_keytool_is_read_or_its_conversion_is_named(
    store: Store, kind: str, tmp_path: Path
) -> None:
    path = tmp_path / "store.jks"
    pem = store.file("ca.pem", store.ca.pem)
    command = ["keytool", "-importcert", "-noprompt", "-alias", "ca", "-file", pem, "-keystore", str(path)]
    subprocess.run(
        [*command, "-storetype", kind, "-storepass", PASSWORD], check=True, capture_output=True, timeout=60
    )
    made = config(**{"ssl.truststore.location": str(path), "ssl.truststore.password": PASSWORD})
    if kind == "PKCS12":
        assert names(context_for(made)) == ["ca"]
        return
    with pytest.raises(
        ConfigError, match=r"JKS store, which only Java reads.*keytool -importkeystore"
    ) as caught:
        context_for(made)
    conversion = str(caught.value).partition("use that file: ")[2].split()
    answer = f"{PASSWORD}\n{PASSWORD}\n{PASSWORD}\n".encode()
    subprocess.run(conversion, input=answer, check=True, capture_output=True, timeout=60)
    made = config(
        **{"ssl.truststore.location": str(tmp_path / "store.p12"), "ssl.truststore.password": PASSWORD}
    )
    assert names(context_for(made)) == ["ca"]


def _crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def test_a_client_presents_its_certificate_from_every_form(store: Store, tmp_path: Path) -> None:
    ca, client = store.ca, store.client
    pem, key = store.file("c.pem", client.pem), store.file("c.key", client.key_pem)
    locked = store.file("locked.key", client.encrypted_key_pem(PASSWORD))
    older = client.encrypted_key_pem(PASSWORD, PrivateFormat.TraditionalOpenSSL)
    assert "Proc-Type" in older
    forms: list[dict[str, str]] = [
        {"ssl.certificate.location": pem, "ssl.key.location": key},
        {"ssl.certfile": pem, "ssl.keyfile": locked, "ssl.key.password": PASSWORD},
        {"ssl.certificate.location": store.file("both.pem", client.key_pem + client.pem)},
        {"ssl.keystore.location": store.file("k.pem", client.pem + client.key_pem)},
        {
            "ssl.keystore.location": store.file("k.p12", client.pkcs12(PASSWORD, ca)),
            "ssl.keystore.password": PASSWORD,
        },
        {"ssl.keystore.key": client.key_pem, "ssl.keystore.certificate.chain": client.pem},
        {
            "ssl.keystore.key": " ".join(client.encrypted_key_pem(PASSWORD).split("\n")),
            "ssl.keystore.certificate.chain": client.pem,
            "ssl.key.password": PASSWORD,
        },
        *(
            {"ssl.keystore.location": store.file(name, text), "ssl.key.password": PASSWORD}
            for name, text in (("older", older + client.pem), ("crlf", _crlf(older + client.pem)))
        ),
    ]
    trust = {"ssl.truststore.certificates": ca.pem}
    for form in forms:
        assert shows({**trust, **form}, client, ca, tmp_path), form.keys()


def wrong(store: Store) -> list[tuple[dict[str, str], str]]:
    client = store.client
    pem, key = store.file("c.pem", client.pem), store.file("c.key", client.key_pem)
    locked = store.file("locked.key", client.encrypted_key_pem(PASSWORD))
    p12 = store.file("k.p12", client.pkcs12(PASSWORD))
    other = store.file("other.key", signed(store.ca, "other").key_pem)
    return [
        ({"ssl.truststore.location": "/nowhere/t.p12"}, "cannot be read: no such file"),
        (
            {"ssl.truststore.location": store.file("e", "")},
            "is missing, or the file is neither PKCS12 nor PEM",
        ),
        ({"ssl.truststore.location": key}, "holds no certificate in PEM"),
        ({"ssl.keystore.location": p12}, "ssl.keystore.password is missing"),
        ({"ssl.keystore.location": p12, "ssl.keystore.password": "x"}, "ssl.keystore.password is wrong"),
        ({"ssl.keystore.location": pem}, "holds no private keys in PEM, but must hold one"),
        ({"ssl.certificate.location": pem, "ssl.key.location": locked}, "is ssl.key.password missing"),
        (
            {"ssl.certificate.location": pem, "ssl.key.location": locked, "ssl.key.password": "no"},
            "is ssl.key.password right",
        ),
        (
            {"ssl.certificate.location": pem, "ssl.key.location": other},
            "the key belongs to another certificate",
        ),
        ({"ssl.certificate.location": pem, "ssl.key.location": pem}, "holds no private keys"),
        ({"ssl.truststore.certificates": "nothing"}, "ssl.truststore.certificates holds no certificate"),
    ]


def test_errors_of_files_name_the_setting_to_correct(store: Store) -> None:
    for settings, why in wrong(store):
        made = config(**settings)
        with pytest.raises(ConfigError, match=why) as caught:
            context_for(made)
        text = str(caught.value)
        assert PASSWORD not in text
        assert "PRIVATE KEY-----\n" not in text


@pytest.mark.parametrize(
    "names",
    [
        ["ssl.keystore.location"],
        ["ssl.truststore.location"],
        ["ssl.ca.location"],
        ["ssl.certificate.location", "ssl.key.location"],
    ],
)
def test_a_key_instead_of_a_file_name_is_refused_without_showing_it(names: list[str]) -> None:
    text = "-----BEGIN PRIVATE KEY-----\ns3cret\n-----END PRIVATE KEY-----"
    made = config(**dict.fromkeys(names, text))
    with pytest.raises(ConfigError, match=r"holds PEM text, but must be the name of a file") as caught:
        context_for(made)
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            {"ssl.ca.location": "a", "ssl.truststore.location": "b"},
            "ssl.ca.location and ssl.truststore.location set the same thing",
        ),
        (
            {"ssl.keystore.location": "a", "ssl.certificate.location": "b"},
            "ssl.certificate.location and ssl.keystore.location set the same thing",
        ),
        ({"ssl.keystore.key": "k"}, "needs ssl.keystore.certificate.chain"),
        ({"ssl.key.location": "k"}, "needs ssl.certificate.location"),
        ({"ssl.keystore.certificate.chain": "k"}, "needs ssl.keystore.key"),
    ],
)
def test_incompatible_settings_are_refused_before_a_connection(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        config(**settings)


def test_a_certificate_that_is_renewed_on_disk_is_used_by_the_next_connection(store: Store) -> None:
    path = store.file("turning.pem", store.ca.pem)
    settings = TlsSettings(config(**{"ssl.ca.location": path}))
    first = settings.context()
    assert settings.context() is first
    store.file("turning.pem", authority("another").pem)
    os.utime(path, ns=(1, 1))
    assert names(settings.context()) == ["another"]


def test_connections_use_the_former_key_while_the_renewed_key_is_missing(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    path = store.file("half.pem", store.client.pem)
    key = store.file("half.key", store.client.key_pem)
    settings = TlsSettings(config(**{"ssl.certificate.location": path, "ssl.key.location": key}))
    first = settings.context()
    renewed = signed(store.ca, "client")
    store.file("half.pem", renewed.pem)
    os.utime(path, ns=(1, 1))
    assert settings.context() is first
    assert "the key belongs to another certificate" in caplog.text
    assert "connections use the former certificates and key" in caplog.text
    store.file("half.key", renewed.key_pem)
    os.utime(key, ns=(1, 1))
    caplog.clear()
    assert settings.context() is not first
    assert caplog.text == ""


def test_host_names_are_verified_unless_disabled() -> None:
    assert context_for(config()).check_hostname
    for off in ("", "none"):
        assert not context_for(config(**{"ssl.endpoint.identification.algorithm": off})).check_hostname


def test_no_key_is_left_in_a_file(store: Store) -> None:
    with keystores.as_file(store.client.key_pem) as path:
        assert Path(path).read_text() == store.client.key_pem
        if path.startswith("/proc/"):  # Programs that start during the test do not inherit it.
            assert not os.get_inheritable(int(Path(path).name))
    assert not os.path.exists(path)


def test_authorities_without_extensions_are_trusted_by_every_python(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ssl.create_default_context

    def strict(*given: Any, **more: Any) -> ssl.SSLContext:  # as Python 3.13 creates them
        context = made(*given, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict)
    assert not context_for(config()).verify_flags & ssl.VERIFY_X509_STRICT


def test_a_file_over_the_size_limit_is_not_read(store: Store) -> None:
    path = store.file("huge", "")
    os.truncate(path, keystores.STORE_BYTES_MAX + 1)
    with pytest.raises(ConfigError, match=r"has more than 16777216 bytes; does it name the right file"):
        context_for(config(**{"ssl.truststore.location": path}))


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (10, "have the broker's certificate renewed, and check that this machine's clock is right"),
        (9, "have the broker's certificate renewed"),
        (62, "use a name in bootstrap.servers and advertised.listeners that the certificate has"),
        (64, "use a name in bootstrap.servers"),
        (19, "set the authority that signed it: ssl.truststore.location"),
    ],
)
def test_the_error_of_a_refused_certificate_has_the_next_step(code: int, step: str) -> None:
    problem = ssl.SSLCertVerificationError(1, "certificate verify failed")
    problem.verify_code = code
    refusal = TlsSettings(config()).refusal(problem, "broker:1")
    assert step in str(refusal)


def test_the_repr_of_an_identity_has_no_key(store: Store) -> None:
    shown = repr(keystores.Identity(store.client.key_pem, PASSWORD))
    assert shown == "Identity((hidden))"
