"""`barnabas quota ...`: how much users, client ids and addresses may use of each broker."""

import difflib
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from typing import Final

from barnabas.log.vocabulary.access.quotas import (
    CLIENT_ID,
    DEFAULT,
    IP,
    USER,
    QuotaChange,
    QuotaEntity,
    QuotaKind,
    check_change,
    filter_of,
)

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row

_COLUMNS: Final = (USER, CLIENT_ID, IP, "quota", "value")
_SHOWN_DEFAULT: Final = "<default>"  # as Kafka's tools show it
_SAY_WHOSE: Final = (
    "say whose quota: --user, --client-id, both, or --ip; or --user-default, --client-id-default, --ip-default"
)


def _name(text: str) -> str:
    """An empty variable of a script must not set the quota of everyone."""
    if text == DEFAULT:
        raise ArgumentTypeError("the name is empty; for all others, use the option that ends in -default")
    return text


def _entity_arguments(parser: ArgumentParser) -> None:
    for kind, what in ((USER, "principal without User:"), (CLIENT_ID, "client id"), (IP, "address of clients")):
        one = parser.add_mutually_exclusive_group()
        one.add_argument(f"--{kind}", metavar="NAME", type=_name, help=f"this {what}")
        one.add_argument(
            f"--{kind}-default",
            dest=kind.replace("-", "_"),
            action="store_const",
            const=DEFAULT,
            help="every other one, which has no quota of its own",
        )


def _set_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("quotas", nargs="+", metavar="QUOTA=VALUE", help=f"what: {', '.join(QuotaKind)}")
    _entity_arguments(parser)


def _remove_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("quotas", nargs="*", metavar="QUOTA", help="which; default: all that the entity has")
    _entity_arguments(parser)


def _entity(wanted: Namespace) -> QuotaEntity:
    entity = QuotaEntity(user=wanted.user, client_id=wanted.client_id, ip=wanted.ip)
    if not entity.parts:
        raise CommandError(_SAY_WHOSE, ExitCode.USAGE)
    return entity


def _kind(word: str) -> QuotaKind:
    """Raises CommandError, which names the most similar quota."""
    try:
        return QuotaKind(word.lower().replace("-", "_"))
    except ValueError:
        near = difflib.get_close_matches(word.lower(), list(QuotaKind), n=1)
        hint = f"did you mean {near[0]}?" if near else f"the quotas are {', '.join(QuotaKind)}"
        raise CommandError(f"{word!r} is not a quota: {hint}", ExitCode.USAGE) from None


def _value(text: str) -> tuple[QuotaKind, float]:
    word, _, number = text.partition("=")
    kind = _kind(word)
    try:
        return kind, float(number)
    except ValueError:
        raise CommandError(f"{text!r} gives no number; write {kind}=1000000", ExitCode.USAGE) from None


async def _set(context: Context) -> int:
    entity = _entity(context.arguments)
    values: dict[str, float | None] = dict(map(_value, context.arguments.quotas))
    for kind, value in values.items():
        check_change(QuotaChange(entity=entity, kind=kind, value=value))
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.quotas.alter(entity, values)
    context.out.rows(_rows(entity, values), _COLUMNS)
    return ExitCode.OK


async def _list(context: Context) -> int:
    """With names: only the entities that have these parts."""
    wanted = context.arguments
    named = QuotaEntity(user=wanted.user, client_id=wanted.client_id, ip=wanted.ip)
    async with context.connector.admin(context.bootstrap) as admin:
        found = await admin.quotas.find(filter_of(named))
    found.sort(key=lambda one: str(one.entity))
    context.out.rows([row for one in found for row in _rows(one.entity, one.values)], _COLUMNS)
    return ExitCode.OK


async def _remove(context: Context) -> int:
    entity = _entity(context.arguments)
    kinds = {str(_kind(word)) for word in context.arguments.quotas}
    async with context.connector.admin(context.bootstrap) as admin:
        found = await admin.quotas.find(filter_of(entity, strict=True))
        gone = {kind: value for one in found for kind, value in one.values.items() if not kinds or kind in kinds}
        if gone:
            await admin.quotas.alter(entity, dict.fromkeys(gone))
    context.out.rows(_rows(entity, gone), _COLUMNS)
    if not gone:
        context.out.note(f"nothing was removed: {entity} has no such quota; see `barnabas quota list`")
    return ExitCode.OK


def _rows(entity: QuotaEntity, values: Mapping[str, float | None]) -> list[Row]:
    parts = {kind: name or _SHOWN_DEFAULT for kind, name in entity.parts.items()}
    return [
        {kind: parts.get(kind, "") for kind in (USER, CLIENT_ID, IP)} | {"quota": quota, "value": _number(value)}
        for quota, value in sorted(values.items())
    ]


def _number(value: float | None) -> int | float | None:
    return int(value) if value is not None and value == int(value) else value


VERBS = (
    Verb(
        name="set", summary="set quotas of a user, a client id, both, or an address", arguments=_set_arguments, run=_set
    ),
    Verb(name="list", summary="list quotas", arguments=_entity_arguments, run=_list),
    Verb(name="remove", summary="remove quotas", arguments=_remove_arguments, run=_remove),
)
