"""Exit codes of the command, and which error gives which: part of the contract with scripts that call it."""

from enum import IntEnum
from typing import Final

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode

from ...base.printable import printable


class ExitCode(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    UNHEALTHY = 3
    UNREACHABLE = 4  # or timed out: the same command may succeed later
    INTERRUPTED = 130  # 128 + SIGINT, as shells count


_UNREACHABLE_CODES: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.BROKER_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.LEADER_NOT_AVAILABLE,
    }
)


class CommandError(Exception):
    """The command cannot do what was asked. The message is one line: the cause; the cure."""

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def exit_code_of(error: BaseException) -> ExitCode:
    """The exit code for an error that ends the command."""
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, BarnabasError):
        return ExitCode.UNREACHABLE if error.code in _UNREACHABLE_CODES else ExitCode.FAILED
    if isinstance(error, ConnectionError | TimeoutError):
        return ExitCode.UNREACHABLE
    return ExitCode.FAILED


def message_of(error: BaseException) -> str:
    """One line for a person, without anything that a terminal obeys."""
    return printable(_message_of(error))


def _message_of(error: BaseException) -> str:
    """Errors of the system say what they concern; ours say it themselves."""
    if isinstance(error, BarnabasError):
        return " ".join(error.message.split())
    if isinstance(error, TimeoutError):
        return (
            "no answer in time; a change may still be made, so look before you repeat it. Is the cluster up? "
            "Give it longer with --timeout SECONDS"
        )
    return " ".join(str(error).split()) or type(error).__name__
