"""`sasl.jaas.config`: Kafka's notation for a user and a password. Pure. No error shows a value."""

import re
from typing import Final

_MODULES: Final = ("ScramLoginModule", "PlainLoginModule")
_OPTION: Final = re.compile(r"""(\w+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]+)""")
_OTHER_USERS: Final = "user_"  # options in which Kafka's brokers keep the users of PLAIN


def user_and_password(jaas: str) -> tuple[str, str]:
    """A module, a control flag, and options. Raises ValueError, with the correct form."""
    found = {key: _unquoted(text) for key, text in _OPTION.findall(jaas)}
    module = jaas.split(None, 1)[0].rpartition(".")[2] if jaas.strip() else ""
    if module not in _MODULES or not jaas.rstrip().endswith(";") or not {"username", "password"} <= found.keys():
        raise ValueError(f'must be {" or ".join(_MODULES)} required username="..." password="...";')
    return found["username"], found["password"]


def has_other_users(jaas: str) -> bool:
    return any(key.startswith(_OTHER_USERS) for key, _ in _OPTION.findall(jaas))


def _unquoted(text: str) -> str:
    """As Java reads it: a backslash in quotes makes the next character stand for itself."""
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
