"""The file of `barnabas profile`: names for clusters, in the folder for configurations of the user (XDG).

It holds addresses, and paths of files with passwords, but no password; its mode is 0600 all the same.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

from ...base.near_words import did_you_mean
from .exit_codes import CommandError, ExitCode

MAX_PROFILES: Final = 1_000
MAX_BYTES: Final = 1024 * 1024


class Profile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How to reach a cluster."""

    bootstrap: str = ""
    command_config: str = ""  # an absolute path


class Profiles(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """`used` is the name of the profile that commands use by themselves; empty: none."""

    used: str = ""
    profiles: dict[str, Profile] = {}


def profile_path() -> Path:
    """$XDG_CONFIG_HOME/barnabas/profiles.json; by default in ~/.config."""
    home = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".config") / "barnabas" / "profiles.json"


def read_profiles() -> Profiles:
    """Raises CommandError: the file is damaged."""
    path = profile_path()
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CommandError(f"{path} has more than {MAX_BYTES} bytes: correct or remove it")
        return msgspec.json.decode(path.read_bytes(), type=Profiles)
    except FileNotFoundError:
        return Profiles()
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise CommandError(f"{path} is damaged: {error}; correct or remove it") from error


def write_profiles(profiles: Profiles) -> None:
    """Replace the file as a whole. Raises CommandError, OSError."""
    from barnabas.log.disk.secret_files import write_secret  # other commands only read

    if len(profiles.profiles) > MAX_PROFILES:
        raise CommandError(f"there are {MAX_PROFILES} profiles; remove some")
    path = profile_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_secret(path, msgspec.json.format(msgspec.json.encode(profiles)) + b"\n")


def chosen_profile(named: str | None) -> Profile:
    """The profile of --profile or $BARNABAS_PROFILE, else the one in use, else an empty one.

    Raises CommandError: there is no such profile.
    """
    name = named or os.environ.get("BARNABAS_PROFILE", "")
    profiles = read_profiles()
    return found_profile(profiles, name or profiles.used) if name or profiles.used else Profile()


def found_profile(profiles: Profiles, name: str) -> Profile:
    """Raises CommandError, which names the nearest one."""
    if name not in profiles.profiles:
        near = did_you_mean(name, profiles.profiles) or "; see barnabas profile list"
        raise CommandError(f"there is no profile {name!r}{near}", ExitCode.USAGE)
    return profiles.profiles[name]
