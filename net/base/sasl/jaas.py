"""`sasl.jaas.config`: Kafka's notation for a user and a password. Pure. No error shows a value."""

import re
from typing import Final

_MODULES: Final = ("ScramLoginModule", "PlainLoginModule")
_TOKENS: Final = "OAuthBearerLoginModule"
_OPTION: Final = re.compile(r"""(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]+)""")
_OTHER_USERS: Final = "user_"  # options in which Kafka's brokers keep the users of PLAIN


def user_and_password(jaas: str) -> tuple[str, str]:
    """A module, a control flag, and options. Raises ValueError, with the correct form."""
    found = {key: _unquoted(text) for key, text in _OPTION.findall(jaas)}
    if _module(jaas) not in _MODULES or not jaas.rstrip().endswith(";") or not {"username", "password"} <= found.keys():
        raise ValueError(f'must be {" or ".join(_MODULES)} required username="..." password="...";')
    return found["username"], found["password"]


def client_of_tokens(jaas: str) -> dict[str, str]:
    """The options clientId, clientSecret and scope, as far as they are there. Raises ValueError, with the correct form."""
    if not _module(jaas) == _TOKENS or not jaas.rstrip().endswith(";"):
        raise ValueError(f'must be {_TOKENS} required clientId="..." clientSecret="...";')
    return {key: _unquoted(text) for key, text in _OPTION.findall(jaas)}


def has_other_users(jaas: str) -> bool:
    return any(key.startswith(_OTHER_USERS) for key, _ in _OPTION.findall(jaas))


def _module(jaas: str) -> str:
    return jaas.split(None, 1)[0].rpartition(".")[2] if jaas.strip() else ""


def _unquoted(text: str) -> str:
    """As Java reads it: a backslash in quotes makes the next character stand for itself."""
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
