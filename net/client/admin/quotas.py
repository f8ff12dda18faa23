"""`Admin.quotas`: how much users, client ids and addresses may use."""

from collections.abc import Mapping

from barnabas.log.vocabulary.access.quotas import EntityQuotas, QuotaChange, QuotaEntity, QuotaFilter
from barnabas.log.vocabulary.cluster_changes import AlterQuotasRequest
from barnabas.net.wire.protocol.requests import DescribeQuotasRequest
from barnabas.net.wire.protocol.responses import DescribeQuotasResponse

from .asking import Ask

EVERY = QuotaFilter()


class QuotaAdmin:
    """A part of `Admin`. Kinds of quotas have Kafka's names: `QuotaKind`. A name of "" is the default of all others."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    async def find(self, wanted: QuotaFilter = EVERY) -> list[EntityQuotas]:
        """The quotas of the entities that the filter finds; all of them without one."""
        response: DescribeQuotasResponse = await self._ask.anywhere(DescribeQuotasRequest(wanted=wanted))
        return [*response.quotas]

    async def alter(self, entity: QuotaEntity, values: Mapping[str, float | None]) -> None:
        """Set these values, and remove those that are None; others stay. Raises InvalidRequestError for a quota that could never
        hold, and then changes nothing."""
        changes = tuple(QuotaChange(entity=entity, kind=kind, value=value) for kind, value in values.items())
        await self._ask.controller(AlterQuotasRequest(changes=changes))
