"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the formulas, and the machines of both sides. Pure.

Names and passwords are encoded in UTF-8 without SASLprep, as Kafka and its clients do: a password with characters that SASLprep
maps would otherwise differ between clients. There is no channel binding: Kafka's clients have none.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final

from barnabas.log.vocabulary.access.scram import (
    MAX_SALT_BYTES,
    MAX_USER_LENGTH,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)

from .exchange import Accepted, Challenge, LoginRefused, Step, Users

# A server could otherwise keep its clients computing: this takes a second.
MAX_ITERATIONS_OF_SERVERS: Final = 2_000_000
MAX_NONCE_LENGTH: Final = 512  # clients send 20 to 60 characters
SALT_BYTES: Final = 24  # of the credentials that are made here
NONCE_BYTES: Final = 24  # 32 characters
_NO_BINDING: Final = ("n", "y")  # of the client's choice: it has no channel binding, or thinks that the server has none
_INVALID: Final = "the message cannot be read"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations): milliseconds of computing, which release the interpreter's lock."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(mechanism: ScramMechanism, salted: bytes, *, salt: bytes, iterations: int) -> ScramCredential:
    """What is stored, from the salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    return ScramCredential(
        salt=salt,
        iterations=iterations,
        stored_key=_hash(mechanism, client_key),
        server_key=_hmac(mechanism, salted, b"Server Key"),
    )


def credential_for(mechanism: ScramMechanism, password: str, *, salt: bytes, iterations: int) -> ScramCredential:
    """What is stored of a password; as slow as `salted_password`."""
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_of(mechanism, salted, salt=salt, iterations=iterations)


def is_password_of(mechanism: ScramMechanism, credential: ScramCredential, password: str) -> bool:
    """As slow as `salted_password`, whether or not the password is right."""
    found = credential_for(mechanism, password, salt=credential.salt, iterations=credential.iterations)
    return hmac.compare_digest(found.stored_key, credential.stored_key)


def _hmac(mechanism: ScramMechanism, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, mechanism.hash_name)


def _hash(mechanism: ScramMechanism, message: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, message).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


# --- the server --------------------------------------------------------------------------------------------------------


class ScramServer:
    """Two messages of the client: its name and nonce, then its proof. An unknown user takes the same steps until then."""

    def __init__(self, mechanism: ScramMechanism, users: Users, nonce: str) -> None:
        """`nonce` is random, from the printable characters of ASCII without the comma."""
        self._mechanism = mechanism
        self._users = users
        self._own_nonce = nonce
        self._client_nonce = ""
        self._nonce = ""  # of the client and of the server, once the first message has come
        self._gs2_header = b""
        self._user = ""
        self._is_known = False
        self._credential: ScramCredential | None = None  # of the user, once the first message has come
        self._signed = ""  # the messages so far, as both sides sign them
        self._is_over = False

    def step(self, message: bytes, now_ms: int) -> Step:
        if self._is_over:
            raise LoginRefused("a message came after the end of the exchange")
        text = _text(message)
        if self._credential is None:
            return self._begin(text)
        self._is_over = True
        return self._finish(text, self._credential)

    def password_checked(self, is_right: bool) -> Accepted:
        raise AssertionError("SCRAM never asks for the check of a password")

    def _begin(self, text: str) -> Challenge:
        header, user, client_nonce, bare = _client_first(text)
        found = self._users.credential(self._mechanism, user)
        # Computed for each user, so that an unknown one costs no more time than a known one.
        pretended = self._users.pretended(self._mechanism, user)
        self._is_known = found is not None
        credential = self._credential = found or pretended
        self._user, self._gs2_header = user, header.encode()
        self._client_nonce, self._nonce = client_nonce, client_nonce + self._own_nonce
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._signed = f"{bare},{answer}"
        return Challenge(data=answer.encode())

    def _finish(self, text: str, credential: ScramCredential) -> Accepted:
        without_proof, separator, proof = text.rpartition(",p=")
        fields = without_proof.split(",")
        if not separator or len(fields) < 2 or fields[0][:2] != "c=" or fields[1][:2] != "r=":
            raise LoginRefused(_INVALID)
        if _decoded(fields[0][2:]) != self._gs2_header:
            raise LoginRefused("the channel binding differs from that of the first message")
        # librdkafka before 2.6.1 puts its own nonce in front of the whole one once more; the proof covers what it sends. Kafka
        # 3.8.1 accepts that, too, and Kafka 4 does not.
        if fields[1][2:] not in (self._nonce, self._client_nonce + self._nonce):  # no secret: both were sent
            raise LoginRefused("the nonce is not that of this exchange")
        if any(item.startswith("m=") for item in fields):
            raise LoginRefused("the message has an extension that must be understood, and is not")
        signed = f"{self._signed},{without_proof}".encode()
        is_right = self._is_proof(_decoded(proof), signed, credential)
        if not (is_right and self._is_known):
            raise LoginRefused(
                f"wrong password of {self._user}" if self._is_known else f"there is no user {self._user}"
            )
        signature = base64.b64encode(_hmac(self._mechanism, credential.server_key, signed))
        return Accepted(user=self._user, data=b"v=" + signature)

    def _is_proof(self, proof: bytes, signed: bytes, credential: ScramCredential) -> bool:
        signature = _hmac(self._mechanism, credential.stored_key, signed)
        if len(proof) != len(signature):
            raise LoginRefused("the proof has the wrong length")
        found = _hash(self._mechanism, _xor(proof, signature))
        return hmac.compare_digest(found, credential.stored_key)


def _client_first(text: str) -> tuple[str, str, str, str]:
    """The header that says about channel binding, the user, the client's nonce, and the message without the header."""
    parts = text.split(",", 2)
    if len(parts) != 3 or parts[0] not in _NO_BINDING:
        raise LoginRefused("channel binding is not supported" if text.startswith("p=") else _INVALID)
    header, bare = f"{parts[0]},{parts[1]},", parts[2]
    fields = bare.split(",")
    if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
        raise LoginRefused(_INVALID)
    if any(item.startswith("tokenauth=") for item in fields[2:]):
        raise LoginRefused("delegation tokens are not supported")
    user, nonce = _name(fields[0][2:]), fields[1][2:]
    _check_nonce(nonce)
    if parts[1] and (parts[1][:2] != "a=" or _name(parts[1][2:]) != user):
        raise LoginRefused(f"{user} asks to act as another user")
    return header, user, nonce, bare


def _name(encoded: str) -> str:
    """The name that RFC 5802 encodes: `=2C` is a comma, `=3D` an equals sign."""
    name = encoded.replace("=2C", ",").replace("=3D", "=")
    if not name or len(name) > MAX_USER_LENGTH or encoded != _encoded_name(name):
        raise LoginRefused("the name of the user cannot be read")
    return name


def _encoded_name(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _check_nonce(nonce: str) -> None:
    if not nonce or len(nonce) > MAX_NONCE_LENGTH or not all("!" <= character <= "~" for character in nonce):
        raise LoginRefused("the nonce has characters that are not allowed, or too many or none")


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise LoginRefused(_INVALID) from error


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode(), validate=True)
    except (binascii.Error, ValueError) as error:
        raise LoginRefused(_INVALID) from error


# --- the client --------------------------------------------------------------------------------------------------------


class ScramClient:
    """Proves the password without sending it, and makes the server prove that it has the user's credential."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, nonce: str) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce
        self._bare = f"n={_encoded_name(user)},r={nonce}"
        self._server_signature: bytes | None = None  # what the server must send, once the proof has been sent
        self._is_complete = False

    @property
    def name(self) -> str:
        return str(self._mechanism)

    @property
    def is_complete(self) -> bool:
        return self._is_complete

    def begin(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def answer(self, challenge: bytes) -> bytes | None:
        text = _text(challenge)
        if self._server_signature is None:
            return self._prove(text)
        if self._is_complete or not text.startswith("v="):
            raise LoginRefused("the server does not accept the proof, or answers what was not asked")
        if not hmac.compare_digest(_decoded(text[2:].split(",")[0]), self._server_signature):
            raise LoginRefused("the server does not know the password: it is not the one that was meant")
        self._is_complete = True
        return None

    def _prove(self, server_first: str) -> bytes:
        nonce, salt, iterations = _server_first(server_first)
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise LoginRefused("the server's nonce does not continue that of the client")
        mechanism = self._mechanism
        salted = salted_password(mechanism, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        signed = f"{self._bare},{server_first},{without_proof}".encode()
        client_key = _hmac(mechanism, salted, b"Client Key")
        proof = _xor(client_key, _hmac(mechanism, _hash(mechanism, client_key), signed))
        self._server_signature = _hmac(mechanism, _hmac(mechanism, salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def _server_first(text: str) -> tuple[str, bytes, int]:
    fields = text.split(",")
    if len(fields) < 3 or [item[:2] for item in fields[:3]] != ["r=", "s=", "i="]:
        raise LoginRefused("the server's message cannot be read")
    salt, count = _decoded(fields[1][2:]), fields[2][2:]
    if not count.isascii() or not count.isdigit() or len(count) > len(str(MAX_ITERATIONS_OF_SERVERS)):
        raise LoginRefused("the server's number of iterations cannot be read")
    iterations = int(count)
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS_OF_SERVERS:
        raise LoginRefused(
            f"the server asks for {iterations} iterations; {MIN_ITERATIONS} to {MAX_ITERATIONS_OF_SERVERS} are accepted"
        )
    if not salt or len(salt) > MAX_SALT_BYTES:
        raise LoginRefused(f"the server's salt has {len(salt)} bytes; 1 to {MAX_SALT_BYTES} are accepted")
    return fields[0][2:], salt, iterations
