"""The security settings of Kafka's Java clients (`ssl.*`, `sasl.*`) as those of Barnabas: for client.properties and Spark. Pure.

Settings that would promise protection that is not there are refused, and no error shows a password.
"""

from collections.abc import Mapping
from typing import Final

from ...sasl.jaas import user_and_password
from .errors import InvalidConfigError
from .security import SecurityOptions

_TEXTS: Final = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
}
_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_JAAS: Final = "sasl.jaas.config"
SECURITY_KEYS: Final = (*_TEXTS, *_TYPES, _IDENTIFICATION, _JAAS)
SECURITY_PREFIXES: Final = ("security.", "ssl.", "sasl.")


def security_options(given: Mapping[str, str], where: str) -> SecurityOptions:
    """Other keys are left to the programs that they are for. Raises InvalidConfigError."""
    security = SecurityOptions()
    for key, text in given.items():
        if key in _TEXTS:
            security[_TEXTS[key]] = text  # type: ignore[literal-required]
        elif key in _TYPES:
            if text.upper() != "PEM":
                raise InvalidConfigError(f"{where}: {key}={text}: only PEM files can be read; convert it to PEM")
        elif key == _IDENTIFICATION:
            security["ssl_check_hostname"] = text != ""
        elif key == _JAAS:
            security["sasl_plain_username"], security["sasl_plain_password"] = _login(text, where)
        elif key.startswith(SECURITY_PREFIXES):
            raise InvalidConfigError(f"{where}: the key {key} is not available")
    return security


def _login(jaas: str, where: str) -> tuple[str, str]:
    """User and password of a `sasl.jaas.config`. Raises InvalidConfigError."""
    try:
        return user_and_password(jaas)
    except ValueError as error:
        raise InvalidConfigError(f"{where}: {_JAAS} {error}") from None
