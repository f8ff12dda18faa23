"""The security settings of Kafka's Java clients (`ssl.*`, `sasl.*`) as those of Barnabas: for client.properties and Spark. Pure.

Settings that would promise protection that is not there are refused, and no error shows a password.
"""

from collections.abc import Mapping
from typing import Final

from barnabas.net.base.sasl.exchange import OAUTHBEARER
from barnabas.net.base.sasl.jaas import client_of_tokens, user_and_password

from ...wire.token_sources import URL, ClientSecret, TokenFile, token_source
from .errors import InvalidConfigError
from .security import SecurityOptions

_TEXTS: Final = {
    "ssl.truststore.location": "ssl_cafile",
    "ssl.keystore.location": "ssl_certfile",
    "ssl.key.password": "ssl_password",
    "ssl.truststore.certificates": "ssl_ca_pem",
    "ssl.keystore.certificate.chain": "ssl_certificate_pem",
    "ssl.keystore.key": "ssl_key_pem",
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
}
_TYPES: Final = ("ssl.truststore.type", "ssl.keystore.type")
_IDENTIFICATION: Final = "ssl.endpoint.identification.algorithm"
_JAAS: Final = "sasl.jaas.config"
_HANDLER: Final = "sasl.login.callback.handler.class"
_TOKENS: Final = {
    "sasl.oauthbearer.client.credentials.client.id": "clientId",
    "sasl.oauthbearer.client.credentials.client.secret": "clientSecret",
    "sasl.oauthbearer.scope": "scope",
}
SECURITY_KEYS: Final = (*_TEXTS, *_TYPES, _IDENTIFICATION, _JAAS, _HANDLER, URL, *_TOKENS)
SECURITY_PREFIXES: Final = ("security.", "ssl.", "sasl.")


def security_options(given: Mapping[str, str], where: str) -> SecurityOptions:
    """Other keys are left to the programs that they are for. Raises InvalidConfigError."""
    security = SecurityOptions()
    takes_tokens = given.get("sasl.mechanism", "").upper() == OAUTHBEARER
    if takes_tokens:
        security["sasl_oauth_token_provider"] = _tokens(given, where)
    for key, text in given.items():
        if takes_tokens and key in (_JAAS, _HANDLER, URL, *_TOKENS):
            continue
        if key in _TEXTS:
            security[_TEXTS[key]] = text  # type: ignore[literal-required]
        elif key in _TYPES:
            if text.upper() != "PEM":
                raise InvalidConfigError(f"{where}: {key}={text}: only PEM files can be read; convert it to PEM")
        elif key == _IDENTIFICATION:
            security["ssl_check_hostname"] = text != ""
        elif key == _JAAS:
            security["sasl_plain_username"], security["sasl_plain_password"] = _login(text, where)
        elif key.startswith(SECURITY_PREFIXES):  # also those of tokens, with another mechanism
            raise InvalidConfigError(f"{where}: the key {key} is not available")
    return security


def _tokens(given: Mapping[str, str], where: str) -> TokenFile | ClientSecret:
    """Raises InvalidConfigError."""
    handler = given.get(_HANDLER, "")
    if handler and not handler.endswith(".OAuthBearerLoginCallbackHandler"):
        raise InvalidConfigError(
            f"{where}: {_HANDLER}={handler}: a class of Java cannot be called; remove it, and set {URL}"
        )
    if URL not in given:
        raise InvalidConfigError(
            f"{where}: sasl.mechanism={OAUTHBEARER} needs {URL}: file:///path of a token, or https://"
        )
    try:
        found = client_of_tokens(given[_JAAS]) if _JAAS in given else {}
    except ValueError as error:
        raise InvalidConfigError(f"{where}: {_JAAS} {error}") from None
    found |= {option: given[key] for key, option in _TOKENS.items() if key in given}
    try:
        return token_source(
            given[URL],
            client_id=found.get("clientId", ""),
            secret=found.get("clientSecret", ""),
            scope=found.get("scope", ""),
        )
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{where}: {error.message}") from None


def _login(jaas: str, where: str) -> tuple[str, str]:
    """User and password of a `sasl.jaas.config`. Raises InvalidConfigError."""
    try:
        return user_and_password(jaas)
    except ValueError as error:
        raise InvalidConfigError(f"{where}: {_JAAS} {error}") from None
