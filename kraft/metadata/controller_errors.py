"""The error that only brokers see, in addition to those of `barnabas.log.vocabulary.errors`."""

from barnabas.log.vocabulary.errors import InconsistentClusterIdError


class DivergentMetadataError(InconsistentClusterIdError):
    """The broker is of this cluster, but of a different history. Brokers of all versions stop at this code."""
