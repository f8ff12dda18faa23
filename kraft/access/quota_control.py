"""Quotas: which values are set and removed. A request is decided as a whole, so that scripts can repeat it."""

from barnabas.log.vocabulary.access.quotas import MAX_CHANGES_PER_REQUEST, MAX_QUOTAS, check_change
from barnabas.log.vocabulary.cluster_changes import AlterQuotasRequest
from barnabas.log.vocabulary.errors import InvalidRequestError, PolicyViolationError

from ..metadata.controller_result import ControllerResult
from ..metadata.delta import MetadataDelta
from ..metadata.feature_levels import QUOTAS_LEVEL, raised_level
from ..metadata.records import QuotaRecord, Record


def alter_quotas(view: MetadataDelta, request: AlterQuotasRequest) -> ControllerResult:
    """Raises InvalidRequestError, PolicyViolationError (too many), UnsupportedVersionError (a broker of an older version)."""
    if len(request.changes) > MAX_CHANGES_PER_REQUEST:
        raise InvalidRequestError(
            f"{len(request.changes)} quotas in one request; change at most {MAX_CHANGES_PER_REQUEST}, and the others next"
        )
    for change in request.changes:
        check_change(change)
    last = {(change.entity, change.kind): change for change in request.changes}
    changes = [one for one in last.values() if view.quotas_of(one.entity).get(one.kind) != one.value]
    added = sum(one.kind not in view.quotas_of(one.entity) for one in changes)
    # With nothing added, also beyond the limit: a release with a larger one may have set them, and they can be removed.
    if added and view.count_quotas() + added > MAX_QUOTAS:
        raise PolicyViolationError(
            f"the cluster has {view.count_quotas()} quotas, and at most {MAX_QUOTAS} are allowed: {added} more cannot be added;"
            " set quotas for defaults, and remove those that are not needed"
        )
    if not changes:
        return ControllerResult()
    records: list[Record] = [*raised_level(view, QUOTAS_LEVEL, "quotas")]
    if request.validate_only:
        return ControllerResult()
    records.extend(QuotaRecord(of=change) for change in changes)
    return ControllerResult(records=tuple(records))
