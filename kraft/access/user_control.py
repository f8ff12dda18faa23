"""Users and their SCRAM credentials: what an administrator may store."""

from collections import Counter
from typing import Final

from barnabas.log.vocabulary.access.scram import (
    MAX_ITERATIONS,
    MAX_SALT_BYTES,
    MAX_USER_LENGTH,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)
from barnabas.log.vocabulary.cluster_changes import AlterUsersRequest
from barnabas.log.vocabulary.errors import (
    DuplicateResourceError,
    InvalidRequestError,
    PolicyViolationError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)

from ..metadata.controller_result import ControllerResult
from ..metadata.delta import MetadataDelta
from ..metadata.feature_levels import SECURITY_LEVEL, raised_level
from ..metadata.records import (
    LoginSecretRecord,
    Record,
    RemoveScramCredentialRecord,
    ScramCredentialRecord,
)

MAX_USERS: Final = 20_000  # two credentials of 200 bytes each: 8 MB of every image and snapshot
MAX_CHANGES: Final = 1_000  # of one request: one quorum command
MAX_SECRET_BYTES: Final = 64


def alter_users(view: MetadataDelta, request: AlterUsersRequest) -> ControllerResult:
    """Raises the errors that Kafka has for it: a credential that is too weak, twice the same one, one that is not there."""
    _check_request(request)
    for item in request.credentials:
        check_credential(item.user, item.mechanism, item.credential)
    new_users = {item.user for item in request.credentials if not view.user(item.user)}
    if view.count_users() + len(new_users) > MAX_USERS:
        raise PolicyViolationError(f"the cluster has {MAX_USERS} users, the limit; remove some first")
    for gone in request.removals:
        if gone.mechanism not in view.user(gone.user):
            raise ResourceNotFoundError(f"user {gone.user!r} has no credential for {_name(gone.mechanism)}")
    records: list[Record] = list(raised_level(view, SECURITY_LEVEL, "users"))
    if view.login_secret is None and request.login_secret is not None:
        records.append(LoginSecretRecord(secret=request.login_secret))
    records.extend(ScramCredentialRecord(of=item) for item in request.credentials)
    records.extend(RemoveScramCredentialRecord(user=item.user, mechanism=item.mechanism) for item in request.removals)
    return ControllerResult(records=tuple(records))


def _check_request(request: AlterUsersRequest) -> None:
    changes = [(item.user, item.mechanism) for item in request.credentials]
    changes.extend((item.user, item.mechanism) for item in request.removals)
    if len(changes) > MAX_CHANGES:
        raise InvalidRequestError(f"one request changes at most {MAX_CHANGES} credentials, not {len(changes)}")
    twice = [user for (user, _), count in Counter(changes).items() if count > 1]
    if twice:
        raise DuplicateResourceError(f"user {twice[0]!r} is named twice for the same mechanism; name it once")
    secret = request.login_secret
    if secret is not None and not 0 < len(secret.value) <= MAX_SECRET_BYTES:
        raise InvalidRequestError(f"a secret has 1 to {MAX_SECRET_BYTES} bytes")


def check_user_name(user: str) -> None:
    """Raises UnacceptableCredentialError."""
    if not user or len(user) > MAX_USER_LENGTH or not user.isprintable():
        raise UnacceptableCredentialError(
            f"the name of a user has 1 to {MAX_USER_LENGTH} printable characters, not {user[:MAX_USER_LENGTH]!r}"
        )


def check_iterations(iterations: int) -> None:
    """Raises UnacceptableCredentialError."""
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise UnacceptableCredentialError(f"iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}, not {iterations}")


def check_credential(user: str, mechanism: int, credential: ScramCredential) -> None:
    """Raises UnacceptableCredentialError, UnsupportedSaslMechanismError."""
    check_user_name(user)
    check_iterations(credential.iterations)
    try:
        size_bytes = ScramMechanism(mechanism).bits // 8
    except ValueError:
        raise UnsupportedSaslMechanismError(f"{_name(mechanism)}; use SCRAM-SHA-256 or SCRAM-SHA-512") from None
    if not 0 < len(credential.salt) <= MAX_SALT_BYTES:
        raise UnacceptableCredentialError(f"a salt has 1 to {MAX_SALT_BYTES} bytes, not {len(credential.salt)}")
    if len(credential.stored_key) != size_bytes or len(credential.server_key) != size_bytes:
        raise UnacceptableCredentialError(f"the keys of {_name(mechanism)} have {size_bytes} bytes")


def _name(mechanism: int) -> str:
    return str(ScramMechanism(mechanism)) if mechanism in set(ScramMechanism) else f"unknown mechanism {mechanism}"
