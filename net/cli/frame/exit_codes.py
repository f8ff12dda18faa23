"""Exit codes of the command, and the error behind each: scripts that call the command rely on them."""

import errno
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
# Of files and folders that the command cannot use.
_CURES: Final = {
    errno.EROFS: "name a file or folder of another file system",
    errno.EACCES: "name another file or folder, or give this user the rights to it",
    errno.EPERM: "name another file or folder, or give this user the rights to it",
    errno.ENOSPC: "free space, or name a file or folder of another file system",
}


class CommandError(Exception):
    """The command cannot do what was asked. The message is one line: the cause; then what to do."""

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
    """One line for people, without terminal control characters."""
    return printable(_message_of(error))


def _message_of(error: BaseException) -> str:
    """The text of an error. Errors of Barnabas carry a message; OSErrors name the file or address."""
    if isinstance(error, BarnabasError):
        return " ".join(error.message.split())
    if isinstance(error, TimeoutError):
        return (
            "no answer in time; a change may still be applied, so check before you repeat it. Is the cluster up? "
            "Raise the limit with --timeout SECONDS"
        )
    if isinstance(error, OSError) and error.filename and error.errno in _CURES:
        return f"{error.filename}: {error.strerror}; {_CURES[error.errno]}"
    return " ".join(str(error).split()) or type(error).__name__
