"""Users as lines of text (`sasl.users.file`): a credential on each, never a password. Pure.

SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key> <name>      as PostgreSQL stores it, with the name of the user
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Final

from barnabas.log.vocabulary.access.scram import (
    MAX_ITERATIONS,
    MAX_SALT_BYTES,
    MAX_USER_LENGTH,
    MIN_ITERATIONS,
    SCRAM_MECHANISMS,
    ScramCredential,
    ScramMechanism,
)
from barnabas.log.vocabulary.errors import InvalidConfigError

UserFile = Mapping[tuple[ScramMechanism, str], ScramCredential]
MAX_BYTES: Final = 1024 * 1024  # some thousand users: more belong into the quorum


def user_line(user: str, mechanism: ScramMechanism, credential: ScramCredential) -> str:
    salt, stored, server = (
        base64.b64encode(part).decode() for part in (credential.salt, credential.stored_key, credential.server_key)
    )
    return f"{mechanism}${credential.iterations}:{salt}${stored}:{server} {user}"


def read_users(data: bytes, where: str) -> UserFile:
    """Raises InvalidConfigError, which never shows a credential."""
    if len(data) > MAX_BYTES:
        raise InvalidConfigError(f"{where} has more than {MAX_BYTES} bytes; add users to the cluster instead")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        raise InvalidConfigError(f"{where} is not UTF-8") from error
    found: dict[tuple[ScramMechanism, str], ScramCredential] = {}
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            mechanism, user, credential = _read_line(line.strip(), f"{where}, line {number}")
            found[mechanism, user] = credential
    return found


def _read_line(line: str, where: str) -> tuple[ScramMechanism, str, ScramCredential]:
    verifier, _, user = line.partition(" ")
    try:
        name, iterations, salt, stored, server = verifier.replace(":", "$").split("$")
        mechanism = SCRAM_MECHANISMS[name]
        credential = ScramCredential(
            iterations=int(iterations), salt=_bytes(salt), stored_key=_bytes(stored), server_key=_bytes(server)
        )
    except (ValueError, KeyError) as error:
        raise InvalidConfigError(f"{where} is no user; `barnabas user hash NAME` prints such lines") from error
    _check(user, mechanism, credential, where)
    return mechanism, user, credential


def _check(user: str, mechanism: ScramMechanism, credential: ScramCredential, where: str) -> None:
    """As for users of the cluster: clients and checks of passwords take nothing else. Raises InvalidConfigError."""
    size_bytes = mechanism.bits // 8
    if not user or len(user) > MAX_USER_LENGTH:
        raise InvalidConfigError(f"{where} has a name of {len(user)} characters; give 1 to {MAX_USER_LENGTH}")
    if len(credential.stored_key) != size_bytes or len(credential.server_key) != size_bytes:
        raise InvalidConfigError(f"{where} has keys of the wrong length; those of {mechanism} have {size_bytes} bytes")
    if not MIN_ITERATIONS <= credential.iterations <= MAX_ITERATIONS:
        raise InvalidConfigError(
            f"{where} has {credential.iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS} are accepted"
        )
    if not 0 < len(credential.salt) <= MAX_SALT_BYTES:
        raise InvalidConfigError(
            f"{where} has a salt of {len(credential.salt)} bytes; 1 to {MAX_SALT_BYTES} are accepted"
        )


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError("not base64") from error
