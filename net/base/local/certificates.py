"""A certificate authority of a cluster's own, and certificates that it signs: for brokers and for clients.

Elliptic keys (P-256): a handshake costs a tenth of one with RSA, and every client of Kafka speaks them. Private keys are files
that only their owner can read. Needs the library cryptography (`pip install 'barnabas[security]'`).
"""

import datetime
import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from barnabas.kraft.raft.net.mutual_tls import tls_name
from barnabas.log.disk.secret_files import write_public, write_secret
from barnabas.log.vocabulary.errors import InvalidConfigError

AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 365
CLOCK_SKEW: Final = datetime.timedelta(hours=1)  # A new certificate is valid at once, on machines whose clocks differ.
MAX_HOST_LENGTH: Final = 253  # RFC 1035
_HOST: Final = re.compile(r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9])?\.?")
# As `tls_name` makes them; in capitals as well, because TLS compares names of hosts without regard to case.
_NAME_OF_BROKER: Final = re.compile(r"node-[0-9]+\.?", re.IGNORECASE)
AUTHORITY: Final = "ca.pem"
AUTHORITY_KEY: Final = "ca.key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """An authority whose private key is at hand."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)


def make_authority(folder: Path, name: str, *, now: datetime.datetime, days: int = AUTHORITY_DAYS) -> Authority:
    """Make an authority, and write `ca.pem` and `ca.key`. Raises FileExistsError: an authority is never replaced in passing,
    because the certificates that it has signed would no longer be trusted. Its key may be kept elsewhere."""
    if (folder / AUTHORITY).exists():
        raise FileExistsError(f"{folder / AUTHORITY} exists already; remove it yourself if it is no longer needed")
    made = _new_authority(name, now=now, days=days)
    folder.mkdir(parents=True, exist_ok=True)
    write_secret(folder / AUTHORITY_KEY, _key_pem(made.key), replace=False)
    write_public(folder / AUTHORITY, made.pem)
    return made


def rotate_authority(folder: Path, name: str, *, now: datetime.datetime, days: int = AUTHORITY_DAYS) -> Authority:
    """Make another authority, which signs from now on. `ca.pem` then has both: who has the new file trusts the certificates of
    both. The former key is gone. Raises InvalidConfigError (there is no authority), OSError."""
    read_authority(folder)
    trusted = (folder / AUTHORITY).read_bytes()
    made = _new_authority(name, now=now, days=days)
    write_public(folder / AUTHORITY, made.pem + trusted)  # first: without it, nobody trusts what the new key signs
    write_secret(folder / AUTHORITY_KEY, _key_pem(made.key))
    return made


def retire_authorities(folder: Path) -> int:
    """Leave only the authority that signs in `ca.pem`, and return how many were removed. Raises InvalidConfigError, OSError."""
    current = read_authority(folder)
    count = len(x509.load_pem_x509_certificates((folder / AUTHORITY).read_bytes()))
    write_public(folder / AUTHORITY, current.pem)
    return count - 1


def _new_authority(name: str, *, now: datetime.datetime, days: int) -> Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _signed_for(subject, subject, key, now=now, days=days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate=certificate, key=key)


def read_authority(folder: Path) -> Authority:
    """The authority of `ca.pem` that the key belongs to. Raises InvalidConfigError: there is none, or it cannot be read."""
    try:
        trusted = x509.load_pem_x509_certificates((folder / AUTHORITY).read_bytes())
        key = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidConfigError(
            f"there is no usable authority in {folder} ({AUTHORITY}, {AUTHORITY_KEY}): {reason}"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidConfigError(f"the key {folder / AUTHORITY_KEY} is not an elliptic one; make another authority")
    for certificate in trusted:
        if certificate.public_key() == key.public_key():
            return Authority(certificate=certificate, key=key)
    raise InvalidConfigError(f"the key {folder / AUTHORITY_KEY} belongs to no certificate in {folder / AUTHORITY}")


def broker_certificate(
    authority: Authority, node_id: int, hosts: Iterable[str], *, now: datetime.datetime, days: int = CERTIFICATE_DAYS
) -> bytes:
    """PEM of a private key and its certificate, for a broker that is reached at `hosts` (names and addresses). Raises
    InvalidConfigError, also for a host with the name that another broker has in the quorum."""
    own, hosts = tls_name(node_id), tuple(hosts)
    for host in hosts:
        if _NAME_OF_BROKER.fullmatch(host) and host != own:
            raise InvalidConfigError(
                f"{host!r} is how voters call another broker, so this one could speak for it; give the host's name with its "
                f"domain, like {host}.example.com, or its address"
            )
    return _certificate(authority, own, (own, *hosts), is_server=True, now=now, days=days)


def client_certificate(
    authority: Authority, name: str, *, now: datetime.datetime, days: int = CERTIFICATE_DAYS
) -> bytes:
    """PEM of a private key and its certificate, for a client that is known to brokers as `name`."""
    return _certificate(authority, name, (), is_server=False, now=now, days=days)


def write_certificate(path: Path, data: bytes) -> None:
    """Write a key and its certificate as `write_secret` does. It replaces only an earlier certificate of the same subject:
    a client may have the name of another file, such as `ca`. Raises FileExistsError, OSError."""
    subject = x509.load_pem_x509_certificate(data).subject
    if path.exists() and not _is_certificate_of(path, subject):
        raise FileExistsError(
            f"{path} exists and is no certificate of {subject.rfc4514_string()}; name another file with --out, or remove this one"
        )
    write_secret(path, data)


def _is_certificate_of(path: Path, subject: x509.Name) -> bool:
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        is_authority = found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (ValueError, x509.ExtensionNotFound):
        return False
    return found.subject == subject and not is_authority


def _certificate(
    authority: Authority, name: str, hosts: Iterable[str], *, is_server: bool, now: datetime.datetime, days: int
) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]  # A broker is a client of other brokers, too.
    builder = _signed_for(_name(name), authority.certificate.subject, key, now=now, days=days)
    if is_server:
        usages.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = [_general_name(host) for host in dict.fromkeys(hosts)]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    certificate = (
        builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False)
        .sign(authority.key, hashes.SHA256())
    )
    return _key_pem(key) + certificate.public_bytes(Encoding.PEM)


def _signed_for(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, now: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _name(name: str) -> x509.Name:
    """Raises InvalidConfigError."""
    try:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as error:
        raise InvalidConfigError(
            f"{name!r} cannot be a name in a certificate: {error}; give 1 to 64 characters"
        ) from error


def _general_name(host: str) -> x509.GeneralName:
    """Raises InvalidConfigError for what no client could dial: a list, a port, a URL."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if len(host) > MAX_HOST_LENGTH or not _HOST.fullmatch(host):
            raise InvalidConfigError(
                f"{host[:80]!r} is no name of a host and no IP address; give each as a word of its own, without a port, and"
                " international names in their ASCII form (xn--...)"
            ) from None
        return x509.DNSName(host)


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """PKCS#8: the only form that Java reads from a PEM file."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
