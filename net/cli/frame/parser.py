"""The parser of the command line: usage errors are one line that names the nearest word, and options may come anywhere."""

import argparse
import sys
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final, NoReturn

from ...base.near_words import did_you_mean
from .exit_codes import ExitCode

# What Kafka's and other tools call it, and what it is here; where a command has the first word as an option.
_HERE: Final = {
    "--replication-factor": "--replicas",
    "--from-beginning": "--offset start",
    "--max-messages": "--num",
    "--to-earliest": "--to start",
    "--to-latest": "--to end",
    "--to-offset": "--to OFFSET",
    "--to-datetime": "--to @TIME",
    "--shift-by": "--to +N",
    "--add-config": "--config",
    "--dry-run": "--preview",
    "--formatter-property": "--format",
    "--property": "--format",
    "--producer.config": "--command-config",
    "--consumer.config": "--command-config",
    "--from": "--offset",
    "--since": "--offset @-1h",
    "--last": "--offset -N",
    "--tail": "--offset -N",
    "--limit": "--num",
    "--json": "--format json",
    "--output": "--format",
    "-o": "--format",
    "-b": "--bootstrap",
    "--brokers": "--bootstrap",
    "--count": "--num",
}
# Words that other tools begin with, and the command here.
_FIRST_WORDS: Final = {
    "create": "topic create",
    "produce": "topic produce",
    "consume": "topic consume",
    "list": "topic list",
    "describe": "topic describe",
    "delete": "topic delete",
    "seek": "group seek",
    "lag": "group list",
    "metrics": "top",
    "consumer-groups": "group list",
    "share-groups": "group list",
    "share": "group list",
    "brokers": "cluster describe",
    "status": "cluster health",
    "health": "cluster health",
    "events": "cluster events",
    "backup": "cluster backup",
    "restore": "cluster restore",
    "start": "up",
    "stop": "down",
    "help": "--help",
    "version": "--version",
}
# Verbs that other tools have, by noun.
_VERBS: Final = {
    ("broker", "list"): "cluster describe",
    ("broker", "describe"): "cluster describe",
    ("broker", "config"): "config list -b N",
    ("broker", "stop"): "broker drain N",
    ("broker", "remove"): "broker decommission N",
    ("group", "reset"): "group seek GROUP --to POSITION",
    ("group", "reset-offsets"): "group seek GROUP --to POSITION",
    ("group", "lag"): "group describe GROUP",
    ("topic", "config"): "config list -t TOPIC",
    ("cluster", "status"): "cluster health",
    ("cluster", "doctor"): "doctor",
}
_NAMES_IN_KAFKA: Final = ("--topic", "--group", "--principal", "--user")  # arguments without an option here
_CONSENT: Final = ("--yes", "-y", "--force", "--no-prompt")  # which other tools want


class CommandParser(argparse.ArgumentParser):
    """A usage error is one line that says what to do. Options and arguments may come in any order."""

    is_leaf = False  # the parser has arguments, not verbs
    has_all_commands = False  # the parser of the first word
    commands_beside: Container[str] = ()  # words that are commands themselves: `security user` is `user`
    _is_inside = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Without this, argparse treats an optional FILE as missing if an option precedes it."""
        if not self.is_leaf or self._is_inside:
            return super().parse_known_args(args, namespace)
        self._is_inside = True
        try:
            found, unknown = self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_inside = False
        if unknown:
            self._refuse(unknown)
        return found, unknown

    def _refuse(self, unknown: Sequence[str]) -> NoReturn:
        option = next((word for word in unknown if word.startswith("-")), None)
        if option is None:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        self.error(f"there is no option {option}{self._near(option.partition('=')[0])}")

    def _near(self, option: str) -> str:
        here = _HERE.get(option, "")
        if here.partition(" ")[0] in self._option_string_actions:
            return f" (here it is {here})"
        if option == "--partitions" and self.prog.endswith(" topic alter"):
            return " (did you mean `barnabas topic add-partitions NAME --total N`?)"
        if option in _NAMES_IN_KAFKA and self._get_positional_actions():
            return ": give the name alone, as in the help"
        if option in _CONSENT:
            return ": the command does not ask, leave it out"
        return did_you_mean(option, self._option_string_actions)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if not isinstance(action, argparse._SubParsersAction) or value in action.choices:
            super()._check_value(action, value)
            return
        noun = self.prog.rpartition(" ")[2]
        if (noun, value) in _VERBS:
            raise argparse.ArgumentError(
                None, f"there is no command {value!r} (did you mean `barnabas {_VERBS[noun, value]}`?)"
            )
        if value in self.commands_beside:
            raise argparse.ArgumentError(None, f"there is no command {value!r} here (did you mean `barnabas {value}`?)")
        if value in _FIRST_WORDS and self.has_all_commands:
            raise argparse.ArgumentError(
                None, f"there is no command {value!r} (did you mean `barnabas {_FIRST_WORDS[value]}`?)"
            )
        known = [choice.dest for choice in action._choices_actions]  # those that help shows
        near = did_you_mean(value, known) or f"; choose from {', '.join(known)}"
        raise argparse.ArgumentError(None, f"there is no command {value!r}{near}")

    def error(self, message: str) -> NoReturn:
        print(f"barnabas: {message}; see `{self.prog} --help`", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)


def with_leading_options_last(given: Sequence[str], options: Iterable[str], nouns: Container[str]) -> list[str]:
    """`given` with the options before the command moved behind it, where argparse expects them.

    `options` take one value each. A command is a noun and a verb, or one word that is not in `nouns`.
    """
    known = set(options)
    end = 0
    while end < len(given) and given[end].partition("=")[0] in known:
        end += 1 if "=" in given[end] else 2
    if end == len(given) - 1 and given[end] in nouns:
        return list(given[end:])  # Without a verb, the options would be taken for one.
    command = end + (2 if end < len(given) and given[end] in nouns else 1)
    return [*given[end:command], *given[:end], *given[command:]]
