"""The `barnabas` command: finds the noun and the verb, runs it, and turns errors into one line and an exit code.

The module of a noun is imported only when the noun is used: help and `broker start` must not import the client.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .frame.exit_codes import CommandError, ExitCode, exit_code_of, message_of
from .frame.parser import CommandParser, with_leading_options_last

if TYPE_CHECKING:
    from .frame.client_file import ClientFile

DEFAULT_BOOTSTRAP: Final = "localhost:9092"
DEFAULT_TIMEOUT_S: Final = 30.0
NOUNS: Final = {
    "topic": ("verbs.topics", "create, list, describe, alter and delete topics; produce to them and consume from them"),
    "group": ("verbs.groups", "list, describe, explain, seek and delete consumer groups; remove members"),
    "transaction": ("verbs.transactions", "list, describe and abort transactions; find those that hang"),
    "config": ("verbs.configs", "list, get, set and reset configurations of topics, brokers and the cluster"),
    "cluster": ("verbs.cluster", "health, brokers and quorum of the cluster"),
    "partition": ("verbs.partitions", "move replicas and leadership of partitions"),
    "bench": ("streams.bench", "measure producing to and consuming from a topic"),
    "user": ("security.users", "add, list and remove users with passwords"),
    "acl": ("security.acls", "permissions: who may do what; needs authorizer.class.name"),
    "quota": ("security.quotas", "limits of what users, client ids and addresses may use"),
    "security": ("security.certificates", "an authority, and certificates of brokers and clients"),
    "connect": ("connect.verbs", "copy changes of PostgreSQL's tables into topics, and topics into tables"),
    "pipeline": ("pipeline.verbs", "run pipelines on Spark that a file describes: topics, SQL, windows, databases"),
    "profile": ("verbs.profiles", "names for clusters, instead of --bootstrap and --command-config"),
    "broker": ("verbs.brokers", "start, add, drain and decommission brokers; their data folders"),
}
SHARED_OPTIONS: Final = (
    "--bootstrap",
    "--command-config",
    "--profile",
    "-f",
    "--format",
    "--timeout",
)  # each takes a value
COMPLETE: Final = "__complete"  # what the scripts of `barnabas completion` call
PLAIN_VERBS: Final = {
    "up": ("verbs.local", "start a local cluster in the foreground"),
    "down": ("verbs.local", "stop a local cluster"),
    "doctor": ("verbs.doctor", "say what is wrong with the cluster, whom it costs what, and the cure"),
    "sql": ("streams.sql", "query topics with SQL (DuckDB)"),
    "collect": ("streams.collect", "send the lines of log files to a topic, each once"),
    "mirror": ("streams.mirror", "copy topics of another cluster into this one, each record once"),
    "top": ("streams.top", "rates of topics and lag of groups, live"),
    "completion": ("verbs.completion", "print the completion script of bash, zsh or fish"),
}


class _ShowVersion(argparse.Action):
    """Looked up only when asked for: no other command needs it."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version

        from barnabas.log.records.codec import IS_COMPILED

        from ..base import turn

        records, requests = (
            "compiled" if is_compiled else "in Python"
            for is_compiled in (IS_COMPILED, not turn.__file__.endswith(".py"))
        )
        print(f"barnabas {version('barnabas')} (records: {records}, requests: {requests})")
        parser.exit()


def main(arguments: Sequence[str] | None = None, connector: Any = None) -> int:
    """Run one command and return its exit code. `connector` is for tests; by default the SDK is used."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == [COMPLETE]:
        from .verbs.completion import complete

        return complete(words[1:], connector)
    given = with_leading_options_last(words, SHARED_OPTIONS, NOUNS)
    try:
        parsed = build_parser(given).parse_args(given or ["--help"])
    except SystemExit as stop:
        return int(stop.code or 0) if given else ExitCode.USAGE
    try:
        code = _run(parsed, connector)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader has closed the pipe. Discard the buffered output, so that Python does not report it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:
        if not _is_expected(error):
            raise
        from .frame.output import PLAIN, RED, has_colours

        before, after = (RED, PLAIN) if has_colours(sys.stderr) else ("", "")
        print(f"{before}barnabas:{after} {message_of(error)}", file=sys.stderr)
        return exit_code_of(error)


def build_parser(given: Sequence[str]) -> argparse.ArgumentParser:
    """Build the parser. Only the noun that `given` begins with gets its verbs."""
    parser = CommandParser(prog="barnabas", description="Barnabas: the Kafka you can import.", epilog=_exit_codes())
    parser.has_all_commands = True
    parser.add_argument(
        "--version", action=_ShowVersion, nargs=0, help="show the version and whether records are compiled"
    )
    nouns = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in given if not word.startswith("-")), None)
    for name, (module, summary) in PLAIN_VERBS.items():
        plain = nouns.add_parser(name, help=summary, description=summary)
        if name == chosen:
            verb = importlib.import_module(f".{module}", __package__).VERBS[name]
            verb.arguments(plain)
            plain.set_defaults(verb=verb)
            _add_shared(plain, has_templates=verb.has_templates)
    for name, (module, summary) in NOUNS.items():
        noun = nouns.add_parser(name, help=summary, description=summary)
        if name == chosen:
            noun.commands_beside = {*NOUNS, *PLAIN_VERBS} - {name}
            _add_verbs(noun, importlib.import_module(f".{module}", __package__).VERBS)
    return parser


def _add_verbs(noun: argparse.ArgumentParser, verbs: Sequence[Any]) -> None:
    names = ",".join(verb.name for verb in verbs if not verb.hidden)
    choices = noun.add_subparsers(metavar=f"{{{names}}}", required=True)
    for verb in verbs:
        shown = {} if verb.hidden else {"help": verb.summary}
        parser = choices.add_parser(verb.name, description=verb.summary, **shown)
        verb.arguments(parser)
        parser.set_defaults(verb=verb)
        _add_shared(parser, has_templates=verb.has_templates)


def _add_shared(parser: argparse.ArgumentParser, *, has_templates: bool = False) -> None:
    assert isinstance(parser, CommandParser)
    parser.is_leaf = True
    shared = parser.add_argument_group("options of every command")
    shared.add_argument(
        "--bootstrap", metavar="HOST:PORT[,...]", help="addresses of brokers to connect to first ($BARNABAS_BOOTSTRAP)"
    )
    shared.add_argument(
        "--command-config",
        type=Path,
        metavar="FILE",
        help="client.properties: bootstrap.servers, security.protocol, ssl.*, sasl.* ($BARNABAS_COMMAND_CONFIG)",
    )
    shared.add_argument("--profile", metavar="NAME", help="a cluster of `barnabas profile add` ($BARNABAS_PROFILE)")
    if has_templates:
        text = "text, json, or a format string of a record, for example '%%k %%v\\n' (docs/command-line.md)"
        shared.add_argument("-f", "--format", metavar="FORMAT", default="text", help=text)
    else:
        shared.add_argument("-f", "--format", choices=("text", "json"), default="text", help="output format")
    shared.add_argument(
        "--timeout",
        type=_seconds,
        default=DEFAULT_TIMEOUT_S,
        metavar="SECONDS",
        help="timeout of the command; for a stream, time without progress",
    )


def _seconds(text: str) -> float:
    """The argparse type of --timeout."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:  # also refuses "nan"
        raise argparse.ArgumentTypeError(f"{text}: give a number of seconds above 0")
    return seconds


def _exit_codes() -> str:
    return "exit codes: 0 ok, 1 failed, 2 usage, 3 unhealthy, 4 unreachable or timed out"


def _run(parsed: argparse.Namespace, connector: Any) -> int:
    verb = parsed.verb
    if verb.serve is not None:
        return int(verb.serve(parsed))
    import asyncio

    from barnabas.log.vocabulary.errors import GroupIdNotFoundError, UnknownTopicOrPartitionError

    from .frame.command import Context
    from .frame.output import Output
    from .frame.suggestions import nearest

    used, bootstrap = connection_of(parsed, connector)
    context = Context(arguments=parsed, out=Output(parsed.format), connector=used, bootstrap=bootstrap)

    async def suggesting() -> int:
        try:
            return int(await verb.run(context))
        except (UnknownTopicOrPartitionError, GroupIdNotFoundError) as error:
            raise CommandError(f"{message_of(error)}{await nearest(context, error)}", exit_code_of(error)) from error

    async def bounded() -> int:
        async with asyncio.timeout(parsed.timeout if verb.timed else None):
            return await suggesting()

    return asyncio.run(bounded())


def connection_of(parsed: argparse.Namespace, connector: Any) -> tuple[Any, str]:
    """The connector and the bootstrap addresses: of options, else of variables, else of the profile, else the default."""
    from .frame.connector import Connector

    file, profiled = _client_file(parsed)
    used = connector if connector is not None else Connector(file.security if file else None)
    return used, _bootstrap(parsed, profiled or (file and file.bootstrap) or DEFAULT_BOOTSTRAP)


def _client_file(parsed: argparse.Namespace) -> "tuple[ClientFile | None, str]":
    """The file of the options, and the addresses of the profile. Options and variables win, each for itself."""
    from .frame.profile_file import Profile, chosen_profile

    path = parsed.command_config or os.environ.get("BARNABAS_COMMAND_CONFIG")
    is_addressed = bool(parsed.bootstrap or os.environ.get("BARNABAS_BOOTSTRAP"))
    # A profile that is only in use must not lend its login to a cluster that was named by other means.
    profile = Profile() if (path or is_addressed) and not parsed.profile else chosen_profile(parsed.profile)
    path = path or profile.command_config
    if not path:
        return None, profile.bootstrap
    from .frame.client_file import read_client_file

    return read_client_file(Path(path)), profile.bootstrap


def _bootstrap(parsed: argparse.Namespace, default: str) -> str:
    text: str = parsed.bootstrap or os.environ.get("BARNABAS_BOOTSTRAP") or default
    from barnabas.log.settings.addresses import parse_bootstrap

    try:
        parse_bootstrap(text)
    except ValueError as error:
        raise CommandError(f"--bootstrap {text}: {error}; give HOST:PORT[,HOST:PORT...]", ExitCode.USAGE) from None
    return text


def _is_expected(error: Exception) -> bool:
    """Errors of the user, the network or the disk print one line. Any other error is a bug of Barnabas and prints a traceback."""
    from barnabas.log.vocabulary.errors import BarnabasError

    return isinstance(error, CommandError | BarnabasError | OSError | TimeoutError)
