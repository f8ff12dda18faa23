"""`barnabas profile ...`: names for clusters, so that commands need no addresses."""

import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

from barnabas.log.settings.addresses import parse_bootstrap

from ..frame.command import Verb, name_argument, no_arguments
from ..frame.exit_codes import CommandError, ExitCode
from ..frame.output import Output, Row
from ..frame.profile_file import Profile, found_profile, profile_path, read_profiles, write_profiles


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="a name for the cluster of --bootstrap or --command-config")
    parser.add_argument("--replace", action="store_true", help="replace a profile of this name")


def _add(wanted: Namespace) -> int:
    """The first profile is in use at once."""
    if not wanted.bootstrap and not wanted.command_config:
        raise CommandError("say how to reach the cluster: --bootstrap HOST:PORT, --command-config FILE", ExitCode.USAGE)
    if wanted.bootstrap:
        try:
            parse_bootstrap(wanted.bootstrap)
        except ValueError as error:
            raise CommandError(
                f"--bootstrap {wanted.bootstrap}: {error}; give HOST:PORT[,HOST:PORT...]", ExitCode.USAGE
            ) from None
    file = str(Path(wanted.command_config).absolute()) if wanted.command_config else ""
    if file and not os.access(file, os.R_OK):
        raise CommandError(f"{file} cannot be read; give the path of a client.properties")
    known = read_profiles()
    if wanted.name in known.profiles and not wanted.replace:
        raise CommandError(f"there is a profile {wanted.name!r}; --replace replaces it")
    known.profiles[wanted.name] = Profile(bootstrap=wanted.bootstrap or "", command_config=file)
    known.used = known.used or wanted.name
    write_profiles(known)
    _say(wanted, f"added {wanted.name} to {profile_path()}", {"profile": wanted.name, "added": True})
    return ExitCode.OK


def _use(wanted: Namespace) -> int:
    known = read_profiles()
    found_profile(known, wanted.name)
    known.used = wanted.name
    write_profiles(known)
    _say(wanted, f"commands use {wanted.name} now", {"profile": wanted.name, "used": True})
    return ExitCode.OK


def _list(wanted: Namespace) -> int:
    known = read_profiles()
    rows: list[Row] = [
        {
            "profile": name,
            "used": name == known.used,
            "bootstrap": profile.bootstrap or None,
            "command_config": profile.command_config or None,
        }
        for name, profile in sorted(known.profiles.items())
    ]
    Output(wanted.format).rows(rows, ("profile", "used", "bootstrap", "command_config"))
    return ExitCode.OK


def _remove(wanted: Namespace) -> int:
    known = read_profiles()
    found_profile(known, wanted.name)
    del known.profiles[wanted.name]
    known.used = "" if known.used == wanted.name else known.used
    write_profiles(known)
    _say(wanted, f"removed {wanted.name}", {"profile": wanted.name, "removed": True})
    return ExitCode.OK


def _say(wanted: Namespace, text: str, row: Row) -> None:
    Output(wanted.format).line(text, row)


_ONE = name_argument("NAME")

VERBS = (
    Verb(name="add", summary="give a cluster a name", arguments=_add_arguments, serve=_add),
    Verb(name="use", summary="choose the cluster of the next commands", arguments=_ONE, serve=_use),
    Verb(name="list", summary="list the profiles", arguments=no_arguments, serve=_list),
    Verb(name="remove", summary="forget a profile", arguments=_ONE, serve=_remove),
)
