"""`barnabas user ...`: users with passwords. A password is typed, or read from standard input or a file, never an argument."""

import getpass
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Final

from barnabas.log.vocabulary.access.scram import DEFAULT_ITERATIONS, ScramMechanism
from barnabas.net.base.sasl.verifiers import user_line
from barnabas.net.client.admin.users import ALL, credentials_of

from ..frame.command import Context, Verb, name_argument, no_arguments, number_from
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Row

MAX_PASSWORD_BYTES: Final = 4_096
_COLUMNS: Final = ("user", "mechanism", "iterations")


def _password_arguments(parser: ArgumentParser) -> None:
    name_argument("USER")(parser)
    parser.add_argument(
        "--mechanism", action="append", default=[], choices=ALL, help="only this one; may be repeated; default: all"
    )
    parser.add_argument(
        "--iterations",
        type=number_from(1),
        default=DEFAULT_ITERATIONS,
        metavar="N",
        help=f"how slow a guess of the password is; default: {DEFAULT_ITERATIONS}",
    )
    parser.add_argument("--password-file", metavar="FILE", help="read the password from the first line; -: from stdin")


def _remove_arguments(parser: ArgumentParser) -> None:
    name_argument("USER")(parser)
    parser.add_argument(
        "--mechanism", action="append", default=[], choices=ALL, help="only this one; default: the whole user"
    )


def _password(file: str | None) -> str:
    """Raises CommandError."""
    if file is None and sys.stdin.isatty():
        first = getpass.getpass("Password: ")
        if getpass.getpass("Again: ") != first:
            raise CommandError("the passwords differ; try again", ExitCode.USAGE)
        return _checked(first)
    try:
        if file is None or file == "-":
            return _checked(sys.stdin.readline(MAX_PASSWORD_BYTES).rstrip("\r\n"))
        with Path(file).open(encoding="utf-8") as text:
            return _checked(text.readline(MAX_PASSWORD_BYTES).rstrip("\r\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"the password cannot be read from {file or 'standard input'}: {error}", ExitCode.USAGE
        ) from error


def _checked(password: str) -> str:
    if not password:
        raise CommandError("the password is empty; type one, or give --password-file FILE", ExitCode.USAGE)
    return password


async def _add(context: Context) -> int:
    wanted = context.arguments
    password = _password(wanted.password_file)
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.users.add(wanted.name, password, mechanisms=wanted.mechanism or ALL, iterations=wanted.iterations)
    context.out.line(
        f"user {wanted.name} can log in", {"user": wanted.name, "mechanisms": wanted.mechanism or list(ALL)}
    )
    return ExitCode.OK


async def _hash(context: Context) -> int:
    wanted = context.arguments
    made = credentials_of(
        wanted.name,
        _password(wanted.password_file),
        mechanisms=wanted.mechanism or ALL,
        iterations=wanted.iterations,
    )
    for item in made:
        line = user_line(item.user, ScramMechanism(item.mechanism), item.credential)
        context.out.line(line, {"line": line})
    return ExitCode.OK


async def _list(context: Context) -> int:
    async with context.connector.admin(context.bootstrap) as admin:
        found = await admin.users.list()
    rows: list[Row] = [
        {"user": item.user, "mechanism": str(ScramMechanism(item.mechanism)), "iterations": item.iterations}
        for item in found
    ]
    context.out.rows(rows, _COLUMNS)
    return ExitCode.OK


async def _remove(context: Context) -> int:
    wanted = context.arguments
    async with context.connector.admin(context.bootstrap) as admin:
        await admin.users.remove(wanted.name, mechanisms=wanted.mechanism)
    context.out.line(f"removed user {wanted.name}", {"user": wanted.name, "removed": True})
    return ExitCode.OK


VERBS = (
    Verb(
        name="add",
        summary="add a user with a password, or change the password",
        arguments=_password_arguments,
        run=_add,
        timed=False,  # somebody types
    ),
    Verb(name="list", summary="list the users and how they can log in", arguments=no_arguments, run=_list),
    Verb(name="remove", summary="remove a user, or one way to log in", arguments=_remove_arguments, run=_remove),
    Verb(
        name="hash",
        summary="print lines for sasl.users.file: users of a broker that has no quorum yet",
        arguments=_password_arguments,
        run=_hash,
        timed=False,
    ),
)
