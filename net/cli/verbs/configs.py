"""`barnabas config ...`: configurations of topics, brokers and the cluster, in the same words for all of them."""

import asyncio
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from barnabas.log.vocabulary.errors import BarnabasError, UnknownTopicOrPartitionError
from barnabas.net.wire.protocol.responses import ConfigEntry

from ...base.near_words import did_you_mean
from ..frame.command import Context, Verb, key_value, number_from
from ..frame.exit_codes import CommandError, ExitCode, exit_code_of, message_of
from ..frame.output import Row
from .cluster import ALL_BROKERS, BROKER_RESOURCE

if TYPE_CHECKING:  # help must not import the client's modules
    from barnabas.net.client.admin.admin import Admin

TOPIC_RESOURCE: Final = 2  # Kafka's resource type
AT_ONCE: Final = 16  # requests in flight
# Words that other tools have before the name of a resource.
_OPTION_OF: Final = {
    "topic": "-t TOPIC",
    "topics": "-t TOPIC",
    "broker": "-b BROKER",
    "brokers": "-b BROKER",
    "cluster": "--cluster (with set and reset)",
}
_COLUMNS: Final = ("resource", "key", "value", "source")


class _Resource(NamedTuple):
    """What has a configuration, and how people call it: `topic orders`, `broker 1`, `cluster`."""

    kind: int
    name: str

    @property
    def text(self) -> str:
        if self.kind == TOPIC_RESOURCE:
            return f"topic {self.name}"
        return f"broker {self.name}" if self.name else "cluster"


def _add_resources(parser: ArgumentParser, otherwise: str) -> None:
    parser.add_argument(
        "-t", "--topic", action="append", default=[], metavar="TOPIC", help=f"a topic (repeatable); {otherwise}"
    )
    parser.add_argument(
        "-b", "--broker", type=number_from(0), action="append", default=[], metavar="N", help="a broker (repeatable)"
    )


def _add_targets(parser: ArgumentParser) -> None:
    _add_resources(parser, "one of -t, -b and --cluster is needed")
    parser.add_argument("--cluster", action="store_true", help="all brokers; settings with one value for the cluster")


async def _wanted(context: Context, admin: "Admin") -> list[_Resource]:
    """Those that are named; none: all topics and the brokers that are up."""
    wanted = context.arguments
    named = [_Resource(TOPIC_RESOURCE, name) for name in dict.fromkeys(wanted.topic)]
    named += [_Resource(BROKER_RESOURCE, str(node_id)) for node_id in dict.fromkeys(wanted.broker)]
    for name in wanted.topic:
        await admin.describe_topic(
            name
        )  # Refused at once; the configuration of an unknown topic is asked for again and again.
    if named:
        return named
    brokers = (await admin.describe_cluster()).brokers
    topics = await admin.list_topics()
    return [
        *(_Resource(TOPIC_RESOURCE, name) for name in topics),
        *(_Resource(BROKER_RESOURCE, str(broker.node_id)) for broker in brokers if not broker.fenced),
    ]


async def _entries(admin: "Admin", resources: Sequence[_Resource]) -> list[tuple[_Resource, Sequence[ConfigEntry]]]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def ask(resource: _Resource) -> tuple[_Resource, Sequence[ConfigEntry]]:
        async with gate:
            return resource, await admin.describe_configs(resource.name, resource_type=resource.kind)

    return list(await asyncio.gather(*map(ask, resources)))


def _is_own(resource: _Resource, entry: ConfigEntry) -> bool:
    """Whether the value belongs to this resource: topics also show the values that they have from the cluster."""
    return entry.source == "topic" if resource.kind == TOPIC_RESOURCE else entry.source != "default"


def _row(resource: _Resource, entry: ConfigEntry) -> Row:
    return {
        "resource": resource.text,
        "key": entry.key,
        "value": "(hidden)" if entry.sensitive and entry.value is not None else entry.value,
        "source": entry.source,
        "default": entry.default,
        "read_only": entry.read_only,
        "documentation": entry.documentation,
    }


def _list_arguments(parser: ArgumentParser) -> None:
    _add_resources(parser, "without -t and -b: all topics and brokers")
    parser.add_argument("--all", action="store_true", help="also defaults, and what topics have from the cluster")


async def _list(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        found = await _entries(admin, await _wanted(context, admin))
    rows = [
        _row(resource, entry)
        for resource, entries in found
        for entry in entries
        if context.arguments.all or _is_own(resource, entry)
    ]
    context.out.rows(rows, _COLUMNS)
    if not rows and not context.out.is_json:
        context.out.note("nothing was set; --all shows the defaults")
    return ExitCode.OK


def _get_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="+", help="the keys")
    _add_resources(parser, "without -t and -b: all topics and brokers that have the key")


async def _get(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        found = await _entries(admin, await _wanted(context, admin))
    known = {entry.key for _, entries in found for entry in entries}
    for key in context.arguments.key:
        if key not in known:
            if key in _OPTION_OF:
                raise CommandError(f"there is no key {key}; {_by_option(key)}")
            raise CommandError(
                f"there is no key {key}{did_you_mean(key, known)}; see them all: barnabas config list --all"
            )
    asked = set(context.arguments.key)
    rows = [_row(resource, entry) for resource, entries in found for entry in entries if entry.key in asked]
    if len(rows) == 1 and not context.out.is_json:
        context.out.text(str(rows[0]["value"]))  # for scripts: the value alone
    else:
        context.out.rows(rows, _COLUMNS)
    return ExitCode.OK


def _change(text: str) -> tuple[str, str]:
    if text in _OPTION_OF:
        raise ArgumentTypeError(f"{text!r} is not KEY=VALUE; {_by_option(text)}")
    return key_value(text)


def _by_option(word: str) -> str:
    return f"name the resource by an option: {_OPTION_OF[word]}"


def _set_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("change", metavar="KEY=VALUE", type=_change, nargs="+", help="the new values")
    _add_targets(parser)


def _reset_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("change", metavar="KEY", nargs="+", help="the keys that get their default again")
    _add_targets(parser)


def _altering(changes_of: Callable[[Context], dict[str, str | None]]) -> Callable[[Context], Awaitable[int]]:
    async def alter(context: Context) -> int:
        """Change one resource after the other. All are checked before the first is changed."""
        wanted = context.arguments
        changes = changes_of(context)
        resources = [_Resource(TOPIC_RESOURCE, name) for name in dict.fromkeys(wanted.topic)]
        resources += [_Resource(BROKER_RESOURCE, str(node_id)) for node_id in dict.fromkeys(wanted.broker)]
        resources += [_Resource(BROKER_RESOURCE, ALL_BROKERS)] if wanted.cluster else []
        if not resources:
            raise CommandError("say what to change: -t TOPIC, -b BROKER or --cluster", ExitCode.USAGE)
        async with context.connector.admin(context.bootstrap) as admin:
            for is_check in (True, False):
                for resource in resources:
                    await _alter(admin, resource, changes, is_check=is_check)
                    if not is_check:
                        row = {"resource": resource.text, "changes": changes}
                        context.out.line(f"changed {resource.text}", row)
        return ExitCode.OK

    return alter


async def check_removed(
    admin: "Admin", name: str, changes: Mapping[str, str | None], *, kind: int = TOPIC_RESOURCE
) -> None:
    """Raises CommandError for a typo in a key that is to be removed.

    The controller removes any key, as a version before it may have set one that it does not know, so a typo looked as if it had
    changed something.
    """
    removed = [key for key, value in changes.items() if value is None]
    if removed:
        # All brokers have the same keys, and the one whose keys are removed may be down.
        asked = name if kind == TOPIC_RESOURCE else ALL_BROKERS
        known = {entry.key for entry in await admin.describe_configs(asked, resource_type=kind)}
        for key in removed:
            if key not in known and (near := did_you_mean(key, known)):
                raise CommandError(f"there is no key {key}{near}")


async def _alter(admin: "Admin", resource: _Resource, changes: dict[str, str | None], *, is_check: bool) -> None:
    if is_check:
        await check_removed(admin, resource.name, changes, kind=resource.kind)
    try:
        await admin.alter_config(resource.name, changes, resource_type=resource.kind, validate_only=is_check)
    except UnknownTopicOrPartitionError:
        raise  # It names the topic.
    except BarnabasError as error:
        raise CommandError(f"{resource.text}: {message_of(error)}", exit_code_of(error)) from error


VERBS = (
    Verb(name="list", summary="values that were set", arguments=_list_arguments, run=_list),
    Verb(
        name="get",
        summary="the value of a key, in all topics and brokers or in some",
        arguments=_get_arguments,
        run=_get,
    ),
    Verb(
        name="set",
        summary="change values of topics, brokers or the cluster",
        arguments=_set_arguments,
        run=_altering(lambda context: dict(context.arguments.change)),
    ),
    Verb(
        name="reset",
        summary="go back to the defaults",
        arguments=_reset_arguments,
        run=_altering(lambda context: dict.fromkeys(context.arguments.change)),
    ),
)
