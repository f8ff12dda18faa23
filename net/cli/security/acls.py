"""`barnabas acl ...`: permissions of the principals of a cluster that has an authorizer."""

import difflib
from argparse import ArgumentParser, Namespace
from typing import Final

from barnabas.log.vocabulary.access.acls import (
    CLUSTER_NAME,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    PatternKind,
    Permission,
    ResourceKind,
    check_acl,
)

from ..frame.command import Context, Verb
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row

_KINDS: Final = {
    "topic": ResourceKind.TOPIC,
    "group": ResourceKind.GROUP,
    "transactional_id": ResourceKind.TRANSACTIONAL_ID,
    "cluster": ResourceKind.CLUSTER,
}
_WORDS: Final = {
    operation.name.lower().replace("_", "-"): operation for operation in Operation if operation is not Operation.ANY
}
_COLUMNS: Final = ("principal", "permission", "operation", "resource", "name", "pattern", "host")


def _resource_arguments(parser: ArgumentParser) -> None:
    named = parser.add_mutually_exclusive_group()
    named.add_argument("--topic", metavar="NAME", help="this topic; '*' is all topics")
    named.add_argument("--group", metavar="NAME", help="this consumer group; '*' is all groups")
    named.add_argument("--transactional-id", metavar="NAME", help="this transactional id; '*' is all of them")
    named.add_argument("--cluster", action="store_const", const=CLUSTER_NAME, help="the cluster itself")
    parser.add_argument("--prefix", action="store_true", help="NAME is the beginning of names")


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "principal",
        help="who: User:NAME, for a certificate User:CN=NAME or as ssl.principal.mapping.rules says; User:*",
    )
    parser.add_argument("operations", nargs="+", metavar="OPERATION", help=f"what: {', '.join(_WORDS)}")
    _resource_arguments(parser)
    parser.add_argument("--deny", action="store_true", help="deny it, which is stronger than every permission")
    parser.add_argument("--host", default=WILDCARD, metavar="ADDRESS", help="only from this address")


def _resource(wanted: Namespace) -> tuple[ResourceKind, str] | None:
    return next(((kind, value) for name, kind in _KINDS.items() if (value := getattr(wanted, name)) is not None), None)


def _operation(word: str, kind: ResourceKind = ResourceKind.ANY) -> Operation:
    """Raises CommandError, which names the most similar operation."""
    found = _WORDS.get(word.lower().replace("_", "-"))
    if found is not None:
        return found
    near = difflib.get_close_matches(word.lower(), _WORDS, n=1)
    known = ("all", *(one.name.lower().replace("_", "-") for one in OPERATIONS.get(kind, ())))
    hint = f"did you mean {near[0]}?" if near else f"the operations are {', '.join(known)}"
    raise CommandError(f"{word!r} is not an operation: {hint}", ExitCode.USAGE)


async def _add(context: Context) -> int:
    wanted = context.arguments
    resource = _resource(wanted)
    if resource is None:
        raise CommandError("say with what: --topic, --group, --transactional-id or --cluster", ExitCode.USAGE)
    kind, name = resource
    acls = [
        Acl(
            kind=kind,
            name=name,
            pattern=PatternKind.PREFIXED if wanted.prefix else PatternKind.LITERAL,
            principal=wanted.principal,
            host=wanted.host,
            operation=_operation(word, kind),
            permission=Permission.DENY if wanted.deny else Permission.ALLOW,
        )
        for word in wanted.operations
    ]
    for acl in acls:
        check_acl(acl)
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.acls.add(acls)
    context.out.rows([_row(acl) for acl in acls], _COLUMNS)
    return ExitCode.OK


def _filter_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--principal", help="only those of this principal, like User:CN=alice")
    parser.add_argument("--operation", help=f"only this operation: {', '.join(_WORDS)}")
    _resource_arguments(parser)
    parser.add_argument("--host", metavar="ADDRESS", help="only those for this address; '*': for every address")


def _filter(wanted: Namespace, pattern: PatternKind) -> AclFilter:
    kind, name = _resource(wanted) or (ResourceKind.ANY, None)
    return AclFilter(
        kind=kind,
        name=name,
        pattern=PatternKind.PREFIXED if wanted.prefix else pattern if name is not None else PatternKind.ANY,
        principal=wanted.principal,
        host=wanted.host,
        operation=Operation.ANY if wanted.operation is None else _operation(wanted.operation, kind),
    )


async def _list(context: Context) -> int:
    """With a name: also the permissions for prefixes of it, and for all names."""
    async with context.connector.admin(context.bootstrap) as admin:
        found = await admin.acls.find(_filter(context.arguments, PatternKind.MATCH))
    context.out.rows([_row(acl) for acl in sorted(found, key=str)], _COLUMNS)
    return ExitCode.OK


def _remove_arguments(parser: ArgumentParser) -> None:
    _filter_arguments(parser)
    parser.add_argument("--all", action="store_true", help="remove all permissions of the cluster")


async def _remove(context: Context) -> int:
    """With a name: only the permissions that have exactly this name or prefix."""
    wanted = _filter(context.arguments, PatternKind.LITERAL)
    if (wanted == AclFilter()) != context.arguments.all:
        raise CommandError("say which: --principal, --topic, ... or, without any of them, --all", ExitCode.USAGE)
    async with context.connector.admin(context.bootstrap) as admin:
        (removed,) = await admin.acls.remove([wanted])
    context.out.rows([_row(acl) for acl in sorted(removed, key=str)], _COLUMNS)
    if not removed:
        context.out.note("nothing was removed: no permission is like this; see `barnabas acl list`")
    return ExitCode.OK


def _row(acl: Acl) -> Row:
    return {
        "principal": acl.principal,
        "permission": acl.permission.name.lower(),
        "operation": acl.operation.name.lower().replace("_", "-"),
        "resource": acl.kind.name.lower(),
        "name": acl.name,
        "pattern": acl.pattern.name.lower(),
        "host": acl.host,
    }


VERBS = (
    Verb(name="add", summary="allow (or deny) operations of a principal", arguments=_add_arguments, run=_add),
    Verb(name="list", summary="list permissions", arguments=_filter_arguments, run=_list),
    Verb(name="remove", summary="remove permissions", arguments=_remove_arguments, run=_remove),
)
