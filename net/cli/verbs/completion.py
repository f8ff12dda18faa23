"""`barnabas completion SHELL`: the script for a shell; and what the scripts ask for, `barnabas __complete WORDS...`.

Verbs and options come from the parser itself; names of topics and groups from the cluster, for at most a second.
"""

import argparse
import asyncio
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Final

from barnabas.log.vocabulary.errors import BarnabasError

from ..frame.command import Verb
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.parser import with_leading_options_last

WAIT_S: Final = 1.0  # for names; a shell that waits longer seems to hang
MAX_NAMES: Final = 1_000
_TOPIC_OPTIONS: Final = ("-t", "--topic")
_GROUP_OPTIONS: Final = ("-g", "--group")
SCRIPTS: Final = {
    "bash": r"""_barnabas() {
    local IFS=$'\n'
    COMPREPLY=($(barnabas __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _barnabas barnabas
""",
    "zsh": r"""#compdef barnabas
_barnabas() {
    local -a found
    found=("${(@f)$(barnabas __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n "${found[1]}" ]] && compadd -a found || _files
}
compdef _barnabas barnabas
""",
    "fish": r"""function __barnabas_complete
    set -l found (barnabas __complete (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)
    if test -n "$found"
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c barnabas -f -a '(__barnabas_complete)'
""",
}
_HOW: Final = {
    "bash": 'eval "$(barnabas completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(barnabas completion zsh)" in ~/.zshrc, after compinit',
    "fish": "barnabas completion fish > ~/.config/fish/completions/barnabas.fish",
}


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), help="; ".join(f"{name}: {how}" for name, how in _HOW.items()))


def _print(wanted: Namespace) -> int:
    print(SCRIPTS[wanted.shell], end="")
    return ExitCode.OK


def complete(words: Sequence[str], connector: Any = None) -> int:
    """Print what may stand for the last of `words`, a line each. Problems print nothing: a shell would show them as words."""
    from ..main import NOUNS, SHARED_OPTIONS, build_parser

    *before, current = words or ("",)
    before = with_leading_options_last(before, SHARED_OPTIONS, NOUNS)
    parser = build_parser(before)
    commands: list[str] = []
    leaf: ArgumentParser = parser
    for word in [word for word in before if not word.startswith("-")]:
        choices = _choices(leaf)
        if word in choices:
            leaf = choices[word]
            commands.append(word)
    found: Iterable[str] = _choices(leaf)
    if not found or current.startswith("-"):
        found = _of_leaf(leaf, commands[0] if commands else "", before, current, connector)
    for word in sorted(word for word in found if word.startswith(current)):
        print(word)
    return ExitCode.OK


def _choices(parser: ArgumentParser) -> dict[str, ArgumentParser]:
    """The commands or verbs of a parser; a leaf has none. Hidden verbs are left out."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest for choice in action._choices_actions}
            return {name: found for name, found in action.choices.items() if name in shown}
    return {}


def _of_leaf(leaf: ArgumentParser, noun: str, before: Sequence[str], current: str, connector: Any) -> Iterable[str]:
    last = before[-1] if before else ""
    option = leaf._option_string_actions.get(last)
    if option is not None and option.choices:
        return [str(choice) for choice in option.choices]
    if last in _TOPIC_OPTIONS or (noun == "topic" and not last.startswith("-") and not current.startswith("-")):
        return _names("topics", before, connector)
    if last in _GROUP_OPTIONS or (noun == "group" and not last.startswith("-") and not current.startswith("-")):
        return _names("groups", before, connector)
    if current.startswith("-"):
        return leaf._option_string_actions
    positional = [action for action in leaf._actions if not action.option_strings and action.choices]
    return [str(choice) for action in positional for choice in action.choices or ()]


def _names(what: str, before: Sequence[str], connector: Any) -> Sequence[str]:
    from ..main import connection_of

    given = {
        name: value for name, value in pairwise(before) if name in ("--bootstrap", "--profile", "--command-config")
    }

    async def ask() -> Sequence[str]:
        how = Namespace(
            bootstrap=given.get("--bootstrap"),
            command_config=given.get("--command-config"),
            profile=given.get("--profile"),
        )
        used, bootstrap = connection_of(how, connector)
        async with asyncio.timeout(WAIT_S), used.admin(bootstrap) as admin:
            if what == "topics":
                return list(await admin.list_topics())
            return [group.group_id for group in await admin.list_groups()]

    try:
        return asyncio.run(ask())[:MAX_NAMES]
    except (CommandError, BarnabasError, OSError, TimeoutError):
        return ()


COMPLETION = Verb(name="completion", summary="completion for a shell", arguments=_arguments, serve=_print)
VERBS = {"completion": COMPLETION}
