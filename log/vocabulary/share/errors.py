"""Errors of share groups."""

from ..errors import BarnabasError, ErrorCode, RetriableError


class InvalidRecordStateError(BarnabasError):
    """A member of a share group acknowledges a record that it has not locked (any more) (KIP-932)."""

    code = ErrorCode.INVALID_RECORD_STATE


class ShareSessionNotFoundError(RetriableError):
    """The share session does not exist: the client must begin a new one."""

    code = ErrorCode.SHARE_SESSION_NOT_FOUND


class InvalidShareSessionEpochError(RetriableError):
    """A request of a share session does not continue the one before it: the client must begin a new one."""

    code = ErrorCode.INVALID_SHARE_SESSION_EPOCH


class FencedStateEpochError(BarnabasError):
    """The state of a share partition was loaded again, or replaced, since this leader loaded it."""

    code = ErrorCode.FENCED_STATE_EPOCH


class ShareSessionLimitReachedError(RetriableError):
    code = ErrorCode.SHARE_SESSION_LIMIT_REACHED
