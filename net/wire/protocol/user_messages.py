"""Logins and users in our own protocol. A login comes behind the hello, whose features name the listener's mechanisms."""

from barnabas.log.vocabulary.message import Items, Message

SASL_FEATURE = "sasl "  # a feature of the server's hello, followed by a mechanism


class AuthenticateRequest(Message, frozen=True, kw_only=True):
    """One message of a mechanism. The first one of a login names the mechanism. Also served on a connection that is logged in:
    then the same user logs in again (KIP-368)."""

    mechanism: str  # "": the login continues
    data: bytes

    def __repr__(self) -> str:
        return f"AuthenticateRequest(mechanism={self.mechanism!r}, ...)"


class AuthenticateResponse(Message, frozen=True, kw_only=True):
    data: bytes
    is_complete: bool
    session_lifetime_ms: int = 0  # until the next login is due; 0: never

    def __repr__(self) -> str:
        return f"AuthenticateResponse(is_complete={self.is_complete}, ...)"


class DescribeUsersRequest(Message, frozen=True, kw_only=True):
    users: Items[str] | None = None  # None: all


class UserDescription(Message, frozen=True, kw_only=True):
    user: str
    mechanism: int  # a ScramMechanism
    iterations: int


class DescribeUsersResponse(Message, frozen=True, kw_only=True):
    users: Items[UserDescription]
