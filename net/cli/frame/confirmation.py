"""State that no quorum leader confirms: a command shows it, reports the doubt, and ends with exit code 3."""

from collections.abc import Mapping

from .exit_codes import ExitCode
from .output import Row

Doubt = Mapping[str, object] | None  # the result of `doubt.doubt_of`


def exit_code_in(doubt: Doubt) -> ExitCode:
    return ExitCode.OK if doubt is None else ExitCode.UNHEALTHY


def shown_doubt(doubt: Doubt) -> Row:
    """An extra line of the text output; absent while the state is confirmed."""
    return {} if doubt is None else {"unconfirmed": doubt["message"]}
