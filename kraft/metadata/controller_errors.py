"""Errors that only the controller returns, in addition to those of `barnabas.log.vocabulary.errors`."""

from barnabas.log.vocabulary.errors import BarnabasError, ErrorCode, InconsistentClusterIdError, RetriableError


class BrokerIdNotRegisteredError(BarnabasError):
    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class PreferredLeaderNotAvailableError(RetriableError):
    code = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE


class ElectionNotNeededError(BarnabasError):
    code = ErrorCode.ELECTION_NOT_NEEDED


class NoReassignmentInProgressError(BarnabasError):
    code = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


class DivergentMetadataError(InconsistentClusterIdError):
    """The broker is of this cluster, but of a different history. Brokers of all versions stop at this code."""
