"""What a cluster under test may be asked for: errors that name the argument, before anything is started or broken."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from ..base.local.local_cluster import MAX_BROKERS

# Another value would give a broker the identity of another one.
OWN_KEYS: Final = ("node.id", "controller.quorum.voters")


def check_counts(brokers: Any, voters: Any, timeout_s: Any) -> None:
    """Raises TypeError, ValueError."""
    for name, value in (("brokers", brokers), ("voters", voters)):
        if not _is_integer(value) and not (name == "voters" and value is None):
            raise TypeError(f"{name}={value!r}: give an integer, such as {name}=3")
    if not 1 <= brokers <= MAX_BROKERS:
        raise ValueError(f"brokers={brokers}: give 1 to {MAX_BROKERS}")
    if voters is not None and not 1 <= voters <= brokers:
        raise ValueError(f"voters={voters}: give 1 to {brokers}, the number of brokers")
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float):
        raise TypeError(f"timeout_s={timeout_s!r}: give seconds as a number")
    if not timeout_s > 0:
        raise ValueError(f"timeout_s={timeout_s}: give more than 0 seconds")


def check_keys(config: Any, name: str = "config") -> None:
    """The keys of brokers. Raises TypeError, ValueError."""
    if not isinstance(config, Mapping):
        raise TypeError(f"{name}={config!r}: give keys of brokers as a dictionary, such as {{'num.partitions': '6'}}")
    for key in OWN_KEYS:
        if key in config:
            raise ValueError(
                f"{key}={config[key]}: the cluster sets this key itself; leave it out of config and broker_config"
            )


def check_own_keys(broker_config: Any, brokers: int) -> None:
    """Those of single brokers. Raises TypeError, ValueError."""
    if not isinstance(broker_config, Mapping):
        raise TypeError(
            f"broker_config={broker_config!r}: give a dictionary by broker, such as {{2: {{'broker.rack': 'b'}}}}"
        )
    for broker, keys in broker_config.items():
        if not _is_integer(broker) or not 0 <= broker < brokers:
            raise ValueError(
                f"broker_config: there is no broker {broker!r}; give brokers 0 to {brokers - 1}, as integers"
            )
        check_keys(keys, f"broker_config[{broker}]")


def check_users(users: Any) -> None:
    """Raises TypeError."""
    if users is None:
        return
    if not isinstance(users, Mapping):
        raise TypeError(f"users={users!r}: give a dictionary, {{name: password}}")
    for user, password in users.items():
        if not isinstance(user, str) or not isinstance(password, str):
            raise TypeError(f"users: name and password of {user!r} must be texts")


def checked_brokers(asked: Iterable[Any], known: Collection[int]) -> list[int]:
    """Each of them once. Raises TypeError, ValueError."""
    chosen = list(dict.fromkeys(item if _is_integer(item) else _refused(item) for item in asked))
    for broker in chosen:
        if broker not in known:
            raise ValueError(f"there is no broker {broker}; this cluster has the brokers {', '.join(map(str, known))}")
    return chosen


def check_some(method: str, brokers: Collection[int]) -> None:
    """Raises TypeError for a call that would do nothing."""
    if not brokers:
        raise TypeError(
            f"{method}() without brokers does nothing: name them, as in {method}(0) or {method}(*cluster.brokers)"
        )


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refused(item: object) -> int:
    raise TypeError(f"{item!r} is no broker: give their numbers, such as 0, or several: (0, 1)")
