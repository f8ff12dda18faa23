"""Passwords that were right before: a client that logs in again by PLAIN costs no check, even while others guess. Pure.

Neither a password nor a plain hash of one is kept, but a MAC under a key of this process, which is never stored. The stored key
of the credential is part of it: a new password of the user, or a new salt, makes the entry useless. Only a right password is
answered sooner, so the time of an answer tells nothing to a client that does not have it.
"""

import hmac
import secrets
from typing import Final

from barnabas.net.base.sasl.exchange import PasswordCheck

MAX_KNOWN: Final = 4_096  # 300 kB; the one that was used longest ago is forgotten first
_KEY_BYTES: Final = 32


class KnownPasswords:
    def __init__(self) -> None:
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._known: dict[bytes, None] = {}  # the last one that was used last

    def has(self, check: PasswordCheck) -> bool:
        """Was this password found right, with the credential that the user has now?"""
        tag = self._tag(check)
        if tag not in self._known:
            return False
        del self._known[tag]
        self._known[tag] = None
        return True

    def add(self, check: PasswordCheck) -> None:
        """It was found right."""
        self._known[self._tag(check)] = None
        if len(self._known) > MAX_KNOWN:
            del self._known[next(iter(self._known))]

    def _tag(self, check: PasswordCheck) -> bytes:
        claimed = check.claimed
        parts = [claimed.user.encode(), claimed.credential.salt, claimed.credential.stored_key, check.password.encode()]
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.digest(self._key, message, "sha256")
