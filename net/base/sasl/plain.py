"""PLAIN (RFC 4616): the client sends its password, so only over TLS. Pure.

The password is checked against the user's SCRAM credential, so that PLAIN has no users of its own.
"""

from barnabas.log.vocabulary.access.scram import MAX_USER_LENGTH, ScramMechanism, UserCredential

from .exchange import PLAIN, Accepted, LoginRefused, PasswordCheck, Step, Users

MAX_PASSWORD_LENGTH = 4_096


class PlainServer:
    """One message of the client."""

    def __init__(self, users: Users) -> None:
        self._users = users
        self._check: PasswordCheck | None = None

    def step(self, message: bytes, now_ms: int) -> Step:
        if self._check is not None:
            raise LoginRefused("a message came after the end of the exchange")
        user, password = _read(message)
        check = self._check = self._find(user, password)
        return check

    def password_checked(self, is_right: bool) -> Accepted:
        check = self._check
        assert check is not None, "a check follows a message"
        if not (is_right and check.is_known):
            raise LoginRefused(
                f"wrong password of {check.claimed.user}"
                if check.is_known
                else f"there is no user {check.claimed.user}"
            )
        return Accepted(user=check.claimed.user)

    def _find(self, user: str, password: str) -> PasswordCheck:
        found = {mechanism: self._users.credential(mechanism, user) for mechanism in ScramMechanism}
        usual = self._users.usual_mechanism()
        pretended = self._users.pretended(usual, user)
        mechanism, credential = next(
            ((mechanism, credential) for mechanism, credential in found.items() if credential is not None),
            (usual, None),
        )
        return PasswordCheck(
            claimed=UserCredential(user=user, mechanism=mechanism, credential=credential or pretended),
            password=password,
            is_known=credential is not None,
        )


def _read(message: bytes) -> tuple[str, str]:
    try:
        parts = message.decode().split("\0")
    except UnicodeDecodeError as error:
        raise LoginRefused("the message is not UTF-8") from error
    if len(parts) != 3:
        raise LoginRefused("the message does not have three parts")
    authorization, user, password = parts
    if not user or len(user) > MAX_USER_LENGTH:
        raise LoginRefused("the name of the user is empty or too long")
    if not password or len(password) > MAX_PASSWORD_LENGTH:
        raise LoginRefused("the password is empty or too long")
    if authorization not in ("", user):
        raise LoginRefused(f"{user} asks to act as another user")
    return user, password


class PlainClient:
    def __init__(self, user: str, password: str) -> None:
        self._user = user
        self._password = password

    @property
    def name(self) -> str:
        return PLAIN

    @property
    def is_complete(self) -> bool:
        return True  # The server has nothing to show: TLS has said who it is.

    def begin(self) -> bytes:
        return f"\0{self._user}\0{self._password}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        return None
