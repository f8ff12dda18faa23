"""SCRAM credentials (RFC 5802): what a cluster keeps of a password, and never the password. Pure.

The owner of a credential cannot log in with it, but can test guesses of the password and pretend to be the server. Therefore, its
`repr` shows neither key nor salt.
"""

from enum import IntEnum
from typing import Final

from ..message import Message

MIN_ITERATIONS: Final = 4_096  # RFC 7677; clients refuse fewer
DEFAULT_ITERATIONS: Final = 8_192  # 4 ms of a processor for each guess; Kafka's tools take 4096
# A login by PLAIN costs the broker this much, in a thread: 40 ms.
MAX_ITERATIONS: Final = 100_000
MAX_SALT_BYTES: Final = 256
MAX_USER_LENGTH: Final = 255  # characters of a user's name


class ScramMechanism(IntEnum):
    """Kafka's codes."""

    SHA_256 = 1
    SHA_512 = 2

    def __str__(self) -> str:
        return f"SCRAM-SHA-{self.bits}"

    @property
    def bits(self) -> int:
        return 256 if self is ScramMechanism.SHA_256 else 512

    @property
    def hash_name(self) -> str:
        """The name that hashlib knows."""
        return f"sha{self.bits}"


SCRAM_MECHANISMS: Final = {str(item): item for item in ScramMechanism}


class LoginSecret(Message, frozen=True, kw_only=True):
    """Random bytes of a cluster: the salts of users that do not exist come from them, equal on all brokers."""

    value: bytes

    def __repr__(self) -> str:
        return "LoginSecret(...)"


class ScramCredential(Message, frozen=True, kw_only=True):
    """Of one user and one mechanism."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations}, ...)"


class UserCredential(Message, frozen=True, kw_only=True):
    user: str
    mechanism: int  # a ScramMechanism
    credential: ScramCredential
