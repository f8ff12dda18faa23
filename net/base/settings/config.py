"""The configuration of a broker, read from flags, the environment and a file, and checked as a whole.

A flag overrides the environment (`BARNABAS_NUM_PARTITIONS` sets `num.partitions`), the environment overrides the file, and the
file overrides the default. The keys, their kinds and defaults are in log/settings (`table`).
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from barnabas.log.settings import listener_keys
from barnabas.log.settings.addresses import Listener
from barnabas.log.settings.broker_keys import BrokerKeys
from barnabas.log.settings.config import TOPIC_KEYS, LogConfig
from barnabas.log.settings.key import ConfigKey
from barnabas.log.settings.table import ALIASES, BROKER_KEYS, DEFAULTS_OF_TOPICS, broker_row
from barnabas.log.settings.without_effect import BROKER_KEYS_WITHOUT_EFFECT
from barnabas.log.vocabulary.errors import InvalidConfigError
from barnabas.log.vocabulary.node_address import NodeAddress

from ..near_words import did_you_mean
from .exposure import check_exposure
from .listeners import check_listeners, check_without_effect, protocol_of
from .properties import parse_properties

DEFAULT_BASE_PORT: Final = 9092
PORTS_PER_NODE: Final = 10  # leaves room for more than the three kinds of port in use
LOOPBACK: Final = "127.0.0.1"
ENVIRONMENT_PREFIX: Final = "BARNABAS_"
# Of the command line, the log and the build: no configuration of a broker, but often in its environment.
OTHER_VARIABLES: Final = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in ("BOOTSTRAP", "COMMAND_CONFIG", "COMPILE", "LOG_LEVEL", "OPTIMIZE", "PROFILE", "PURE")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(BrokerKeys):
    """All settings of one broker, read and checked. Each key of `BrokerKeys` is a field; `topics` has the defaults of topics."""

    topic_values: Mapping[str, Any] = field(default_factory=dict)  # broker key -> configured default of topics
    sources: Mapping[str, str] = field(default_factory=dict)  # key -> "flag" | "environment" | "file"; absent: default
    ignored: tuple[str, ...] = ()  # Kafka's keys that are configured but have no effect
    # listener -> key -> value, of the keys that begin with listener.name
    of_listeners: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def client_listeners(self) -> tuple[Listener, ...]:
        """The addresses to listen on; by default loopback and the port that `client_port` computes for this node."""
        if self.listeners:
            return self.listeners
        return (Listener(name="PLAINTEXT", host=LOOPBACK, port=client_port(self.node_id)),)

    def voters(self) -> tuple[NodeAddress, ...]:
        """The voters; by default, this node is the only one."""
        if self.controller_quorum_voters:
            return self.controller_quorum_voters
        return (NodeAddress(node_id=self.node_id, host=LOOPBACK, port=quorum_port(self.node_id)),)

    def admin_address(self) -> Listener | None:
        """The address of the admin API; None if the API is disabled."""
        if self.admin_listener is None and "admin.listener" not in self.sources:
            return Listener(name="ADMIN", host=LOOPBACK, port=admin_port(self.node_id))
        return self.admin_listener

    def data_folders(self) -> tuple[str, ...]:
        """Absolute paths of the data folders."""
        return tuple(str(Path(item).absolute()) for item in self.log_dirs or (f"barnabas-data/{self.node_id}",))

    def metadata_folder(self) -> str:
        """Absolute path of the quorum's folder."""
        given = self.metadata_log_dir
        return str(Path(given).absolute()) if given else f"{self.data_folders()[0]}/__cluster_metadata"

    def inter_broker_listener(self) -> str:
        """The name of the listener that other brokers use."""
        wanted, listeners = self.security_inter_broker_protocol, self.client_listeners()
        if wanted is not None and self.inter_broker_listener_name is None:
            return next((item.name for item in listeners if protocol_of(self, item.name) == wanted), listeners[0].name)
        return self.inter_broker_listener_name or listeners[0].name

    def for_listener(self, name: str) -> "BrokerConfig":
        """This configuration with the values that the listener has for itself."""
        own = self.of_listeners.get(name, {})
        other_ways = (key for keys in listener_keys.ONE_OF if not own.keys().isdisjoint(keys) for key in keys)
        own = {**dict.fromkeys(other_ways), **own}
        fields = {BROKER_KEYS[key].field_name: value for key, value in own.items() if key in BROKER_KEYS}
        return dataclasses.replace(self, **fields) if fields else self

    def topic_defaults(self) -> dict[str, str]:
        """The configured defaults of topics, by topic key. Keys that are not configured are absent."""
        found = {}
        for row in TOPIC_KEYS.values():
            value = self._given_default(row)
            if value is not None:
                found[row.name] = row.kind.show(value)
        return found

    @property
    def topics(self) -> LogConfig:
        """The configuration of a topic without overrides, according to this broker's own configuration only."""
        return LogConfig.from_map(self.topic_defaults())

    def text(self, key: str) -> str | None:
        """The value of a key in the notation of the configuration file; None: not set."""
        row = broker_row(key)
        return row.show(self._value(row))

    def _given_default(self, row: ConfigKey) -> Any:
        """The default for topics from the key with the finest unit: milliseconds before minutes before hours. None: not set."""
        for of_brokers in DEFAULTS_OF_TOPICS[row.name]:
            value = self._value(of_brokers) if of_brokers.name in self.sources else None
            if value is not None:
                is_limit = of_brokers.topic_units > 1 and value >= 0  # -1 is "never" in every unit
                return value * of_brokers.topic_units if is_limit else value
        return None

    def _value(self, row: ConfigKey) -> Any:
        if row.is_topic_default:
            return self.topic_values.get(row.name, row.default)
        of_listener = listener_keys.split(row.name)
        if of_listener is not None:
            listener, key = of_listener
            return self.of_listeners.get(listener, {}).get(key)
        return getattr(self, row.field_name)


def client_port(node_id: int, base_port: int = DEFAULT_BASE_PORT) -> int:
    """The port for clients of a node; each node of a machine has its own range of ports. A base port of 0 stays 0."""
    return base_port and base_port + PORTS_PER_NODE * node_id


def quorum_port(node_id: int, base_port: int = DEFAULT_BASE_PORT) -> int:
    """The port of the quorum."""
    return base_port and client_port(node_id, base_port) + 1


def admin_port(node_id: int, base_port: int = DEFAULT_BASE_PORT) -> int:
    """The port of the HTTP admin API."""
    return base_port and client_port(node_id, base_port) + 2


def variable_of(key: str) -> str:
    """The environment variable that sets a key: BARNABAS_NUM_PARTITIONS for num.partitions."""
    return ENVIRONMENT_PREFIX + key.replace(".", "_").upper()


def load(path: str | None, overrides: Mapping[str, str], environment: Mapping[str, str]) -> BrokerConfig:
    """Read the configuration. Raises InvalidConfigError, which names the key, the value and the allowed values."""
    given: dict[str, tuple[str, str]] = {}
    for source, values in (
        ("file", _read_file(path) if path else {}),
        ("environment", _from_environment(environment)),
        ("flag", overrides),
    ):
        given |= {ALIASES.get(key, key): (source, text) for key, text in values.items()}
    ignored = {key: text for key, (_, text) in given.items() if key in BROKER_KEYS_WITHOUT_EFFECT}
    for key, text in ignored.items():
        BROKER_KEYS_WITHOUT_EFFECT[key].check(text)
    sources = {key: source for key, (source, _) in given.items() if key not in ignored}
    values = {key: broker_row(key).check(given[key][1]) for key in sources}
    of_listeners = _taken_from(values)
    topic_values = {key: value for key, value in values.items() if BROKER_KEYS[key].is_topic_default}
    fields: dict[str, Any] = {BROKER_KEYS[key].field_name: values[key] for key in values.keys() - topic_values.keys()}
    config = BrokerConfig(
        **fields,
        topic_values=topic_values,
        sources=sources,
        ignored=tuple(ignored),
        of_listeners=of_listeners,
    )
    check_without_effect(_checked(config), ignored)
    return config


def _taken_from(values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Take the values of single listeners away, and return them by listener."""
    found: dict[str, dict[str, Any]] = {}
    for name in list(values):
        of_listener = listener_keys.split(name)
        if of_listener is not None:
            listener, key = of_listener
            if key in found.setdefault(listener, {}):
                raise InvalidConfigError(f"{name} occurs twice, in capitals and in lower case; keep one")
            found[listener][key] = values.pop(name)
    return found


def _checked(config: BrokerConfig) -> BrokerConfig:
    """Refuse combinations of values that are invalid together."""
    check_listeners(config)
    check_exposure(config)
    _check_below(config, "broker.heartbeat.interval.ms", "broker.session.timeout.ms")
    _check_below(config, "replica.fetch.wait.max.ms", "replica.socket.timeout.ms")
    if config.network_memory_max_bytes < config.socket_request_max_bytes:
        raise InvalidConfigError(
            f"network.memory.max.bytes={config.network_memory_max_bytes} must not be smaller than "
            f"socket.request.max.bytes={config.socket_request_max_bytes}, or the largest request could never be read"
        )
    lags = tuple(TOPIC_KEYS[key].broker_key for key in ("min.compaction.lag.ms", "max.compaction.lag.ms"))
    lowest, highest = (config.topic_values.get(key, BROKER_KEYS[key].default) for key in lags)
    if lowest > highest:
        raise InvalidConfigError(f"{lags[0]}={lowest} must not be greater than {lags[1]}={highest}")
    return config


def _check_below(config: BrokerConfig, smaller: str, larger: str) -> None:
    values = [getattr(config, BROKER_KEYS[key].field_name) for key in (smaller, larger)]
    if values[0] >= values[1]:
        raise InvalidConfigError(f"{smaller}={values[0]} must be smaller than {larger}={values[1]}")


def _read_file(path: str) -> dict[str, str]:
    try:
        return parse_properties(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"the configuration file {path} cannot be read: {error}") from error
    except InvalidConfigError as error:
        raise InvalidConfigError(f"{path}: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Raises InvalidConfigError for a variable with our prefix that is neither a key nor one of `OTHER_VARIABLES`."""
    known: Iterable[str] = (*BROKER_KEYS, *ALIASES, *BROKER_KEYS_WITHOUT_EFFECT)
    names = {variable_of(key): key for key in known}
    for name in environment:
        of_listener = listener_keys.of_variable(name.removeprefix(ENVIRONMENT_PREFIX))
        if of_listener is not None and name.startswith(ENVIRONMENT_PREFIX):
            names[name] = of_listener
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in names and name not in OTHER_VARIABLES:
            near = did_you_mean(name, (*names, *OTHER_VARIABLES))
            raise InvalidConfigError(
                f"unknown environment variable {name}{near}: variables that begin with {ENVIRONMENT_PREFIX} set keys of "
                "docs/configuration.md. Unset it; in Kubernetes, enableServiceLinks: false leaves out those of a Service"
            )
    return {key: environment[name] for name, key in names.items() if name in environment}
