"""Permissions: which are added and removed. A request is decided as a whole, so that scripts can repeat it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from barnabas.log.vocabulary.access.acls import (
    MAX_ACLS,
    MAX_ACLS_PER_REQUEST,
    MAX_FILTERS_PER_REQUEST,
    Acl,
    AclFilter,
    AclsOfFilter,
    Operation,
    PatternKind,
    ResourceKind,
    check_acl,
)
from barnabas.log.vocabulary.cluster_changes import AclsRemoved, CreateAclsRequest, DeleteAclsRequest
from barnabas.log.vocabulary.errors import InvalidRequestError, PolicyViolationError

from ..metadata.controller_result import ControllerResult
from ..metadata.delta import MetadataDelta
from ..metadata.feature_levels import SECURITY_LEVEL, TWO_PHASE_LEVEL, raised_level
from ..metadata.records import AclRecord, FeatureLevelRecord, Record, RemoveAclRecord


def create_acls(view: MetadataDelta, request: CreateAclsRequest) -> ControllerResult:
    """Raises InvalidRequestError, PolicyViolationError (too many), UnsupportedVersionError (a broker of an older version)."""
    if len(request.acls) > MAX_ACLS_PER_REQUEST:
        raise InvalidRequestError(
            f"{len(request.acls)} permissions in one request; add at most {MAX_ACLS_PER_REQUEST}, and the others with the next"
        )
    for acl in request.acls:
        check_acl(acl)
    known = {resource: frozenset(view.acls_of(resource)) for resource in {acl.resource for acl in request.acls}}
    new = [acl for acl in dict.fromkeys(request.acls) if acl not in known[acl.resource]]
    if not new:
        return ControllerResult()
    count = sum(1 for _ in view.acls())
    if count + len(new) > MAX_ACLS:
        raise PolicyViolationError(
            f"the cluster has {count} permissions, and at most {MAX_ACLS} are allowed: {len(new)} more cannot be added; give "
            "permissions for prefixes of names, and remove those that are not needed"
        )
    records: list[Record] = [*_raised_level(view, new)]
    records.extend(AclRecord(acl=acl) for acl in new)
    return ControllerResult(records=tuple(records))


def _raised_level(view: MetadataDelta, new: Iterable[Acl]) -> tuple[FeatureLevelRecord, ...]:
    if any(acl.operation is Operation.TWO_PHASE_COMMIT for acl in new):
        return raised_level(view, TWO_PHASE_LEVEL, "permissions with the operation TWO_PHASE_COMMIT")
    return raised_level(view, SECURITY_LEVEL, "permissions")


def delete_acls(view: MetadataDelta, request: DeleteAclsRequest) -> ControllerResult:
    """Raises InvalidRequestError. A permission that two filters find is removed once, and told for both."""
    if len(request.filters) > MAX_FILTERS_PER_REQUEST:
        raise InvalidRequestError(
            f"{len(request.filters)} filters in one request; send at most {MAX_FILTERS_PER_REQUEST} at a time"
        )
    found = [tuple(acl for acl in _candidates(view, item) if item.matches(acl)) for item in request.filters]
    gone = dict.fromkeys(acl for acls in found for acl in acls)
    removed = tuple(AclsOfFilter(acls=acls) for acls in found)
    return ControllerResult(
        records=tuple(RemoveAclRecord(acl=acl) for acl in gone),
        respond=lambda index, image: AclsRemoved(removed=removed, offset=index),
    )


def _candidates(view: MetadataDelta, wanted: AclFilter) -> Iterable[Acl]:
    """Not all permissions, where the filter names one resource."""
    is_one = wanted.kind is not ResourceKind.ANY and wanted.name is not None
    if is_one and wanted.pattern in (PatternKind.LITERAL, PatternKind.PREFIXED):
        assert wanted.name is not None
        return view.acls_of((int(wanted.kind), int(wanted.pattern), wanted.name))
    return view.acls()


DECISIONS: Final[Mapping[type, Callable[..., ControllerResult]]] = {
    CreateAclsRequest: create_acls,
    DeleteAclsRequest: delete_acls,
}
