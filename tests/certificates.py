"""Certificates for tests: a certificate authority, signed certificates, and their files."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import pkcs12
from cryptography.x509.oid import NameOID


class Signed(NamedTuple):
    """A key and its certificate."""

    key: Any
    certificate: x509.Certificate

    @property
    def key_pem(self) -> str:
        """The unencrypted key in PKCS8."""
        return self.encrypted_key_pem("")

    def encrypted_key_pem(self, password: str, form: Any = serialization.PrivateFormat.PKCS8) -> str:
        """The encrypted key, in PKCS8 or in the traditional format of OpenSSL."""
        how: Any = serialization.BestAvailableEncryption(password.encode()) if password else None
        return self.key.private_bytes(  # type: ignore[no-any-return]
            serialization.Encoding.PEM,
            form,
            how or serialization.NoEncryption(),
        ).decode()

    @property
    def pem(self) -> str:
        """The certificate."""
        return self.certificate.public_bytes(serialization.Encoding.PEM).decode()

    def pkcs12(self, password: str, *chain: Signed) -> bytes:
        """The key, certificate and chain in PKCS12."""
        return pkcs12.serialize_key_and_certificates(
            b"own",
            self.key,
            self.certificate,
            [one.certificate for one in chain],
            serialization.BestAvailableEncryption(password.encode()),
        )


def authority(name: str) -> Signed:
    """A self-signed certificate authority."""
    return _signed(name, None, (), is_authority=True)


def signed(by: Signed, name: str, *hosts: str, days: tuple[int, int] = (-1, 30)) -> Signed:
    """A certificate of ``by`` for ``hosts``. ``days`` are the start and end of its validity from now."""
    return _signed(name, by, hosts, days=days)


def _signed(
    name: str,
    by: Signed | None,
    hosts: tuple[str, ...],
    *,
    is_authority: bool = False,
    days: tuple[int, int] = (-1, 30),
) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(by.certificate.subject if by is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + datetime.timedelta(days=days[0]))
        .not_valid_after(now + datetime.timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if hosts:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_name(h) for h in hosts]), critical=False
        )
    return Signed(key, builder.sign(by.key if by is not None else key, hashes.SHA256()))


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write(path: Path, content: str | bytes) -> str:
    """Writes a file. Returns its path as a string."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)
