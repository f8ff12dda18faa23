"""The names that users of other clients type from habit: the two commonest are taken, others are answered with ours. Pure."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from numbers import Real
from types import NoneType
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, cast, get_args

from barnabas.log.vocabulary.topic_partition import TopicPartition

from ...base.near_words import did_you_mean
from .arguments import RANGES, documented
from .client import Client
from .errors import InvalidConfigError, InvalidRequestError
from .security import SecurityOptions

P = ParamSpec("P")
Self = TypeVar("Self")
Client_ = TypeVar("Client_")
Result = TypeVar("Result")
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
_PLAIN: Final[Mapping[Any, type]] = {int: Real, float: Real, str: str, bool: bool, None: NoneType, NoneType: NoneType}
_WORDS: Final[Mapping[type, str]] = {Real: "a number", str: "a str", bool: "True or False"}
_LISTENERS: Final = ("on_assigned", "on_revoked", "on_lost", "on_error")
# The methods of the same clients, and arguments of methods: the name here, or what to do instead.
_METHODS: Final = {
    "produce": "send",
    "send_and_wait": "send, whose handle is awaited (barnabas.sync: .result())",
    "begin_transaction": "transaction, as in `with producer.transaction() as transaction`",
    "init_transactions": "transaction, as in `with producer.transaction() as transaction`",
    "send_offsets_to_transaction": "commit_offsets of the transaction",
    "getone": "poll, or `for record in consumer`",
    "getmany": "poll",
    "consume": "poll, whose max_records limits it",
    "seek_to_beginning": "seek_to_start",
    "store_offsets": "commit, with auto_commit=False",
    "commit_async": "commit_nowait",
    "partitions_for_topic": "partitions_for",
    "list_topics": "list_topics of Admin",
    "topics": "list_topics of Admin",
    "highwater": "end_offsets",
    "get_watermark_offsets": "beginning_offsets and end_offsets",
    "end_offset": "end_offsets",
    "stop": "close",
    "unsubscribe_all": "unsubscribe",
    "create_topics": "create_topic, for each of them",
    "delete_topics": "delete_topic, for each of them",
    "create_partitions": "add_partitions",
    "list_consumer_groups": "list_groups",
    "describe_consumer_groups": "describe_group",
    "delete_consumer_groups": "delete_group",
    "list_consumer_group_offsets": "group_offsets",
    "alter_consumer_group_offsets": "reset_offsets",
    "incremental_alter_configs": "alter_config",
    "alter_configs": "alter_config",
    "describe_config": "describe_configs",
}
_OF_METHODS: Final = {
    "timeout": "timeout_ms, in milliseconds",
    "timestamp": "timestamp_ms",
    "num_messages": "max_records",
    "num_partitions": "partitions",
    "config": "configs",
    "topic_configs": "configs",
    "message": "offsets: {partition: offset of the next record}",
    "asynchronous": "commit_nowait, another method",
    "on_delivery": "the handle that is returned: await it",
    "callback": "the handle that is returned: await it",
    "replica_assignments": "assignment",
}


def with_habits(
    init: Callable[Concatenate[Self, P], None],
) -> Callable[Concatenate[Self, P], None]:
    """Of a client's `__init__`. Raises TypeError for an argument that does not exist, as Python does, with the name to use.
    Its docstring says what the arguments mean."""
    known = {*inspect.signature(init).parameters, *SecurityOptions.__annotations__} - {"self", "security"}
    kinds = _plain_kinds(init)
    # What a client hands on with the security options: simulations replace the network and the clock.
    accepted = known | set(inspect.signature(Client.__init__).parameters) - {"self", "security"}

    def checked(self: Self, *arguments: P.args, **options: P.kwargs) -> None:
        if arguments and isinstance(arguments[0], Mapping):
            raise TypeError(
                f"{type(self).__name__} takes keyword arguments, not a dict, such as bootstrap='localhost:9092'"
            )
        if not options.keys() <= accepted:
            _rename(options, known, accepted, is_bootstrap_given=bool(arguments) and "bootstrap" in _positional(init))
        for name, value in options.items():
            _check_kind(name, value, kinds)
            _check_range(name, value)
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

    added: dict[str, Callable[..., None]] = {"__enter__": entered, "__exit__": left}

    def missing(self: object, name: str) -> None:
        raise no_such_method(self, name)

    added["__getattr__"] = missing
    for method, answer in {**added, "__iter__": iterated}.items() if hasattr(client, "__aiter__") else added.items():
        setattr(client, method, answer)
    return client


def no_such_method(client: object, name: str) -> AttributeError:
    """With the name of the method here, for one that is known from other clients or mistyped. For `__getattr__`."""
    kind = type(client)
    ours = _METHODS.get(name, "")
    if name.startswith("_"):
        cure = ""
    elif (ours and hasattr(kind, re.split(r"\W", ours)[0])) or ours.endswith(" of Admin"):
        cure = f": it is {ours}"
    else:
        cure = did_you_mean(name, sorted(known for known in dir(kind) if not known.startswith("_")))
    return AttributeError(f"{kind.__name__} has no {name!r}{cure}", name=name, obj=client)


def keyworded(method: Callable[P, Result]) -> Callable[P, Result]:
    """Of a method that is not called for each record: an argument that it does not have is answered with the one to use."""
    names = [name for name in inspect.signature(method).parameters if name != "self"]

    def called(*arguments: P.args, **options: P.kwargs) -> Result:
        try:
            return method(*arguments, **options)
        except TypeError:
            for name in options:
                if name not in names:
                    ours = _OF_METHODS.get(name, "")
                    cure = f": it is {ours}" if re.split(r"\W", ours)[0] in names else did_you_mean(name, names)
                    raise TypeError(f"{method.__name__} has no argument {name!r}{cure}") from None
            if len(arguments) > 1 and len(arguments) > method.__code__.co_argcount:
                raise TypeError(f"{method.__name__} takes its arguments by name: {', '.join(names)}") from None
            raise

    return cast(Callable[P, Result], wraps(method)(called))


def topic_names(topics: Iterable[object]) -> list[str]:
    """Of arguments that are names, or lists of names. Raises TypeError, InvalidConfigError."""
    names = [
        name
        for item in topics
        for name in (item if isinstance(item, Iterable) and not isinstance(item, str | bytes) else (item,))
    ]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a topic must be a str, not {type(name).__name__}: {name!r}")
        if not name:
            raise InvalidConfigError("the name of a topic is empty")
    return cast(list[str], names)


def partition_of(given: PartitionLike) -> TopicPartition:
    """Raises TypeError, which says how a partition is written: from habit, a topic's name alone is given."""
    if not isinstance(given, tuple | list) or len(given) != 2 or not isinstance(given[0], str):
        raise TypeError(
            f"{given!r} is not a partition: give TopicPartition(topic, number), or a tuple such as ('orders', 0)"
        )
    topic, number = given
    if not topic or not isinstance(number, int) or number < 0:
        raise InvalidRequestError(f"{tuple(given)!r} is not a partition: it needs a name, and a number of 0 or more")
    return TopicPartition(*given)


def texts_of(configs: Mapping[str, Text]) -> dict[str, Text]:
    """Raises TypeError, with the text to give, for a value that is not a text."""
    for key, value in configs.items():
        if value is not None and not isinstance(value, str):
            text = str(value).lower() if isinstance(value, bool) else str(value)
            raise TypeError(f"the value of {key} must be a str, not {type(value).__name__}: {text!r}")
    return dict(configs)


def _plain_kinds(init: Callable[..., None]) -> dict[str, tuple[type, ...]]:
    """The types of the arguments that are numbers and texts. Others are checked where they are used."""
    found = {}
    for name, parameter in inspect.signature(init).parameters.items():
        of_union = get_args(parameter.annotation) or (parameter.annotation,)
        if all(kind in _PLAIN for kind in of_union):
            found[name] = tuple(_PLAIN[kind] for kind in of_union)
    return found


def _check_kind(name: str, value: object, kinds: Mapping[str, tuple[type, ...]]) -> None:
    """Raises TypeError. A float is taken for an int, as of 1e3 milliseconds; True is no number."""
    kind = kinds.get(name)
    is_wrong = kind is not None and not isinstance(value, kind)
    if kind is not None and (is_wrong or (isinstance(value, bool) and bool not in kind)):
        wanted = " or ".join(_WORDS[one] for one in kind if one is not NoneType)
        raise TypeError(f"{name} must be {wanted}, not {type(value).__name__}: {value!r}")
    if name in _LISTENERS and value is not None and not callable(value):
        raise TypeError(f"{name} must be a function, not {type(value).__name__}: {value!r}")


def _check_range(name: str, value: object) -> None:
    """Raises InvalidConfigError."""
    if name in RANGES and isinstance(value, int | float):
        least, most = RANGES[name]
        if not least <= value <= most:  # NaN is refused, too
            raise InvalidConfigError(f"{name} is {value}; it must be from {least} to {most}")


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
