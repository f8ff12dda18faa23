"""DescribeClientQuotas (48), AlterClientQuotas (49, ours 1022): quotas, from any broker.

Versions: 0 of our protocol, 0 to 1 of Kafka's. Behaviour: descriptions come from the image of the broker that is asked; changes
go to the active controller, and the answer leaves once this broker's own image shows them. Differs from Kafka: a request of
Kafka's protocol changes its valid entries in one step; an address is written as clients have it, and no name of a host.
"""

from __future__ import annotations

from typing import Final

from barnabas.log.vocabulary.access.quotas import (
    DEFAULT,
    IP,
    EntityQuotas,
    QuotaChange,
    QuotaFilter,
    QuotaPart,
    check_change,
    entity_of,
)
from barnabas.log.vocabulary.cluster_changes import AlterQuotasRequest
from barnabas.log.vocabulary.errors import BarnabasError, InvalidRequestError
from barnabas.net.server.dispatcher import RequestContext
from barnabas.net.wire.protocol.kafka import bodies
from barnabas.net.wire.protocol.kafka.apis import KafkaRequest, KafkaResponse
from barnabas.net.wire.protocol.requests import DescribeQuotasRequest
from barnabas.net.wire.protocol.responses import DescribeQuotasResponse

from ..common.changes import decided
from ..common.many import DONE, Outcome
from ..common.services import Services

MAX_CONDITIONS: Final = 3  # of a filter: there are as many parts of an entity
_EXACT, _DEFAULT, _ANY = range(3)  # Kafka's types of matches


class QuotaHandlers:
    """Of our own protocol. `ForwardingHandler` serves the changes."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def describe(self, request: DescribeQuotasRequest, context: RequestContext) -> DescribeQuotasResponse:
        wanted = request.wanted
        if len(wanted.parts) > MAX_CONDITIONS:
            raise InvalidRequestError(f"a filter of quotas has at most {MAX_CONDITIONS} parts, not {len(wanted.parts)}")
        found = self._services.metadata.image.quotas
        return DescribeQuotasResponse(
            quotas=tuple(
                EntityQuotas(entity=entity, values=values) for entity, values in found.items() if wanted.matches(entity)
            )
        )

    async def alter(self, changes: tuple[QuotaChange, ...], *, validate_only: bool) -> Outcome:
        """Of changes that were checked."""
        if changes:
            try:
                await decided(self._services, AlterQuotasRequest(changes=changes, validate_only=validate_only))
            except BarnabasError as error:
                return Outcome.of(error)
        return DONE


class KafkaQuotaHandlers:
    """Translates; our own handlers do the rest."""

    def __init__(self, own: QuotaHandlers) -> None:
        self._own = own

    async def describe(
        self, request: KafkaRequest[bodies.DescribeClientQuotasRequest], context: RequestContext
    ) -> KafkaResponse[bodies.DescribeClientQuotasResponse]:
        answer = bodies.DescribeClientQuotasResponse
        found = await self._own.describe(DescribeQuotasRequest(wanted=_filter(request.body)), context)
        entries = [
            answer.EntryData(
                entity=[
                    answer.EntityData(entity_type=kind, entity_name=None if name == DEFAULT else name)
                    for kind, name in one.entity.parts.items()
                ],
                values=[answer.ValueData(key=kind, value=value) for kind, value in one.values.items()],
            )
            for one in found.quotas
        ]
        return KafkaResponse(body=answer(error_message=None, entries=entries))

    async def alter(
        self, request: KafkaRequest[bodies.AlterClientQuotasRequest], context: RequestContext
    ) -> KafkaResponse[bodies.AlterClientQuotasResponse]:
        answer = bodies.AlterClientQuotasResponse
        outcomes: list[Outcome] = []
        valid: list[QuotaChange] = []
        for entry in request.body.entries:
            try:
                changes = _changes(entry)
            except BarnabasError as error:
                outcomes.append(Outcome.of(error))
            else:
                valid += changes
                outcomes.append(DONE)
        done = await self._own.alter(tuple(valid), validate_only=request.body.validate_only)
        entries = [
            answer.EntryData(
                entity=[
                    answer.EntityData(entity_type=part.entity_type, entity_name=part.entity_name)
                    for part in entry.entity
                ],
                error_code=outcome.error,
                error_message=outcome.message,
            )
            for entry, outcome in zip(
                request.body.entries, (one if one is not DONE else done for one in outcomes), strict=True
            )
        ]
        return KafkaResponse(body=answer(entries=entries))


def _changes(entry: bodies.AlterClientQuotasRequest.EntryData) -> list[QuotaChange]:
    """Raises InvalidRequestError."""
    entity = entity_of((part.entity_type, part.entity_name) for part in entry.entity)
    changes = [QuotaChange(entity=entity, kind=one.key, value=None if one.remove else one.value) for one in entry.ops]
    for change in changes:
        check_change(change)
    return changes


def _filter(body: bodies.DescribeClientQuotasRequest) -> QuotaFilter:
    """Raises InvalidRequestError."""
    kinds = [component.entity_type for component in body.components]
    entity_of((kind, None) for kind in kinds)  # kinds that exist, each once
    if IP in kinds and len(kinds) > 1:
        raise InvalidRequestError(f"the quota of an {IP} has no other part: filter by {IP} alone")
    return QuotaFilter(parts=tuple(_part(component) for component in body.components), strict=body.strict)


def _part(component: bodies.DescribeClientQuotasRequest.ComponentData) -> QuotaPart:
    if component.match_type not in (_EXACT, _DEFAULT, _ANY):
        raise InvalidRequestError(f"match type {component.match_type} does not exist; use 0 to {_ANY}")
    if component.match_type == _EXACT and not component.match:
        raise InvalidRequestError(f"the filter gives no name of a {component.entity_type} to match")
    name = {_EXACT: component.match, _DEFAULT: DEFAULT, _ANY: None}[component.match_type]
    return QuotaPart(kind=component.entity_type, name=name)
