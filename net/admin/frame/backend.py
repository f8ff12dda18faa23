"""The port between the admin API and its broker: net/broker/broker.py implements it, and tests fake it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from barnabas.kraft.metadata.image import MetadataImage
from barnabas.log.settings.principal_rules import PrincipalRules
from barnabas.log.vocabulary.principal import Principal
from barnabas.net.client.admin.admin import Admin
from barnabas.net.client.connection.ports import Connection
from barnabas.net.server.access.access import AccessControl


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of one metric. Names end in their unit, counters in `_total`, as Prometheus recommends."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    part: Literal["", "_bucket", "_sum", "_count"] = ""  # of a histogram


class AdminBackend(Protocol):
    """One broker, as its admin API sees it."""

    @property
    def node_id(self) -> int: ...

    def host_names(self) -> Collection[str]:
        """Host names that callers of the API may use; `*`: any."""

    def allowed_origins(self) -> Collection[str]:
        """Origins of web pages that may produce records; `*`: any."""

    def image(self) -> MetadataImage:
        """The newest metadata that this broker has applied."""

    def is_ready(self) -> tuple[bool, str]:
        """Whether the broker can serve clients; if not, why."""

    def metrics(self) -> Sequence[Sample]:
        """The broker's own metrics, `barnabas_*`."""

    @property
    def access(self) -> AccessControl | None:
        """None: everyone who can connect may do everything."""

    async def log_in(self, authorization: str, client_host: str, again: Principal | None = None) -> Principal:
        """The user of an Authorization header. `again`: of a call that this user has begun. Raises BarnabasError."""

    @property
    def principal_rules(self) -> PrincipalRules:
        """Names of the callers whose certificates have a certain subject."""

    @property
    def here(self) -> Connection:
        """Send a request to this broker only, as a client connected to it would."""

    @property
    def are_metrics_public(self) -> bool:
        """`metrics.public`: does /metrics need no permission?"""

    @property
    def console(self) -> str:
        """`admin.console`: "off", "readonly" or "on"."""

    @property
    def schema_registry(self) -> str:
        """`admin.schema.registry.url`; empty: none."""

    def admin(self) -> Admin:
        """An admin client for one call, not yet started. It routes each request to the right broker of the cluster."""
