"""What a command does about state that no leader of the quorum confirms: it shows it, says so, and ends with exit code 3."""

from collections.abc import Mapping

from .exit_codes import ExitCode
from .output import Row

Doubt = Mapping[str, object] | None  # of `doubt.doubt_of`


def exit_code_in(doubt: Doubt) -> ExitCode:
    return ExitCode.OK if doubt is None else ExitCode.UNHEALTHY


def shown_doubt(doubt: Doubt) -> Row:
    """A line of a record for people; none while the state is confirmed."""
    return {} if doubt is None else {"unconfirmed": doubt["message"]}
