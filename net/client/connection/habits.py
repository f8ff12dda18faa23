"""The names that users of other clients type from habit: the two commonest are taken, others are answered with ours. Pure."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ...base.near_words import did_you_mean
from .arguments import documented
from .client import Client
from .security import SecurityOptions

P = ParamSpec("P")
Self = TypeVar("Self")
Client_ = TypeVar("Client_")
Text = TypeVar("Text", str, str | None)
PartitionLike = TopicPartition | tuple[str, int]

_TAKEN: Final = {"bootstrap_servers": "bootstrap", "group_id": "group"}
# Of kafka-python, aiokafka and confluent-kafka (with "_" for "."), where it is called otherwise here.
_CALLED: Final = {
    "compression_type": "compression",
    "buffer_memory_bytes": "buffer_memory",
    "max_in_flight_requests_per_connection": "max_in_flight",
    "max_request_size": "max_request_bytes",
    "max_batch_bytes": "max_batch_size",
    "enable_auto_commit": "auto_commit",
    "group_instance_id": "instance_id",
    "client_rack": "rack",
    "fetch_max_bytes_per_partition": "partition_max_bytes",
    "max_partition_fetch_bytes": "partition_max_bytes",
    "partition_assignment_strategy": "assignor",
    "topics": "the topics themselves, as positional arguments",
    "retries": "delivery_timeout_ms, which limits all attempts of a record",
    "max_poll_records": "max_records of poll",
    "consumer_timeout_ms": "timeout_ms of poll",
}


def with_habits(
    init: Callable[Concatenate[Self, P], None],
) -> Callable[Concatenate[Self, P], None]:
    """Of a client's `__init__`. Raises TypeError for an argument that does not exist, as Python does, with the name to use.
    Its docstring says what the arguments mean."""
    known = {*inspect.signature(init).parameters, *SecurityOptions.__annotations__} - {"self", "security"}
    # What a client hands on with the security options: simulations replace the network and the clock.
    accepted = known | set(inspect.signature(Client.__init__).parameters) - {"self", "security"}

    def checked(self: Self, *arguments: P.args, **options: P.kwargs) -> None:
        if arguments and isinstance(arguments[0], Mapping):
            raise TypeError(
                f"{type(self).__name__} takes keyword arguments, not a dict, such as bootstrap='localhost:9092'"
            )
        if not options.keys() <= accepted:
            _rename(options, known, accepted, is_bootstrap_given=bool(arguments) and "bootstrap" in _positional(init))
        init(self, *arguments, **options)

    wrapped = wraps(init)(checked)
    wrapped.__doc__ = documented(init)
    return cast(Callable[Concatenate[Self, P], None], wrapped)


def asynchronous(client: type[Client_]) -> type[Client_]:
    """Of a client's class: `with` and `for` instead of `async with` and `async for` are answered with what to write. Type
    checkers do not see these methods, and report such a statement themselves."""
    name = client.__name__

    def entered(self: object) -> None:
        raise TypeError(
            f"{name} is asynchronous: write `async with {name}(...)` in a coroutine, or use `with` and {name} of barnabas.sync"
        )

    def left(self: object, *_: object) -> None:
        """Never called: `with` asks for it before it enters."""

    def iterated(self: object) -> None:
        raise TypeError(f"{name} is asynchronous: write `async for` in a coroutine, or use {name} of barnabas.sync")

    added = {"__enter__": entered, "__exit__": left}
    for method, answer in {**added, "__iter__": iterated}.items() if hasattr(client, "__aiter__") else added.items():
        setattr(client, method, answer)
    return client


def partition_of(given: PartitionLike) -> TopicPartition:
    """Raises TypeError, which says how a partition is written: from habit, a topic's name alone is given."""
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise TypeError(
            f"{given!r} is not a partition: give TopicPartition(topic, number), or a tuple such as ('orders', 0)"
        )
    return TopicPartition(*given)


def texts_of(configs: Mapping[str, Text]) -> dict[str, Text]:
    """Raises TypeError, with the text to give, for a value that is not a text."""
    for key, value in configs.items():
        if value is not None and not isinstance(value, str):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            raise TypeError(f"the value of {key} must be a str, not {type(value).__name__}: {text!r}")
    return dict(configs)


def _positional(init: Callable[..., None]) -> list[str]:
    parameters = inspect.signature(init).parameters.values()
    return [item.name for item in parameters if item.kind is item.POSITIONAL_OR_KEYWORD]


def _rename(options: dict[str, Any], known: set[str], accepted: set[str], *, is_bootstrap_given: bool) -> None:
    for name in [name for name in options if name not in accepted]:
        ours = _TAKEN.get(name)
        if ours is None or ours not in known:
            raise TypeError(f"unexpected keyword argument {name!r}{_cure(name, known)}")
        if ours in options or (is_bootstrap_given and ours == "bootstrap"):
            raise TypeError(f"{name} is another name of {ours}, which is given, too")
        options[ours] = options.pop(name)


def _cure(name: str, known: set[str]) -> str:
    ours = _CALLED.get(name)
    if ours is not None and (ours in known or " " in ours):
        return f": it is {ours}"
    return did_you_mean(name, sorted(known))
