"""Keys and certificates that are in a configuration itself (KIP-651), instead of in files.

A configuration has one line for each value, so the line breaks of PEM may be missing, or be written as `\\n`. No error shows a
value: it may be a private key.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from barnabas.log.vocabulary.errors import InvalidConfigError

MAX_LENGTH: Final = 256 * 1024  # characters; a hundred certificates
_LINE: Final = 64
_BLOCK: Final = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----([^-]*)-----END \1-----")
_BODY: Final = re.compile(r"[A-Za-z0-9+/]+={0,2}")
_KEY: Final = "PRIVATE KEY"
_CERTIFICATE: Final = "CERTIFICATE"


def certificate_of(key: str, chain: str, *, key_setting: str, chain_setting: str) -> str:
    """The private key, the certificate and those that sign it, as a PEM file has them. Raises InvalidConfigError."""
    keys = _blocks(key, key_setting)
    if len(keys) != 1 or not keys[0][0].endswith(_KEY):
        raise InvalidConfigError(
            f"{key_setting} must be one private key in PEM format: -----BEGIN PRIVATE KEY----- ..."
        )
    return _pem(keys) + authorities_of(chain, chain_setting)


def authorities_of(text: str, setting: str) -> str:
    """Certificates, as a PEM file has them. Raises InvalidConfigError."""
    found = _blocks(text, setting)
    if not found or any(label != _CERTIFICATE for label, _ in found):
        raise InvalidConfigError(f"{setting} must be certificates in PEM format: -----BEGIN CERTIFICATE----- ...")
    return _pem(found)


@contextmanager
def as_file(text: str) -> Iterator[str]:
    """A path for OpenSSL, which reads a certificate from files only. On Linux, it is not on any disk."""
    if sys.platform == "linux":
        descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "w", closefd=False) as file:
                file.write(text)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # only its owner can read it
            file.write(text)
            file.flush()
            yield file.name


def _blocks(text: str, setting: str) -> list[tuple[str, str]]:
    """Labels and bodies. Other text around them, as openssl writes it, is left out."""
    if len(text) > MAX_LENGTH:
        raise InvalidConfigError(f"{setting} has more than {MAX_LENGTH} characters")
    found = []
    for label, body in _BLOCK.findall(text.replace("\\n", "\n").replace("\\r", "\n")):
        packed = "".join(body.split())
        if not _BODY.fullmatch(packed):
            raise InvalidConfigError(
                f"{setting}: what stands after -----BEGIN {label}----- is no base64; encrypted keys must be in the format "
                "PKCS#8: openssl pkcs8 -topk8"
            )
        found.append((label, packed))
    return found


def _pem(blocks: list[tuple[str, str]]) -> str:
    lines = []
    for label, body in blocks:
        lines += [f"-----BEGIN {label}-----", *(body[at : at + _LINE] for at in range(0, len(body), _LINE))]
        lines.append(f"-----END {label}-----")
    return "".join(f"{line}\n" for line in lines)
