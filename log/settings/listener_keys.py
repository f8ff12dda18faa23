"""Keys that one listener may have for itself: `listener.name.<listener>.<key>`, as in Kafka. Pure.

The name of the listener may be written in lower case. For all other listeners, the key without the prefix counts.
"""

from typing import Final

from .key import ConfigKey
from .kinds import PASSWORD, one_of

PREFIX: Final = "listener.name."
# Two ways to say the same: a listener that has one of them for itself has none of the others' values.
ONE_OF: Final = (
    ("ssl.keystore.location", "ssl.keystore.key", "ssl.keystore.certificate.chain"),
    ("ssl.truststore.location", "ssl.truststore.certificates"),
)
# Keys of brokers whose value may differ between listeners.
OF_ONE_LISTENER: Final = (
    "ssl.keystore.location",
    "ssl.key.password",
    "ssl.truststore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.certificates",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.principal.mapping.rules",
    "sasl.enabled.mechanisms",
)
LOGIN: Final = "sasl.jaas.config"
# Keys that only single listeners have.
ONLY_OF_LISTENERS: Final[dict[str, ConfigKey]] = {
    **{
        name: ConfigKey(
            name=name, kind=one_of("PEM"), default=None, documentation="Keys and certificates are PEM files."
        )
        for name in ("ssl.keystore.type", "ssl.truststore.type")
    },
    **{
        f"{mechanism}.{LOGIN}": ConfigKey(
            name=f"{mechanism}.{LOGIN}",
            kind=PASSWORD,
            default=None,
            documentation="How this broker logs in to the same listener of other brokers.",
        )
        for mechanism in ("plain", "scram-sha-256", "scram-sha-512")
    },
}
_KEYS: Final = (*OF_ONE_LISTENER, *ONLY_OF_LISTENERS)


def split(name: str) -> tuple[str, str] | None:
    """The listener, in capitals, and its key; None: it is no such key."""
    if not name.startswith(PREFIX):
        return None
    rest = name.removeprefix(PREFIX)
    return next(((rest[: -len(key) - 1].upper(), key) for key in _KEYS if _ends(rest, f".{key}")), None)


def of_variable(name: str) -> str | None:
    """The key that an environment variable without its prefix sets: LISTENER_NAME_INTERNAL_SSL_CLIENT_AUTH."""
    prefix = _variable(PREFIX)
    if not name.startswith(prefix):
        return None
    rest = name.removeprefix(prefix)
    endings = ((key, _variable(f".{key}")) for key in _KEYS)
    return next((f"{PREFIX}{rest[: -len(end)]}.{key}" for key, end in endings if _ends(rest, end)), None)


def _ends(rest: str, end: str) -> bool:
    return rest.endswith(end) and len(rest) > len(end)


def _variable(key: str) -> str:
    return key.replace(".", "_").replace("-", "_").upper()
