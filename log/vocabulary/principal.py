"""Who a client is: the name under which permissions, quotas and the audit know it. Pure.

A connection begins as `ANONYMOUS`. A certificate or a login gives it another principal.
"""

from typing import Final

from .errors import InvalidRequestError
from .message import Message

USER: Final = "User"  # the only kind that this broker gives; Kafka leaves others to its users
MAX_NAME_LENGTH: Final = 1_000  # characters: of a certificate's whole distinguished name, too


class Principal(Message, frozen=True, kw_only=True):
    """The kind is the text before the first colon of Kafka's notation: `User` in `User:CN=alice`."""

    kind: str = USER
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal(name="ANONYMOUS")  # Kafka's name for a client that has not proved who it is


def parse_principal(text: str) -> Principal:
    """`User:alice`. Raises InvalidRequestError."""
    kind, colon, name = text.partition(":")
    if not (kind and colon and name):
        raise InvalidRequestError(f"{text!r} is not a principal; write {USER}:NAME")
    if len(text) > MAX_NAME_LENGTH:
        raise InvalidRequestError(f"a principal has at most {MAX_NAME_LENGTH} characters, not {len(text)}")
    return Principal(kind=kind, name=name)
