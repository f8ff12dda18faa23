"""ApiVersions' answer: what is served, in which versions, and Kafka's features with the levels that this amounts to. Pure."""

from __future__ import annotations

from . import bodies
from .apis import LISTED, LISTED_WITH_SASL

NO_EPOCH = -1  # of the finalized features: they are not known yet, and the response has none
_METADATA_VERSION_MIN = 7  # 3.3-IV3: no broker of Kafka 4 knows an older one
_METADATA_VERSION = (
    25  # 4.0-IV3, the first with all that is served here: KIP-848, KIP-966, directories of DescribeQuorum
)
_ZERO_TOLD_SINCE = 4  # of ApiVersions: older clients cannot read a range that begins at 0 (KAFKA-17492)
# By name: the lowest and the highest level, and the one in force. Levels never change while a cluster runs.
FEATURES: dict[str, tuple[int, int, int]] = {
    "metadata.version": (_METADATA_VERSION_MIN, _METADATA_VERSION, _METADATA_VERSION),
    "kraft.version": (0, 0, 0),  # Kafka's own requests for changing voters are not served
    "group.version": (0, 1, 1),  # KIP-848
    "share.version": (0, 1, 1),  # KIP-932
    "transaction.version": (0, 2, 2),  # KIP-890: clients use Produce v12, EndTxn v5 and TxnOffsetCommit v5
}


def versions_response(
    error: int = 0, *, version: int = 0, epoch: int = NO_EPOCH, has_sasl: bool = False
) -> bodies.ApiVersionsResponse:
    """With an error, too, the response has the supported ranges, so that a newer client can try again (KIP-511)."""
    keys = [
        bodies.ApiVersionsResponse.ApiVersion(api_key=key, min_version=versions.first, max_version=versions.last)
        for key, versions in sorted((LISTED_WITH_SASL if has_sasl else LISTED).items())
    ]
    answer = bodies.ApiVersionsResponse(error_code=error, api_keys=keys, finalized_features_epoch=epoch)
    if not error:
        answer.supported_features = [
            bodies.ApiVersionsResponse.SupportedFeatureKey(name=name, min_version=first, max_version=last)
            for name, (first, last, _) in FEATURES.items()
            if first > 0 or version >= _ZERO_TOLD_SINCE
        ]
    if epoch != NO_EPOCH:
        answer.finalized_features = [
            bodies.ApiVersionsResponse.FinalizedFeatureKey(name=name, min_version_level=level, max_version_level=level)
            for name, (_, _, level) in FEATURES.items()
            if level > 0  # 0 is the absence of a feature
        ]
    return answer
