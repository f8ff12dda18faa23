"""The table of configuration keys: all keys of brokers and topics, and where each may be set. Pure.

Each key is declared once: with the field that holds its value, in `config` (topics, and the defaults that brokers set for them)
or `broker_keys` (brokers only), or in `without_effect`. Parsers, the rules for changes at run time, DescribeConfigs and the table
in docs/configuration.md are derived from these rows.
"""

import dataclasses
import difflib
from typing import Final

from ..vocabulary.errors import InvalidConfigError
from . import listener_keys
from .broker_keys import BrokerKeys
from .config import TOPIC_KEYS, topic_row
from .key import Change, ConfigKey, rows_of
from .without_effect import BROKER_KEYS_WITHOUT_EFFECT, CURES, TOPIC_KEYS_WITHOUT_EFFECT

ALL_TOPIC_KEYS: Final = dict(sorted((TOPIC_KEYS | TOPIC_KEYS_WITHOUT_EFFECT).items()))
BROKER_KEYS: Final[dict[str, ConfigKey]] = {
    row.name: row
    for row in sorted(
        (*rows_of(BrokerKeys), *(row.of_brokers() for row in TOPIC_KEYS.values())), key=lambda row: row.name
    )
}
# For each topic key: the broker keys that set its default, in order of precedence (finest unit first).
DEFAULTS_OF_TOPICS: Final = {
    name: tuple(sorted((row for row in BROKER_KEYS.values() if row.topic_key == name), key=lambda row: row.topic_units))
    for name in TOPIC_KEYS
}
# Why the key has one value for the cluster; see kraft/metadata/cluster_settings.
CLUSTER_SETTINGS: Final = {
    row.name: row.cluster_reason for row in BROKER_KEYS.values() if row.change is Change.FOR_THE_CLUSTER
}
DYNAMIC_KEYS: Final = frozenset(row.name for row in BROKER_KEYS.values() if row.change is Change.WHILE_RUNNING)
# Other names that users know, and the key that each stands for.
ALIASES: Final = {"broker.id": "node.id", "log.dir": "log.dirs"}


def broker_row(name: str) -> ConfigKey:
    """Raises InvalidConfigError, which names the most similar known key."""
    found = BROKER_KEYS.get(name)
    if found is not None:
        return found
    if name.startswith(listener_keys.PREFIX):
        return _listener_row(name)
    if name.startswith("sasl."):
        raise InvalidConfigError(f"unknown configuration key {name}: {_SASL_KEYS}")
    near = [ALIASES[name]] if name in ALIASES else difflib.get_close_matches(name, (*BROKER_KEYS, *ALIASES), n=1)
    hint = f"did you mean {near[0]}?" if near else "see docs/configuration.md for the keys"
    raise InvalidConfigError(f"unknown configuration key {name}: {hint}")


_SASL_KEYS: Final = (
    "Kerberos is not available, and what a broker logs in with is "
    "listener.name.<listener>.<mechanism>.sasl.jaas.config (docs/security.md)"
)


def _listener_row(name: str) -> ConfigKey:
    """Of a key of a single listener, with its whole name. Raises InvalidConfigError."""
    found = listener_keys.split(name)
    if found is None:
        known = ", ".join((*listener_keys.OF_ONE_LISTENER, *listener_keys.ONLY_OF_LISTENERS))
        raise InvalidConfigError(
            f"unknown configuration key {name}: a listener may have {known} for itself, behind listener.name.<listener>."
        )
    _, key = found
    return dataclasses.replace(listener_keys.ONLY_OF_LISTENERS.get(key) or BROKER_KEYS[key], name=name)


def check_topic_config(name: str, text: str) -> None:
    """Raises InvalidConfigError for a key that a topic cannot have, and for a wrong value."""
    if name in CURES:
        raise InvalidConfigError(f"unknown topic configuration {name}: {CURES[name]}")
    (TOPIC_KEYS_WITHOUT_EFFECT.get(name) or topic_row(name)).check(text)


def check_cluster_config(name: str, text: str) -> None:
    """Check a change for all running brokers. Raises InvalidConfigError."""
    if name in CLUSTER_SETTINGS:
        _check_set(BROKER_KEYS[name], text)
    else:
        check_broker_config(name, text)


def check_broker_config(name: str, text: str) -> None:
    """Check a change for one running broker. Raises InvalidConfigError."""
    if name in BROKER_KEYS_WITHOUT_EFFECT:
        raise InvalidConfigError(f"{name} has no effect here: {BROKER_KEYS_WITHOUT_EFFECT[name].no_effect}")
    row = broker_row(name)
    if row.change is Change.FOR_THE_CLUSTER:
        raise InvalidConfigError(
            f"{name} has one value for the whole cluster: {row.cluster_reason}. Set it for all brokers "
            f"(`barnabas cluster alter -c {name}={text}`, `kafka-configs --entity-type brokers --entity-default`)"
        )
    if row.change is Change.AT_START:
        row.check(text)
        raise InvalidConfigError(
            f"{name} cannot be changed while a broker runs: set it in server.properties and restart"
        )
    _check_set(row, text)


def _check_set(row: ConfigKey, text: str) -> None:
    """A change must set a value; to unset a key, remove it."""
    if row.check(text) is None:
        raise row.refusal(text)
