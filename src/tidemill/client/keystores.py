"""Reads files and texts with certificates and keys, by the settings of Java's clients and librdkafka.

========  ======================================  =======================================================
form      first bytes                             read by
========  ======================================  =======================================================
PEM       text with ``-----BEGIN``                OpenSSL
PKCS12    ``0x30`` (a sequence of ASN.1)          the package ``cryptography`` (the extra ``tls``)
JKS       ``0xFEEDFEED``, ``0xCECECECE`` (JCEKS)  nothing here: ``keytool`` converts it to PKCS12
========  ======================================  =======================================================

The first bytes select the format, as with Java's default (``keystore.type.compat``). ``ssl.*.type`` is
ignored.
Source: KIP-651 for PEM as values.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from tidemill.model.errors import ConfigError
from tidemill.model.os_error_texts import fault_of
from tidemill.model.secrets import HIDDEN

STORE_BYTES_MAX = 16 * 1024 * 1024

JKS_MAGIC = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")

_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)
_LINE_LENGTH = 64


class Identity(NamedTuple):
    """A client's key and certificate chain as PEM; ``password`` is that of the key, or empty."""

    pem: str
    password: str

    def __repr__(self) -> str:
        return f"Identity({HIDDEN})"


def read_store(key: str, path: str) -> bytes:
    """Reads the file of the setting ``key``. Raises ConfigError, whose text contains no PEM."""
    if "-----BEGIN " in path:
        raise ConfigError(
            f"{key} holds PEM text, but must be the name of a file; PEM text belongs in ssl.keystore.key, "
            "ssl.keystore.certificate.chain and ssl.truststore.certificates"
        )
    try:
        with open(path, "rb") as file:
            data = file.read(STORE_BYTES_MAX + 1)
    except OSError as problem:
        raise ConfigError(f"{key}={path!r} cannot be read: {fault_of(problem)}") from None
    if len(data) > STORE_BYTES_MAX:
        raise ConfigError(
            f"{key}={path!r} has more than {STORE_BYTES_MAX} bytes; does it name the right file?"
        )
    return data


def authorities(key: str, path: str, password: str) -> str:
    """Returns the certificates of a truststore, as PEM."""
    data = read_store(key, path)
    if _is_pem(data):
        return certificates(data.decode("utf-8", "replace"), f"{key}={path!r}")
    _refuse_jks(key, path, data)
    store = _pkcs12(key, path, data, password)
    found = [entry.certificate for entry in store.additional_certs]
    if store.cert is not None:
        found.append(store.cert.certificate)
    if not found:
        raise ConfigError(
            f"{key}={path!r} holds no certificate; export the certificate of the brokers' authority to it"
        )
    return "".join(_pem(certificate) for certificate in found)


def identity(key: str, path: str, store_password: str, key_password: str) -> Identity:
    """Reads the client's key and certificate chain from a keystore."""
    data = read_store(key, path)
    if _is_pem(data):
        text = data.decode("utf-8", "replace")
        return identity_of_texts(text, text, key_password or store_password, f"{key}={path!r}")
    _refuse_jks(key, path, data)
    store = _pkcs12(key, path, data, store_password)
    if store.key is None or store.cert is None:
        raise ConfigError(
            f"{key}={path!r} holds no key with a certificate; a keystore has both, a truststore belongs to "
            "ssl.truststore.location"
        )
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    chain = [store.cert, *store.additional_certs]
    own = store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    return Identity(own + "".join(_pem(entry.certificate) for entry in chain), "")


def identity_of_texts(key_text: str, chain_text: str, password: str, where: str) -> Identity:
    """Reads key and certificate chain from PEM texts; ``where`` names the settings, for messages."""
    keys = [_wrapped(kind, body) for kind, body in _BLOCK.findall(key_text) if kind.endswith("PRIVATE KEY")]
    if len(keys) != 1:
        raise ConfigError(
            f"{where} holds {len(keys) or 'no'} private keys in PEM, but must hold one "
            "(-----BEGIN PRIVATE KEY-----)"
        )
    return Identity(keys[0] + certificates(chain_text, where), password)


def certificates(text: str, where: str) -> str:
    """Returns the certificates of a PEM text, in OpenSSL's line format; raises ConfigError without any."""
    found = [_wrapped(kind, body) for kind, body in _BLOCK.findall(text) if kind in CERTIFICATES]
    if not found:
        raise ConfigError(f"{where} holds no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    return "".join(found)


CERTIFICATES = ("CERTIFICATE", "X509 CERTIFICATE")


def _wrapped(kind: str, body: str) -> str:
    """Wraps a PEM block into lines; in a properties file, a block may be a single line."""
    headers = ""
    if (
        "Proc-Type:" in body
    ):  # an encrypted key in OpenSSL's older format, whose headers are on separate lines
        head, _, body = body.replace("\r\n", "\n").strip().partition("\n\n")
        headers = head + "\n\n"
    data = "".join(body.split())
    lines = [data[at : at + _LINE_LENGTH] for at in range(0, len(data), _LINE_LENGTH)]
    kind = "CERTIFICATE" if kind in CERTIFICATES else kind
    return f"-----BEGIN {kind}-----\n{headers}" + "\n".join(lines) + f"\n-----END {kind}-----\n"


def _is_pem(data: bytes) -> bool:
    return b"-----BEGIN " in data


def _refuse_jks(key: str, path: str, data: bytes) -> None:
    if data[:4] in JKS_MAGIC:
        raise ConfigError(
            f"{key}={path!r} is a JKS store, which only Java reads. Convert it to PKCS12, and use that file: "
            f"keytool -importkeystore -srckeystore {path} -destkeystore {path.removesuffix('.jks')}.p12 "
            "-deststoretype PKCS12"
        )


def _pkcs12(key: str, path: str, data: bytes, password: str) -> Any:
    try:
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{key}={path!r} is not PEM; PKCS12 needs the package cryptography: pip install 'tidemill[tls]'"
        ) from None
    password_key = key.replace(".location", ".password")
    try:
        return pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        # The library's text has no further information, and differs by version.
        raise ConfigError(
            f"{key}={path!r} cannot be opened as PKCS12: {password_key} is "
            f"{'wrong' if password else 'missing'}, or the file is neither PKCS12 nor PEM"
        ) from None


def _pem(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    text: str = certificate.public_bytes(Encoding.PEM).decode()
    return text


@contextmanager
def as_file(pem: str) -> Iterator[str]:
    """Yields the path of a file with ``pem``, since OpenSSL needs a path; in memory, or deleted after use."""
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("tidemill-key", os.MFD_CLOEXEC)
        try:
            os.write(number, pem.encode())
            yield f"/proc/self/fd/{number}"
        finally:
            os.close(number)
        return
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # readable by its owner only
        file.write(pem)
        file.flush()
        yield file.name
